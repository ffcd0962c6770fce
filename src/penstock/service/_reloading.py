"""Reloading a policy file when it changes, and on SIGHUP.

Changes are detected by the content, not by the file's dates: so it does not matter whether the file
was replaced, written in place or is a symlink that points elsewhere, and a touch does nothing. A
change counts once two reads in a row agree, so that a half-written file is not taken for a whole
one. SIGHUP reloads at once.

Requests are not delayed. The file is read by a thread, which may be stuck as long as its file
system is: there is no further read until it is back, and the process can end without it. A long
file is parsed in another process.

A file is parsed and validated before anything changes. An invalid file is reported, by the log, by
`Service.ready` and by the metrics, and the previous policies are still served. Building the new
table takes long, so it is done in slices between which the event loop serves requests.

Other parts, such as the certificates, are reloaded on SIGHUP too: see `heard`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol, TypeVar

from ..config import PolicyFile
from ..config._loading import parse_apart, read_policy_file
from ..core._errors import PenstockError

__all__ = ["Reloader", "heard", "in_slices", "on_thread"]


T = TypeVar("T")

# Short, because a gRPC call takes some ten turns of the loop, each of which may follow a slice.
_SLICE_S = 0.002


async def in_slices(steps: Iterable[T]) -> list[T]:
    """Run through `steps`, each of which must be short, and let the event loop run in between.
    Returns their values."""
    made = []
    until = perf_counter() + _SLICE_S
    for step in steps:
        made.append(step)
        if perf_counter() >= until:
            await asyncio.sleep(0)
            until = perf_counter() + _SLICE_S
    return made


_log = logging.getLogger("penstock.service")

_READ_S = 5.0
_WARNED = 20
_RETRY_S = 10.0


class Follower(Protocol):
    """What follows the file: a service, or a supervisor."""

    @property
    def file(self) -> PolicyFile: ...

    async def take_up(self, file: PolicyFile) -> None: ...

    def reload_failed(self, problem: str) -> None: ...


@dataclass(frozen=True, slots=True)
class _Found:
    """The result of reading the file: its bytes, or the problem. `digest` identifies it."""

    digest: str
    raw: bytes = b""
    problem: str = ""


class Reloader:
    """Keeps a service up to date with one file. `accept` raises if policies that are valid cannot
    be served by this service."""

    def __init__(
        self,
        follower: Follower,
        path: str,
        every_s: float = 0.5,
        accept: Callable[[PolicyFile], None] | None = None,
    ) -> None:
        self._follower = follower
        self._accept = accept
        self._path = path
        self._every_s = every_s
        self._settled = follower.file.digest
        self._seen = self._settled
        self._retry_at = float("inf")
        self._asked = asyncio.Event()
        self._reading: asyncio.Future[_Found] | None = None
        # Of two at once, the older content could win.
        self._one_at_a_time = asyncio.Lock()

    async def run(self) -> None:
        """Follow the file until cancelled; no error ends it."""
        with heard(self._asked.set):
            while True:
                await self._wait()
                try:
                    await self._turn()
                except Exception as error:
                    self._report(error)

    async def _turn(self) -> None:
        if self._asked.is_set():
            self._asked.clear()
            await self.reload()
        else:
            await self.look()

    async def look(self) -> bool:
        """Reload the file if it has changed. True if it was reloaded."""
        async with self._one_at_a_time:
            found = await self._read()
            agreed, self._seen = found.digest == self._seen, found.digest
            if not agreed or (found.digest == self._settled and not self._is_due()):
                return False
            await self._take(found)
            return True

    async def reload(self) -> bool:
        """Read the file and serve it if it is valid. True if it is served."""
        async with self._one_at_a_time:
            return await self._take(await self._read())

    async def _read(self) -> _Found:
        """The content of the file, or a problem if the file system does not answer."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(on_thread(_find, self._path))
        done, _ = await asyncio.wait((self._reading,), timeout=_READ_S)
        if not done:
            problem = (
                f"{self._path}: cannot be read: no answer from its file system in {_READ_S:g} s"
            )
            return _Found(problem, problem=problem)
        reading, self._reading = self._reading, None
        return reading.result()

    async def _take(self, found: _Found) -> bool:
        self._settled, self._retry_at = found.digest, float("inf")
        try:
            file = await self._parse(found)
            await self._follower.take_up(file)
        except Exception as error:
            self._report(error)
            if not isinstance(error, PenstockError):
                # Not caused by the file: for example, no process could be started.
                self._retry_at = asyncio.get_running_loop().time() + _RETRY_S
            return False
        for warning in file.warnings[:_WARNED]:
            _log.warning("%s", warning)
        return True

    async def _parse(self, found: _Found) -> PolicyFile:
        if found.problem:
            raise PenstockError(found.problem)
        file = await on_thread(parse_apart, found.raw, self._path)
        if self._accept is not None:
            self._accept(file)
        return file

    def _is_due(self) -> bool:
        """Whether to try the same file again, after a failure that it did not cause."""
        return asyncio.get_running_loop().time() >= self._retry_at

    def _report(self, error: Exception) -> None:
        """Log the error, a bug included, and report it as the error of the reload."""
        known = isinstance(error, PenstockError)
        told = str(error) if known else f"{self._path}: {type(error).__name__}: {error}"
        self._follower.reload_failed(told)
        _log.error("reload failed, the previous policies are still served: %s", told)

    async def _wait(self) -> None:
        # Not `wait_for`: before Python 3.12 it ignores a cancellation that comes together with the
        # event, and a service that stops would wait for this task forever.
        asked = asyncio.ensure_future(self._asked.wait())
        try:
            await asyncio.wait((asked,), timeout=self._every_s)
        finally:
            asked.cancel()


