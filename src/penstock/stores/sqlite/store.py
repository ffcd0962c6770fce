"""SqliteStore: limits that survive a restart and hold for every process of one host."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from ...core.clock import SystemClock
from ...core.errors import PenstockError
from ...core.store import Store, Transform
from ...core.validation import require_choice, require_instant, require_int
from ..line import AwaitedCall, LateError, Line, settle
from ..sheet import Call, Sheet
from .database import SYNCHRONOUS, Database, Synchronous
from .faults import LockedError, interrupted, late
from .urls import parse_url, require_path
from .worker import Worker

__all__ = ["SqliteStore"]

R = TypeVar("R")

_MOST_CALLS = 256
"""Calls per transaction, so that no other process waits long for the lock."""
_SLICE = 1_000
_READING = ("peek", "forecast")


class SqliteStore(Store):
    """Keeps states in a file, exact across the threads and processes of one host.

    `path` is a file of the store's own; it is created when it is not there, but its folder is not.
    `synchronous` is SQLite's: `"normal"` loses no decision when a process dies, `"full"` none when
    the power fails, at the price of a disk write per check; `"off"` leaves it all to the system.
    `timeout_ms` is how long a call may wait for its turn; past it, it raises `store_unavailable`.

    Async calls are served by a thread of the store: they never block the loop.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: Synchronous = "normal",
        timeout_ms: int = 1_000,
    ) -> None:
        self.path: str = require_path(path)
        self.synchronous: Synchronous = require_choice("synchronous", synchronous, SYNCHRONOUS)
        self.timeout_ms: int = require_int("timeout_ms", timeout_ms, high=3_600_000)
        self._database = Database(self.path, synchronous, timeout_ms)
        self._idle = False
        self._begin()
        _stores.add(self)

    @classmethod
    def from_url(cls, url: str, **options: Any) -> SqliteStore:
        """`sqlite:///relative.db`, `sqlite:////absolute.db`; `?synchronous=` and `?timeout_ms=`."""
        path, settings = parse_url(url)
        return cls(path, **{**settings, **options})

    def init(self) -> None:
        """Create the file and its schema, or see that they are there. The first call of any kind
        does the same; this one finds out before there is traffic."""
        with self._turn():
            pass

    async def ainit(self) -> None:
        """The awaitable twin of `init`."""
        await asyncio.get_running_loop().run_in_executor(None, self.init)

    def apply(self, key: str, transform: Transform[R], now: int, cost: int) -> R:
        result: R = self.apply_many((key,), transform, now, cost)[0]
        return result

    async def aapply(self, key: str, transform: Transform[R], now: int, cost: int) -> R:
        result: R = (await self.aapply_many((key,), transform, now, cost))[0]
        return result

    def apply_many(
        self, keys: Sequence[str], transform: Transform[R], now: int, cost: int
    ) -> list[R]:
        """All keys in one transaction: if one of them fails, none is charged."""
        call = Call(keys, transform, now, cost, self._deadline())
        try:
            self._line.wait(call)
        except LateError as error:
            raise late(self.path, self.timeout_ms, taken=error.taken) from None
        return call.answer()

    async def aapply_many(
        self, keys: Sequence[str], transform: Transform[R], now: int, cost: int
    ) -> list[R]:
        """The awaitable twin of `apply_many`."""
        call = AwaitedCall(keys, transform, now, cost, self._deadline())
        call.loop = asyncio.get_running_loop()
        call.future = call.loop.create_future()
        timer = call.loop.call_later(self.timeout_ms / 1000, self._expire, call)
        self._line.stand(call)
        self._worker.wake()
        try:
            return await call.future
        finally:
            timer.cancel()
            if not call.done:
                self._line.leave(call)

    def sweep(self, now: int | None = None) -> int:
        """Drop what no clock can need any more at `now` (by default, the system's). Returns how
        many keys that were. Works in slices, between which others get their turn."""
        instant = SystemClock().now() if now is None else require_instant(now)
        after: str | None = ""
        total = 0
        while after is not None:
            with self._turn() as database:
                after, dropped = database.sweep_slice(after, instant, _SLICE, self._deadline())
            total += dropped
        return total

    async def asweep(self, now: int | None = None) -> int:
        """The awaitable twin of `sweep`."""
        return await asyncio.get_running_loop().run_in_executor(None, self.sweep, now)

    def close(self) -> None:
        """Close the file. A later call opens it again."""
        self._worker.stop()
        try:
            with self._line.alone(self._deadline()):
                self._database.close()
        except LateError:
            raise late(self.path, self.timeout_ms, taken=False) from None

    async def aclose(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    def __repr__(self) -> str:
        return f"SqliteStore({self.path!r}, synchronous={self.synchronous!r})"

    def _begin(self) -> None:
        self._line = Line(self._lead)
        self._worker = Worker(self._serve_tasks)

    def _deadline(self) -> float:
        return time.monotonic() + self.timeout_ms / 1000

    @contextlib.contextmanager
    def _turn(self) -> Iterator[Database]:
        """The open database, for oneself."""
        deadline = self._deadline()
        try:
            with self._line.alone(deadline):
                self._database.open(deadline)
                yield self._database
        except LateError:
            raise late(self.path, self.timeout_ms, taken=False) from None

    def _lead(self, line: Line, deadline: float) -> None:
        """One transaction for all who stand in line once the lock is ours. Those in front that
        only read are served without it: they do not wait for another process that writes."""
        self._database.open(deadline)
        front = line.front()
        if front is not None and _only_reads(front):
            self._serve(line.take(_MOST_CALLS, _only_reads), writing=False)
        else:
            self._database.begin(deadline)
            self._serve(line.take(_MOST_CALLS), writing=True)

    def _serve(self, calls: list[Call], *, writing: bool) -> None:
        with self._answering(calls):
            sheet = Sheet(self._database.read)
            for call in calls:
                sheet.run(call)
            if writing:
                self._database.commit(sheet.writes)

    @contextlib.contextmanager
    def _answering(self, calls: list[Call]) -> Iterator[None]:
        """Every call that was taken gets its answer, whatever happens."""
        try:
            yield
        except PenstockError as error:
            for call in calls:
                call.error = type(error)(str(error))
        except BaseException:
            self._database.rollback()
            for call in calls:
                call.error = interrupted(self.path)
            raise
        finally:
            settle(calls)

    def _serve_tasks(self) -> None:
        """The worker's round. Who stands too long is withdrawn by the timer of its own loop."""
        while len(self._line):
            deadline = self._deadline()
            with contextlib.suppress(LateError, LockedError), self._line.alone(deadline):
                self._lead_tasks(deadline)

    def _lead_tasks(self, deadline: float) -> None:
        try:
            self._lead(self._line, deadline)
        except LockedError:
            raise
        except PenstockError as error:
            calls = self._line.take_awaited()
            for call in calls:
                call.error = type(error)(str(error))
            settle(calls)

    def _expire(self, call: AwaitedCall) -> None:
        if not call.future.done():
            taken = not self._line.leave(call)
            call.future.set_exception(late(self.path, self.timeout_ms, taken=taken))

    def _before_fork(self) -> None:
        """SQLite does not survive a fork: the child would believe in locks that only the parent
        holds. So the file is closed, at a moment when nobody is using it. Should there be none in
        time, the child is left with a turn that never comes, and its calls fail."""
        self._idle = self._line.enter(self._deadline())
        if self._idle:
            self._database.close()

    def _after_fork_in_parent(self) -> None:
        if self._idle:
            self._line.hand_on()

    def _after_fork_in_child(self) -> None:
        self._begin()
        if not self._idle:
            self._line.enter(self._deadline())


def _only_reads(call: Call) -> bool:
    return call.transform.role in _READING


_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()


def _each(hook: Callable[[SqliteStore], None]) -> Callable[[], None]:
    def call() -> None:
        for store in list(_stores):
            hook(store)

    return call


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_each(SqliteStore._before_fork),
        after_in_parent=_each(SqliteStore._after_fork_in_parent),
        after_in_child=_each(SqliteStore._after_fork_in_child),
    )
