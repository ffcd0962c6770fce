"""Install the npm packages of node/package.json into .tools/node, arq into .tools/arq, and DynamoDB
Local where there is Java: `python -m tests.servers.setup`.

Run again, it does nothing until the pinned versions change.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from . import dynamodb_local
from .node import INSTALL, MANIFEST, node_binary, npm_script
from .process import ARQ, MissingError

PINS = ("package.json", "package-lock.json")


def main() -> int:
    """All at once: most of their time is spent waiting for a registry."""
    with ThreadPoolExecutor() as threads:
        done = [threads.submit(step) for step in (_dynamodb_local, _npm, _arq)]
        return max(step.result() for step in done)


def _dynamodb_local() -> int:
    dynamodb_local.install()
    return 0


def _arq() -> int:
    if ARQ.is_dir():
        print("arq: up to date")
        return 0
    print(f"arq: installing into {ARQ}", flush=True)
    quiet = ("--quiet", "--disable-pip-version-check")
    words = [sys.executable, "-m", "pip", "install", *quiet, "--target", str(ARQ), "arq>=0.26,<1"]
    return subprocess.run(words, check=False).returncode


def _npm() -> int:
    wanted = hashlib.sha256(b"".join((MANIFEST / pin).read_bytes() for pin in PINS)).hexdigest()
    stamp = INSTALL / "installed.sha256"
    if stamp.is_file() and stamp.read_text() == wanted:
        print("npm packages: up to date")
        return 0
    try:
        npm = [str(node_binary()), str(npm_script())]
    except MissingError as missing:
        print(f"npm packages: {missing}", file=sys.stderr)
        return 1
    print(f"npm packages: installing into {INSTALL}", flush=True)
    INSTALL.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    for pin in PINS:
        shutil.copy(MANIFEST / pin, INSTALL / pin)
    # No install script is needed: the binaries are in the packages.
    quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    if code := subprocess.run([*npm, "ci", *quiet], cwd=INSTALL, check=False).returncode:
        print(f"npm packages: npm ci failed with {code}", file=sys.stderr)
        return code
    stamp.write_text(wanted)
    print("npm packages: installed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
