"""Drivers of backends: threads for blocking ones, and one client per event loop for async ones.

No driver has one deadline for a whole call, with name look-up, connecting, and a reply that arrives
in pieces. So a blocking call runs on a thread of its own (`Workers`), and the caller stops waiting
when its time is up. Threads are reused. A call that is abandoned ends by the driver's own timeouts;
while there are too many of those, new calls fail instead of adding to them.

The inbox of an idle thread is in a deque, and whoever takes it out has that thread. There are no
counters that an interrupt could make wrong: a thread that has ended says so itself.

A client of an async driver belongs to the event loop that made it (`PerLoop`).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from ..._queueing import Mutex
from ...core._loops import running_loop
from .._sheet import ConnectionFailedError

__all__ = ["PerLoop", "Workers"]


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
            # Idle before the answer is delivered, so that the caller's next job finds this thread.
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
            # Chosen at the last moment: its task is about to start, unless the thread that chose it
            # was interrupted.
            try:
                return inbox.get(timeout=_IDLE_S)
            except Empty:
                return None
        return None


class PerLoop:
    """`make` is awaited once in every loop that asks; `close` is awaited with what it made."""

    def __init__(
        self, make: Callable[[], Awaitable[Any]], close: Callable[[Any], Awaitable[None]]
    ) -> None:
        self._make = make
        self._close = close
        self._made: dict[asyncio.AbstractEventLoop, asyncio.Task[Any]] = {}

    async def get(self) -> Any:
        loop = running_loop()
        task = self._made.get(loop)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            for other in [other for other in self._made if other.is_closed()]:
                del self._made[other]
            task = self._made[loop] = loop.create_task(self._start())
        if task.done():
            return task.result()
        # A caller that is cancelled does not take the client from the others.
        return await asyncio.shield(task)

    async def aclose(self) -> None:
        """Close the client of the running loop. Those of other loops are theirs to close."""
        task = self._made.pop(running_loop(), None)
        if task is None:
            return
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is None:
            await self._close(task.result())

    async def _start(self) -> Any:
        return await self._make()
