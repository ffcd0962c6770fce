"""Programs in other languages that tests and measurements use, built once, into .tools.

Each is built from a registry by a toolchain that has to be on the machine: `MissingError` says
which one is not. `python -m tools.foreign NAME...` builds some of them ahead, and without a name
says which there are.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "ENVOY_RATELIMIT",
    "GO_CLIENT",
    "H2SPEC",
    "JAVA_CLIENT",
    "PROGRAMS",
    "RUST_CLIENT",
    "THROTTLECRAB",
    "MissingError",
    "Program",
    "c_program",
]

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ROOT / ".tools"
BIN = TOOLS / "bin"
CLIENTS = ROOT / "tests" / "service" / "foreign"


class MissingError(RuntimeError):
    """What it takes is not on this machine."""


@dataclass(frozen=True)
class Program:
    """What is at `target`, or can be made there: anew only if what it is made `of` has changed,
    which are texts, such as versions, files and folders."""

    target: Path
    of: tuple[str | Path, ...]
    make: Callable[[Path], None]

    @property
    def ready(self) -> bool:
        stamp = self._stamp
        return self.target.exists() and stamp.is_file() and stamp.read_text() == self._digest()

    def get(self) -> Path:
        """Where it is, made beside its place and then moved: nobody ever runs half of it."""
        if self.ready:
            return self.target
        self.target.parent.mkdir(parents=True, exist_ok=True)
        made = self.target.with_name(f".{self.target.name}.{os.getpid()}")
        self.make(made)
        if self.target.is_dir():
            shutil.rmtree(self.target)
        made.replace(self.target)
        self._stamp.write_text(self._digest())
        return self.target

    @property
    def _stamp(self) -> Path:
        return self.target.with_name(f".{self.target.name}.sha256")

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for part in self.of:
            for piece in _contents(part):
                digest.update(hashlib.sha256(piece).digest())
        return digest.hexdigest()


def _contents(part: str | Path) -> list[bytes]:
    if isinstance(part, str):
        return [part.encode()]
    files = sorted(part.rglob("*")) if part.is_dir() else [part]
    return [file.read_bytes() for file in files if file.is_file()]


def _toolchain(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise MissingError(f"{program} is not on this machine")
    return found


def _run(words: Sequence[str | Path], folder: Path = ROOT, **environment: str) -> None:
    """Run a builder to its end; what it says is shown if it fails."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise MissingError(f"{' '.join(map(str, words))}: {done.stdout.strip()[-2000:]}")


def c_program(source: Path) -> Program:
    """Of one file."""

    def make(made: Path) -> None:
        _run([_toolchain(os.environ.get("CC", "cc")), "-O2", "-o", made, source])

    return Program(BIN / source.stem, (source,), make)


def _go(words: Sequence[str | Path], folder: Path = ROOT, **environment: str) -> None:
    """Modules and objects stay in .tools, as files that can be deleted."""
    _run(
        [_toolchain("go"), *words],
        folder,
        CGO_ENABLED="0",
        GOCACHE=str(TOOLS / "go" / "cache"),
        GOFLAGS="-modcacherw -buildvcs=false",
        GOPATH=str(TOOLS / "go"),
        GOTOOLCHAIN="local",
        **environment,
    )


def _go_program(name: str, package: str) -> Program:
    """A package that the module of the tests' client has, or requires; its go.sum pins the rest."""
    module = CLIENTS / "go"
    return Program(
        BIN / name, (module, package), lambda made: _go(["build", "-o", made, package], module)
    )


def _envoy_ratelimit(made: Path) -> None:
    package = "github.com/envoyproxy/ratelimit/src/service_cmd"
    folder = made.with_suffix(".d")
    _go(["install", f"{package}@{_ENVOY_RATELIMIT}"], GOBIN=str(folder))
    (folder / "service_cmd").replace(made)
    folder.rmdir()


def _cargo(words: Sequence[str | Path], folder: Path = ROOT) -> None:
    """Build scripts that read protos want a compiler of them, which grpcio-tools has."""
    protoc = BIN / "protoc"
    protoc.parent.mkdir(parents=True, exist_ok=True)
    protoc.write_text(f'#!/bin/sh\nexec {sys.executable} -m grpc_tools.protoc "$@"\n')
    protoc.chmod(0o755)
    _run([_toolchain("cargo"), *words, "--locked", "--quiet"], folder, PROTOC=str(protoc))


def _throttlecrab(made: Path) -> None:
    crate, place = "throttlecrab-server", TOOLS / "cargo" / "throttlecrab"
    words: list[str | Path] = ["install", crate, "--version", _THROTTLECRAB, "--root", place]
    _cargo([*words, "--target-dir", place / "target"])
    (place / "bin" / crate).replace(made)
    shutil.rmtree(place)


def _rust_client(made: Path) -> None:
    target = TOOLS / "cargo" / "client"
    _cargo(["build", "--release", "--target-dir", target], CLIENTS / "rust")
    shutil.copy(target / "release" / "foreign-rust", made)


def _java_client(made: Path) -> None:
    """A folder of the libraries, and of the classes of the one file."""
    copy = ["dependency:copy-dependencies", f"-DoutputDirectory={made}", "-DincludeScope=runtime"]
    source = CLIENTS / "java" / "Client.java"
    javac = _toolchain("javac")
    _run([_toolchain("mvn"), "--quiet", "--batch-mode", *copy], source.parent)
    _run([javac, "-cp", f"{made}/*", "-d", made, source])


_ENVOY_RATELIMIT = "v1.4.1-0.20260122083618-3fb702589d36"
_THROTTLECRAB = "0.4.40"

GO_CLIENT = _go_program("foreign-go", ".")
H2SPEC = _go_program("h2spec", "github.com/summerwind/h2spec/cmd/h2spec")
RUST_CLIENT = Program(BIN / "foreign-rust", (CLIENTS / "rust",), _rust_client)
JAVA_CLIENT = Program(TOOLS / "foreign-java", (CLIENTS / "java",), _java_client)
# Rate limit services: Envoy's own, in Go, and one in Rust.
ENVOY_RATELIMIT = Program(BIN / "envoy-ratelimit", (_ENVOY_RATELIMIT,), _envoy_ratelimit)
THROTTLECRAB = Program(BIN / "throttlecrab-server", (_THROTTLECRAB,), _throttlecrab)

PROGRAMS = {
    "go-client": GO_CLIENT,
    "rust-client": RUST_CLIENT,
    "java-client": JAVA_CLIENT,
    "h2spec": H2SPEC,
    "envoy-ratelimit": ENVOY_RATELIMIT,
    "throttlecrab": THROTTLECRAB,
}


def _told(program: Program) -> str:
    try:
        return str(program.get().relative_to(ROOT))
    except MissingError as missing:
        return f"left out: {missing}"


def main() -> int:
    names = sys.argv[1:]
    if unknown := [name for name in names if name not in PROGRAMS]:
        print(f"{unknown[0]}: there is {', '.join(PROGRAMS)}", file=sys.stderr)
        return 2
    for name in names:
        print(f"    {name}: {_told(PROGRAMS[name])}", flush=True)
    if not names:
        print("\n".join(PROGRAMS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
