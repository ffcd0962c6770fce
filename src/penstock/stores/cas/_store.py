"""CasStore: sync and async calls. A backend adds `serve` and `aserve`, the I/O.

Threads that wait for a driver in the caller's place.

No driver can be given one deadline for a whole call, name look-up, connecting and a reply that
drips in included. So a blocking call is made on a thread of its own and the caller stops waiting
when its time is up. Threads are used again. What is too late ends by the driver's own timeouts,
unheard; while too many of those are out, new calls are refused instead of adding to them.

Who is idle stands in a deque, and whoever takes an inbox out of it has that thread. Nothing is
counted that an interrupt could miscount: a thread that has ended says so itself.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, TypeVar

from ..._queueing import Mutex, Queues
from ..._queueing.fork import ForkAware, watch_forks
from ...core._store import Store
from ...core._transform import Step, Transform, looked_at
from ...core._validation import reject, require_int
from .._sheet import Call, ConnectionFailedError
from ._callers import SEVERAL, AsyncCaller, KeyQueue, SyncCaller
from ._memory import RaceMemory
from ._requests import AnyRequest

__all__ = ["CasStore", "Workers"]


_IDLE_S = 10.0
_MOST = 128

Job = Callable[[], Any]
_Outbox = SimpleQueue[tuple[int, Any]]
_Inbox = SimpleQueue[tuple[int, Job, _Outbox] | None]


class Workers:
    """`run` does the jobs side by side, each on a thread."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._mutex = Mutex()
        self._idle: deque[_Inbox] = deque()
        self._threads: list[threading.Thread] = []

    def run(self, jobs: Sequence[Job], deadline: float) -> list[Any]:
        """For each job, what it returned, or the exception it raised or was overtaken by."""
        late = ConnectionFailedError("no reply in time", may_have_run=True)
        answers: list[Any] = [late] * len(jobs)
        outbox: _Outbox = SimpleQueue()
        pending = 0
        for place, job in enumerate(jobs):
            if self._hand_out(place, job, outbox):
                pending += 1
            else:
                text = f"{self._most} calls are waiting for replies already"
                answers[place] = ConnectionFailedError(text, may_have_run=False)
        while pending:
            try:
                place, answer = outbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                break
            answers[place] = answer
            pending -= 1
        return answers

    def close(self) -> None:
        """Send the idle threads home; the others follow when they have been idle for a while."""
        while (inbox := self._take_idle()) is not None:
            inbox.put(None)

    def _hand_out(self, place: int, job: Job, outbox: _Outbox) -> bool:
        inbox = self._take_idle() or self._start()
        if inbox is None:
            return False
        inbox.put((place, job, outbox))
        return True

    def _take_idle(self) -> _Inbox | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _start(self) -> _Inbox | None:
        """Another thread, unless there are too many."""
        with self._mutex.hold():
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            if len(self._threads) >= self._most:
                return None
            inbox: _Inbox = SimpleQueue()
            thread = threading.Thread(
                target=self._work, args=(inbox,), name="penstock-worker", daemon=True
            )
            thread.start()
            self._threads.append(thread)
        return inbox

    def _work(self, inbox: _Inbox) -> None:
        while task := self._next(inbox):
            place, job, outbox = task
            try:
                answer = job()
            except Exception as error:
                answer = error
            # Idle before the answer is heard, so that the caller's next job finds this thread.
            self._idle.append(inbox)
            outbox.put((place, answer))
            del task, job, outbox, answer

    def _next(self, inbox: _Inbox) -> Any:
        """The next task, or None when there has been none for a while."""
        try:
            return inbox.get(timeout=_IDLE_S)
        except Empty:
            pass
        try:
            self._idle.remove(inbox)
        except ValueError:
            # Chosen at the last moment: the task is about to be there, unless who chose was
            # interrupted.
            try:
                return inbox.get(timeout=_IDLE_S)
            except Empty:
                return None
        return None


R = TypeVar("R")

_ABREAST = 32
"""Distinct keys of one call that are under way together."""


