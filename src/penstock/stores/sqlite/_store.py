"""`SqliteStore`: limits that survive a restart and hold for every process of one host.

URLs are as in SQLAlchemy: three slashes and then the path. Async callers are served by a thread, so
that an event loop never touches a file.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from types import FrameType
from typing import Any, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from ..._queueing import Batch, GroupCommit, LateError, ThreadWaiter, Waiter
from ..._queueing.fork import Background, ForkAware, watch_forks
from ...core._clock import SystemClock
from ...core._errors import PenstockError
from ...core._loops import running_loop
from ...core._steps import Step, looked_at
from ...core._store import Store, from_its_url
from ...core._transform import READING, Transform
from ...core._validation import reject, require_choice, require_instant, require_int
from .._sheet import Call, Sheet
from ._database import SYNCHRONOUS, Database, LockedError, Synchronous, interrupted, late

__all__ = ["SqliteStore", "Worker", "parse_url", "require_path"]


def parse_url(url: str) -> tuple[str, dict[str, Any]]:
    """The path, and the options by name."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = SplitResult("sqlite", "", "", "", "")
    if parts.netloc or len(parts.path) < 2:
        reject(
            "a SQLite URL is sqlite:///relative.db or sqlite:////absolute.db, with three slashes "
            "before the path"
        )
    if parts.fragment:
        reject("a SQLite URL has no fragment; write '#' in a path as %23")
    options: dict[str, Any] = {}
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        if name == "timeout_ms" and text.isdecimal():
            options[name] = int(text)
        elif name == "synchronous":
            options[name] = text.lower()
        else:
            shown = f"this {name}" if name.isidentifier() else "what it was given"
            reject(
                "sqlite:// takes ?synchronous=off|normal|full|extra and ?timeout_ms=<number>, "
                f"not {shown}"
            )
    return unquote(parts.path[1:]), options


def require_path(path: Any) -> str:
    """Absolute, so that a change of the working folder does not change the limit."""
    if not isinstance(path, (str, os.PathLike)):
        reject(f"path must be the path of a file, not {path!r}")
    text = os.fspath(path)
    if not isinstance(text, str) or not text or "\0" in text:
        reject(f"path must be the path of a file as text, not {text!r}")
    if text == ":memory:":
        reject("a SqliteStore is a file; for limits inside one process use MemoryStore")
    return os.path.abspath(text)


class Worker:
    """Runs `serve` after every `wake`, at least once for all wakes so far."""

    def __init__(self, commit: GroupCommit[Any], serve: Callable[[], None]) -> None:
        self._commit = commit
        self._serve = serve
        self._background = Background("penstock-sqlite")

    def wake(self) -> None:
        self._background.submit(self._serve)

    def stop(self) -> None:
        """End the thread after the work so far. A later wake starts another."""
        self._background.stop()

    # What a task that waits for its call needs:

    def withdraw(self, call: Any) -> bool:
        return self._commit.withdraw(call)

    def look(self) -> None:
        """Something keeps a task waiting: the wake may have been interrupted."""
        self.wake()


R = TypeVar("R")

_MOST_CALLS = 256
"""Calls per transaction, so that no other process waits long for the lock."""
_SLICE = 1_000


