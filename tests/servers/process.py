"""What every server shares: a port, a folder, a process, and the verbs that hurt it.

The port is reserved for the life of the handle by a bound socket that never listens. The server
binds beside it (both set SO_REUSEADDR), and while the server is down the kernel answers
"connection refused". Without it, a port freed by `kill()` could be taken by anyone before
`restart()`, even by a retrying client as its own source port, which then talks to itself.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, TypeVar

from .keeper import keeper, kill_family, signal_family, wait_gone

HOST = "127.0.0.1"
REPO = Path(__file__).resolve().parents[2]
TOOLS = REPO / ".tools"
# Apart from the other packages, as it needs an older redis-py than they do.
ARQ = TOOLS / "arq"
# They choose the path, and the tests run on both.
_NO_SETTINGS = ("PENSTOCK_NO_NATIVE", "PENSTOCK_PURE")

T = TypeVar("T")
AnyServer = TypeVar("AnyServer", bound="Server")


class ServerError(RuntimeError):
    """A server did not do what was asked; the message ends with its log."""


class MissingError(RuntimeError):
    """A server is not installed; the message says what to run."""

    def __init__(self, what: str, command: str) -> None:
        super().__init__(f"{what} is missing; get it with: {command}")


class NotReady(Exception):  # noqa: N818 - an answer, not an error: ask again
    """A probe's way to say: not yet."""


class RefusedError(NotReady):
    """The server answered with an error; while it starts or elects, a reason to ask again."""


def eventually(probe: Callable[[], T], *, within: float, what: str) -> T:
    """The probe's result, as soon as it stops raising NotReady or OSError."""
    deadline = time.monotonic() + within
    while True:
        try:
            return probe()
        except (NotReady, OSError) as error:
            if time.monotonic() > deadline:
                raise ServerError(f"{what}: not within {within:g} s ({error!r})") from error
        time.sleep(0.01)


def package_folder(package: str, pypi_name: str) -> Path:
    """Where a wheel lies, found without importing it (its imports are none of our business)."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise MissingError(f"the package {pypi_name}", f"python -m pip install {pypi_name}")
    return Path(spec.submodule_search_locations[0])


class Port:
    """A port number that stays ours until released."""

    def __init__(self) -> None:
        hold = socket.socket()
        hold.bind((HOST, 0))
        # Only after the bind: set earlier, the kernel might hand one number to two reservations.
        hold.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.number: int = hold.getsockname()[1]
        self.release = weakref.finalize(self, hold.close)


class Server(ABC):
    """A real backend on 127.0.0.1: a context manager that starts it, and the fault verbs."""

    name: ClassVar[str]
    scheme: ClassVar[str] = "http"
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    startup_seconds: ClassVar[float] = 20.0
    host: ClassVar[str] = HOST

    def __init__(self) -> None:
        self._port = Port()
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = keeper().new_folder(self.name)
        self.log_path = self._folder / "log"
        self.data_dir = self._folder / "data"

    @abstractmethod
    def command(self) -> list[str]:
        """The command line, in the foreground, bound to host and port."""

    @abstractmethod
    def ping(self) -> None:
        """Ask the server something in its own protocol; raise NotReady or OSError until it can."""

    def prepare(self) -> None:  # noqa: B027 - most servers fill their folder themselves
        """Fill a fresh data folder."""

    def popen_options(self) -> dict[str, Any]:
        """Further keywords for Popen: env, user."""
        return {}

    @property
    def port(self) -> int:
        return self._port.number

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        return self.process().pid

    @property
    def running(self) -> bool:
        return self._process is not None

    def start(self: AnyServer) -> AnyServer:
        if self._process is not None:
            raise ServerError(f"{self.name} is running already")
        if not self.data_dir.exists():
            self.data_dir.mkdir()
            self.prepare()
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.data_dir,
                start_new_session=True,
                **{"env": environment(), **self.popen_options()},
            )
        keeper().watch(self._process.pid)
        self._await_ready()
        return self

    def stop(self) -> None:
        """End it as its operator would, kill it if that takes too long; port and data stay."""
        if self._process is None:
            return
        self.resume()
        self._process.send_signal(self.stop_signal)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self.kill()
        else:
            self._forget()

    def kill(self) -> None:
        """SIGKILL, the whole family; returns when all of it is gone."""
        process = self.process()
        members = kill_family(process.pid)
        process.wait(5)
        wait_gone(members)
        self._forget()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        signal_family(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        signal_family(self.pid, signal.SIGCONT)

    def restart(self, *, wipe: bool = False) -> None:
        """Up again on the same port, after `kill()` too; `wipe` starts from an empty folder."""
        self.stop()
        if wipe:
            shutil.rmtree(self.data_dir)
        self.start()

    def close(self) -> None:
        """Stop, and give up port and data."""
        self.stop()
        self._port.release()
        shutil.rmtree(self._folder, ignore_errors=True)

    def log_tail(self, lines: int = 20) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def __enter__(self: AnyServer) -> AnyServer:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerError(f"{self.name} is not running: start() or restart() it first")
        return self._process

    def _forget(self) -> None:
        keeper().forget(self.pid)
        self._process = None

    def _await_ready(self) -> None:
        try:
            eventually(self._probe, within=self.startup_seconds, what=f"{self.name} at {self.url}")
        except ServerError as error:
            self.kill()
            raise ServerError(f"{error}\n--- end of its log ---\n{self.log_tail()}") from None
        except BaseException:
            self.kill()
            raise

    def _probe(self) -> None:
        if (code := self.process().poll()) is not None:
            raise ServerError(f"{self.name} exited with {code} before it answered")
        self.ping()


def is_setting(variable: str) -> bool:
    """Whether a command of Penstock would take it for one of its flags."""
    return variable.startswith("PENSTOCK_") and variable not in _NO_SETTINGS


def environment(**extra: str) -> dict[str, str]:
    """The variables of this process, but for settings of Penstock: they come from a developer's own
    shell or from another test, and a token among them would be asked for by every service."""
    kept = {name: value for name, value in os.environ.items() if not is_setting(name)}
    return {**kept, **extra}