class CasStore(Store, ForkAware):
    """A store whose backend compares and swaps.

    `timeout_ms` is how long a call may take, waiting its turn included; past it the call raises
    `store_unavailable`. A call of many keys works on up to 32 at once, and has that time for all
    of them.
    """

    max_record_bytes: ClassVar[int] = 2**20
    """The largest record that the backend takes."""

    most_keys_at_once: int = 0
    """How many keys the backend reads at one instant, and writes all or none of; 0 if it cannot,
    or could write only one."""

    compares: ClassVar[bool] = True
    """Whether a write is refused when its key has changed. Without that, nothing may be
    remembered."""

    def __init__(self, timeout_ms: int) -> None:
        self.timeout_ms: int = require_int("timeout_ms", timeout_ms, high=3_600_000)
        self._begin()
        watch_forks(self)

    def _begin(self) -> None:
        self.queues: Queues[KeyQueue] = Queues(KeyQueue)
        self.memory: RaceMemory = RaceMemory() if self.compares else RaceMemory(0)

    @abstractmethod
    def serve(self, requests: Sequence[AnyRequest], deadline: float) -> list[Any]:
        """Answer each request, or give the exception it met: a ConnectionFailedError, if the
        backend could not be asked or heard. ReadAll and SwapAll are for those that have
        `most_keys_at_once`."""

    @abstractmethod
    async def aserve(self, requests: Sequence[AnyRequest], deadline: float) -> list[Any]:
        """The awaitable twin of `serve`."""

    def _prepare(self) -> None:
        """Make the client, which may take longer than a call, and is not part of one."""

    async def _aprepare(self) -> None:
        """The awaitable twin of `_prepare`."""

    def _after_fork_in_child(self) -> None:
        """Forget, in a child, what the parent uses."""
        self._begin()

    def apply(self, key: str, transform: Transform[R], now: int, cost: int) -> R:
        result: R = self.apply_many((key,), transform, now, cost)[0]
        return result

    async def aapply(self, key: str, transform: Transform[R], now: int, cost: int) -> R:
        result: R = (await self.aapply_many((key,), transform, now, cost))[0]
        return result

    def apply_many(
        self, keys: Sequence[str], transform: Transform[R], now: int, cost: int
    ) -> list[R]:
        self._prepare()
        results: dict[str, Iterator[R]] = {}
        deadline = self._deadline()
        caller = SyncCaller(self, deadline)
        for chunk in _chunks(keys):
            results.update(caller.run(_calls(chunk, transform, now, cost, deadline)))
        return [next(results[key]) for key in keys]

    async def aapply_many(
        self, keys: Sequence[str], transform: Transform[R], now: int, cost: int
    ) -> list[R]:
        await self._aprepare()
        results: dict[str, Iterator[R]] = {}
        deadline = self._deadline()
        caller = AsyncCaller(self, deadline)
        for chunk in _chunks(keys):
            results.update(await caller.run(_calls(chunk, transform, now, cost, deadline)))
        return [next(results[key]) for key in keys]

    def apply_all(self, steps: Sequence[Step], now: int) -> list[Any]:
        queue = self._queue_for(steps)
        if queue is None:
            return super().apply_all(steps, now)
        self._prepare()
        deadline = self._deadline()
        call = Call(looked_at(steps), now, deadline, is_whole=True)
        return list(SyncCaller(self, deadline).run({queue: call})[queue])

    async def aapply_all(self, steps: Sequence[Step], now: int) -> list[Any]:
        queue = self._queue_for(steps)
        if queue is None:
            return await super().aapply_all(steps, now)
        await self._aprepare()
        deadline = self._deadline()
        call = Call(looked_at(steps), now, deadline, is_whole=True)
        return list((await AsyncCaller(self, deadline).run({queue: call}))[queue])

    def is_atomic(self, lead: str) -> bool:
        return self.most_keys_at_once > 0

    def _queue_for(self, steps: Sequence[Step]) -> str | None:
        """Where steps wait that are one decision; None, if they cannot be written as one."""
        keys = {step[0] for step in steps}
        if len(keys) == 1 and self.compares:
            return keys.pop()
        if not self.most_keys_at_once or not keys:
            return None
        if len(keys) > self.most_keys_at_once:
            reject(
                f"{type(self).__name__} decides on at most {self.most_keys_at_once} keys at once, "
                f"not {len(keys)}"
            )
        return SEVERAL

    def _deadline(self) -> float:
        return time.monotonic() + self.timeout_ms / 1000


def _calls(
    counts: dict[str, int], transform: Transform[Any], now: int, cost: int, deadline: float
) -> dict[str, Call]:
    return {
        key: Call([(key, transform, cost, False)] * count, now, deadline)
        for key, count in counts.items()
    }


def _chunks(keys: Sequence[str]) -> Iterator[dict[str, int]]:
    """The distinct keys with the number of times they occur, some at a time, in order."""
    counts: dict[str, int] = {}
    for key in keys:
        counts[key] = counts.get(key, 0) + 1
    items = list(counts.items())
    for start in range(0, len(items), _ABREAST):
        yield dict(items[start : start + _ABREAST])
