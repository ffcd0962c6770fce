"""Following a policy file: read again when it changes, and on SIGHUP.

The content is compared, and not the file's dates: a symlink that points elsewhere now, a file that
was replaced or written in place are all seen, and one that was only touched is not. A change counts
once two looks in a row agree on it, so that a file caught half-written is not taken for the whole.
SIGHUP is obeyed at once.

Nothing of it is in the way of requests. Reading is left to a thread, which may be stuck for as long
as a file system is: the next look comes when it is back, and the process ends without it. A long
file is parsed by another process.

A file is parsed and validated before anything changes. One that is bad is reported, by the log, by
`Service.ready` and by the count of reloads, and what was served before is served on. To make what
the file says is long work on the event loop, so it is done in slices, with requests answered in
between.

Others may want to hear of a SIGHUP, too, such as who reads certificates: see `heard`.
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

# A gRPC call comes round to the loop some ten times, and may meet a slice each time.
_SLICE_S = 0.002


async def in_slices(steps: Iterable[T]) -> list[T]:
    """What `steps` brings. Each step must be short; between some of them the loop moves on."""
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
    """Who serves what the file says."""

    @property
    def file(self) -> PolicyFile: ...

    async def take_up(self, file: PolicyFile) -> None: ...

    def reload_failed(self, problem: str) -> None: ...


@dataclass(frozen=True, slots=True)
class _Found:
    """What a look at the file found: its bytes, or why there are none. `digest` tells one find
    from another."""

    digest: str
    raw: bytes = b""
    problem: str = ""


class Reloader:
    """Keeps a service in step with one file. `accept` raises what is wrong with policies that are
    good by themselves, and cannot be served here."""

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
        # Two at once could end with the older text.
        self._one_at_a_time = asyncio.Lock()

    async def run(self) -> None:
        """Look, until cancelled. Nothing else ends it."""
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
        """See whether the file has changed, and reload it if so. True if it was reloaded."""
        async with self._one_at_a_time:
            found = await self._read()
            agreed, self._seen = found.digest == self._seen, found.digest
            if not agreed or (found.digest == self._settled and not self._is_due()):
                return False
            await self._take(found)
            return True

    async def reload(self) -> bool:
        """Read the file and serve it if it is good. True if it is served."""
        async with self._one_at_a_time:
            return await self._take(await self._read())

    async def _read(self) -> _Found:
        """What the file holds; if no word comes from the disk, that."""
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
                # No fault of the file's, such as a machine that has no process to spare.
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
        """Whether what went wrong before is to be tried again, with the same file."""
        return asyncio.get_running_loop().time() >= self._retry_at

    def _report(self, error: Exception) -> None:
        """Log whatever went wrong, a fault of ours included, and keep it as the reload's error."""
        known = isinstance(error, PenstockError)
        told = str(error) if known else f"{self._path}: {type(error).__name__}: {error}"
        self._follower.reload_failed(told)
        _log.error("the policies before it are served on: %s", told)

    async def _wait(self) -> None:
        try:
            await asyncio.wait_for(self._asked.wait(), self._every_s)
        except asyncio.TimeoutError:
            return


def _find(path: str) -> _Found:
    try:
        raw = read_policy_file(path)
    except PenstockError as error:
        return _Found(str(error), problem=str(error))
    return _Found(hashlib.sha256(raw).hexdigest(), raw)


async def on_thread(work: Callable[..., T], *args: Any) -> T:
    """Wait for `work` on a thread of its own. Unlike those of an executor it may be stuck for ever
    and the process ends all the same."""
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
        # The loop may be closed by then.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, daemon=True, name="penstock-file").start()
    return await future


_listeners: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}
_handlers_before: dict[asyncio.AbstractEventLoop, Any] = {}


@contextlib.contextmanager
def heard(listener: Callable[[], None]) -> Iterator[None]:
    """Have the running loop call `listener` on each SIGHUP while the block is open. Signals reach
    the main thread only, and some systems have no SIGHUP: there it is never called. Afterwards a
    hangup means what it meant before: one that was ignored must not end a service that is still
    answering its last calls."""
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
