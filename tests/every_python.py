"""Runs the in-process tests on every Python from 3.10 up that this machine has.

Each version gets a virtual environment of its own and builds the native accelerator there; the
tests run on both paths. Needs nothing but the interpreters.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = [
    f"tests/{folder}" for folder in ("core", "strategies", "conformance", "accel", "stores/memory")
]
NEWEST_MINOR = 20


def interpreters() -> dict[str, str]:
    """Version to executable, for each one that really starts: a shim may stand for nothing."""
    folders = [*os.environ.get("PATH", "").split(os.pathsep)]
    folders += [str(path) for path in (Path.home() / ".pyenv" / "versions").glob("*/bin")]
    found: dict[str, str] = {}
    for minor in range(10, NEWEST_MINOR):
        for folder in folders:
            candidate = shutil.which(f"python3.{minor}", path=folder)
            if candidate and _starts(candidate):
                found[f"3.{minor}"] = candidate
                break
    return found


def _starts(executable: str) -> bool:
    done = subprocess.run([executable, "-c", "import venv"], capture_output=True, check=False)
    return done.returncode == 0


def run(version: str, executable: str) -> bool:
    venv = ROOT / f".venv-{version}"
    python = venv / "bin" / "python"
    print(f"==> Python {version}", flush=True)
    steps = [
        [executable, "-m", "venv", str(venv)],
        [str(python), "-m", "pip", "install", "-q", "-U", "pip>=25.1"],
        [str(python), "-m", "pip", "install", "-q", ".", "pytest>=8", "hypothesis>=6.100"],
    ]
    for step in steps:
        subprocess.run(step, cwd=ROOT, check=True)
    for pure in ("0", "1"):
        # Against the installed package: the source tree holds another version's extension.
        command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", *TESTS]
        environment = {**os.environ, "PENSTOCK_PURE": pure}
        if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:
            return False
    return True


def main() -> int:
    found = interpreters()
    print("found", ", ".join(found) or "no Python from 3.10 up", flush=True)
    failed = [version for version, executable in found.items() if not run(version, executable)]
    print(f"failed on {', '.join(failed)}" if failed else f"passed on {', '.join(found)}")
    return 1 if failed or not found else 0


if __name__ == "__main__":
    sys.exit(main())
