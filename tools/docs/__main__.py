"""`python -m tools.docs`: build the site into build/docs, and check it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import main as sphinx

from .links import broken_links

ROOT = Path(__file__).resolve().parents[2]


def build(target: Path) -> int:
    """0 if nothing is wrong. What is wrong is on standard error."""
    shutil.rmtree(target, ignore_errors=True)
    flags = ["--quiet", "--fail-on-warning", "--fresh-env", "--builder", "html"]
    places = ["--conf-dir", str(ROOT / "docs"), "--doctree-dir", str(target / ".doctrees")]
    if code := sphinx([*flags, *places, str(ROOT), str(target)]):
        return code
    broken = broken_links(target)
    for link in broken:
        print(f"broken link: {link}", file=sys.stderr)
    return 1 if broken else 0


def main() -> int:
    target = ROOT / "build" / "docs"
    code = build(target)
    if code == 0:
        print(f"    {target / 'index.html'}")
    return code


if __name__ == "__main__":
    sys.exit(main())