def _find(path: str) -> _Found:
    try:
        raw = read_policy_file(path)
    except PenstockError as error:
        return _Found(str(error), problem=str(error))
    return _Found(hashlib.sha256(raw).hexdigest(), raw)


async def on_thread(work: Callable[..., T], *args: Any) -> T:
    """Wait for `work` on a thread of its own. Unlike a thread of an executor, it does not keep the
    process from ending if it is stuck."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failure = None, None
        try:
            result = work(*args)
        except BaseException as error:
            failure = error
        # The loop may have been closed.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, daemon=True, name="penstock-file").start()
    return await future


_listeners: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}
_handlers_before: dict[asyncio.AbstractEventLoop, Any] = {}


@contextlib.contextmanager
def heard(listener: Callable[[], None]) -> Iterator[None]:
    """Call `listener` on each SIGHUP during the block, in the running loop. Only in the main
    thread, and on systems that have SIGHUP. Afterwards the previous handler is restored: a SIGHUP
    that was ignored before must not end a service that is still answering its last calls."""
    loop = asyncio.get_running_loop()
    listeners = _listeners.setdefault(loop, [])
    listeners.append(listener)
    if len(listeners) == 1:
        _listen(loop)
    try:
        yield
    finally:
        listeners.remove(listener)
        if not listeners:
            del _listeners[loop]
            _listen_no_more(loop)


def _listen(loop: asyncio.AbstractEventLoop) -> None:
    if threading.current_thread() is threading.main_thread():
        with contextlib.suppress(AttributeError, NotImplementedError):
            before = signal.getsignal(signal.SIGHUP)
            loop.add_signal_handler(signal.SIGHUP, _tell, loop)
            _handlers_before[loop] = before


def _listen_no_more(loop: asyncio.AbstractEventLoop) -> None:
    if loop in _handlers_before:
        with contextlib.suppress(RuntimeError):
            loop.remove_signal_handler(signal.SIGHUP)
        signal.signal(signal.SIGHUP, _handlers_before.pop(loop))


def _tell(loop: asyncio.AbstractEventLoop) -> None:
    for listener in list(_listeners.get(loop, ())):
        listener()