class SqliteStore(Store, ForkAware):
    """Keeps states in a file, exact across the threads and processes of one host.

    `path` is a file that belongs to the store; it is created if missing, but its folder is not.
    `synchronous` is the setting of SQLite: `"normal"` loses no decision when a process dies,
    `"full"` none when the power fails, at the price of a disk write per check; `"off"` leaves
    writing to the operating system. A call that waits longer than `timeout_ms` raises
    `store_unavailable`.

    Async calls are served by a thread of the store, so they never block the event loop.
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
        self._forking: Waiter | None = None
        self._begin()
        watch_forks(self)

    @classmethod
    @from_its_url
    def from_url(cls, url: str, **options: Any) -> SqliteStore:
        """`sqlite:///relative.db`, `sqlite:////absolute.db`; `?synchronous=` and `?timeout_ms=`."""
        path, settings = parse_url(url)
        return cls(path, **{**settings, **options})

    def init(self) -> None:
        """Create the file and its schema, or check that they are valid. The first call of any kind
        does the same; this one reports problems before there is traffic."""
        self._in_turn(self._database.open)

    async def ainit(self) -> None:
        """The awaitable twin of `init`."""
        await running_loop().run_in_executor(None, self.init)

    def apply(self, key: str, transform: Transform[R], now: int, cost: int) -> R:
        result: R = self._run(Call(((key, transform, cost, False),), now, self._deadline()))[0]
        return result

    async def aapply(self, key: str, transform: Transform[R], now: int, cost: int) -> R:
        call = Call(((key, transform, cost, False),), now, self._deadline())
        result: R = (await self._arun(call))[0]
        return result

    def apply_many(
        self, keys: Sequence[str], transform: Transform[R], now: int, cost: int
    ) -> list[R]:
        """All keys in one transaction: if one of them fails, none is charged."""
        steps = [(key, transform, cost, False) for key in keys]
        return self._run(Call(steps, now, self._deadline()))

    async def aapply_many(
        self, keys: Sequence[str], transform: Transform[R], now: int, cost: int
    ) -> list[R]:
        """The awaitable twin of `apply_many`."""
        steps = [(key, transform, cost, False) for key in keys]
        return await self._arun(Call(steps, now, self._deadline()))

    def apply_all(self, steps: Sequence[Step], now: int) -> list[Any]:
        """All steps in one transaction."""
        return self._run(Call(looked_at(steps), now, self._deadline(), is_whole=True))

    async def aapply_all(self, steps: Sequence[Step], now: int) -> list[Any]:
        """The awaitable twin of `apply_all`."""
        return await self._arun(Call(looked_at(steps), now, self._deadline(), is_whole=True))

    def is_atomic(self, lead: str) -> bool:
        return True

    def sweep(self, now: int | None = None) -> int:
        """Delete keys that expired long enough ago to be safe with any clock, at `now` (by default,
        of the system clock). Returns how many. Works in slices, between which other calls are
        served."""
        instant = SystemClock().now() if now is None else require_instant(now)
        after: str | None = ""
        total = 0
        while after is not None:
            after, dropped = self._in_turn(partial(self._sweep_slice, after, instant))
            total += dropped
        return total

    async def asweep(self, now: int | None = None) -> int:
        """The awaitable twin of `sweep`."""
        return await running_loop().run_in_executor(None, self.sweep, now)

    def close(self) -> None:
        """Close the file. A later call opens it again."""
        self._worker.stop()
        self._in_turn(lambda _deadline: self._database.close())

    async def aclose(self) -> None:
        await running_loop().run_in_executor(None, self.close)

    def __repr__(self) -> str:
        return f"SqliteStore({self.path!r}, synchronous={self.synchronous!r})"

    def _begin(self) -> None:
        self._commit: GroupCommit[Call] = GroupCommit(
            self._serve, self._mend, lambda _call: interrupted(self.path)
        )
        self._worker = Worker(self._commit, self._serve_tasks)

    def _run(self, call: Call) -> list[Any]:
        try:
            self._commit.run(call)
        except LateError as error:
            raise late(self.path, self.timeout_ms, in_doubt=error.in_doubt) from None
        return call.answer()

    async def _arun(self, call: Call) -> list[Any]:
        from ..._queueing.tasks import Reply

        reply = Reply(call, self._worker, running_loop())
        self._commit.submit(call)
        self._worker.wake()
        try:
            await reply.wait()
        except LateError as error:
            raise late(self.path, self.timeout_ms, in_doubt=error.in_doubt) from None
        return call.answer()

    def _deadline(self) -> float:
        return time.monotonic() + self.timeout_ms / 1000

    def _in_turn(self, work: Callable[[float], R]) -> R:
        """Use the database for something else than calls."""
        deadline = self._deadline()
        try:
            return self._commit.in_turn(deadline, lambda _batch: work(deadline))
        except LateError:
            raise late(self.path, self.timeout_ms, in_doubt=False) from None

    def _sweep_slice(self, after: str, now: int, deadline: float) -> tuple[str | None, int]:
        self._database.open(deadline)
        return self._database.sweep_slice(after, now, _SLICE, deadline)

    def _serve(self, batch: Batch[Call], deadline: float) -> None:
        """One transaction for all waiting calls, once the file is locked. Calls at the front that
        only read are served without the lock, so they do not wait for another process's write."""
        self._database.open(deadline)
        first = self._commit.first()
        if first is not None and _only_reads(first):
            self._answer(batch.take(_MOST_CALLS, _only_reads), self._read)
        else:
            self._database.begin(deadline)
            self._answer(batch.take(_MOST_CALLS), self._write)

    def _answer(self, calls: list[Call], run: Callable[[list[Call]], None]) -> None:
        """Answer every call with its results, or with the error of the transaction."""
        try:
            run(calls)
        except PenstockError as error:
            for call in calls:
                call.fail(copy(error))
        for call in calls:
            call.open = ()
            call.in_flight = False

    def _read(self, calls: list[Call]) -> None:
        """Serve calls that only read; keys of one decision are read at one instant."""
        needs_snapshot = any(call.is_whole for call in calls)
        if needs_snapshot:
            self._database.begin_reading()
        sheet = Sheet(self._database.read)
        for call in calls:
            sheet.run(call)
        if needs_snapshot:
            self._database.commit({})

    def _write(self, calls: list[Call]) -> None:
        for call in calls:
            call.in_flight = True
        sheet = Sheet(self._database.read)
        for call in calls:
            # Not for a caller that has given up meanwhile, with an error that nothing was charged.
            if not call.has_left:
                sheet.run(call)
        for call in calls:
            call.in_flight = bool(call.writing)
        self._database.commit(sheet.writes)

    def _mend(self, batch: Batch[Call]) -> None:
        """After an interrupt: a transaction that is still open has written nothing."""
        if self._database.rollback():
            for call in batch.calls:
                call.in_flight = False

    def _serve_tasks(self) -> None:
        """One round of the worker. A call that waits too long is withdrawn by its loop's timer."""
        while self._commit.pending or self._commit.unfinished is not None:
            deadline = self._deadline()
            with contextlib.suppress(LateError, LockedError):
                self._commit.in_turn(deadline, partial(self._serve_for_tasks, deadline))

    def _serve_for_tasks(self, deadline: float, batch: Batch[Call]) -> None:
        if not self._commit.pending:
            return
        try:
            self._serve(batch, deadline)
        except LockedError:
            raise
        except PenstockError as error:
            for call in batch.take_all(_is_of_a_task):
                call.fail(copy(error))

    def _before_fork(self, forker: FrameType) -> None:
        """SQLite does not support forks: the child would rely on locks that only the parent holds.
        So the file is closed when nobody is using it, and stays closed until the process has
        forked. If that is not possible in time, the calls of the child fail."""
        self._forking = waiter = _Forker(forker)
        if self._commit.enter(waiter, self._deadline()):
            self._database.close()
        else:
            self._commit.leave(waiter)
            self._forking = None

    def _after_fork_in_parent(self) -> None:
        if self._forking is not None:
            self._commit.leave(self._forking)
            self._forking.end()

    def _after_fork_in_child(self) -> None:
        in_use = self._forking is None
        self._begin()
        if in_use:
            self._commit.join(_Parent())


class _Forker(ThreadWaiter):
    """The lead of a thread that forks, held until its frame goes on behind the fork."""

    __slots__ = ("_at",)

    def __init__(self, frame: FrameType) -> None:
        super().__init__(frame)
        self._at = frame.f_lasti

    def is_running(self) -> bool:
        frame = self._frame
        return super().is_running() and frame is not None and frame.f_lasti == self._at


class _Parent(Waiter):
    """Leads forever, in the child of a fork that happened while its parent used the file."""

    def is_running(self) -> bool:
        return True

    def wake(self) -> None:
        """There is no waiter to wake."""


def _only_reads(call: Call) -> bool:
    return call.is_all_of(READING)


def _is_of_a_task(call: Call) -> bool:
    return call.waiter is not None and call.waiter.crowd is not None
