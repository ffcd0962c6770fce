"""Threads that wait for a driver in the caller's place.

No driver can be given one deadline for a whole call, name look-up, connecting and a reply that
drips in included. So a blocking call is made on a thread of its own and the caller stops waiting
when its time is up. Threads are used again. What is too late ends by the driver's own timeouts,
unheard; while too many of those are out, new calls are refused instead of adding to them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from .requests import LinkError

__all__ = ["Workers"]

_IDLE_S = 10.0
_MOST = 128

Job = Callable[[], Any]
_Outbox = SimpleQueue[tuple[int, Any]]


class Workers:
    """`run` does the jobs side by side, each on a thread."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[tuple[int, Job, _Outbox] | None]] = []
        self._alive = 0

    def run(self, jobs: Sequence[Job], deadline: float) -> list[Any]:
        """For each job, what it returned, or the exception it raised or was overtaken by."""
        late = LinkError("no reply in time", may_have_run=True)
        answers: list[Any] = [late] * len(jobs)
        outbox: _Outbox = SimpleQueue()
        pending = 0
        for place, job in enumerate(jobs):
            if self._hand_out(place, job, outbox):
                pending += 1
            else:
                text = f"{self._most} calls are waiting for replies already"
                answers[place] = LinkError(text, may_have_run=False)
        while pending:
            try:
                place, answer = outbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                break
            answers[place] = answer
            pending -= 1
        return answers

    def close(self) -> None:
        """Send the idle threads home; the others follow when they are done."""
        with self._lock:
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)

    def _hand_out(self, place: int, job: Job, outbox: _Outbox) -> bool:
        with self._lock:
            if self._idle:
                self._idle.pop().put((place, job, outbox))
                return True
            if self._alive >= self._most:
                return False
            self._alive += 1
        inbox: SimpleQueue[tuple[int, Job, _Outbox] | None] = SimpleQueue()
        inbox.put((place, job, outbox))
        threading.Thread(
            target=self._work, args=(inbox,), name="penstock-worker", daemon=True
        ).start()
        return True

    def _work(self, inbox: SimpleQueue[tuple[int, Job, _Outbox] | None]) -> None:
        while task := self._next(inbox):
            place, job, outbox = task
            try:
                answer = job()
            except Exception as error:
                answer = error
            # Idle before the answer is heard, so that the caller's next job finds this thread.
            with self._lock:
                self._idle.append(inbox)
            outbox.put((place, answer))
            del task, job, outbox, answer
        with self._lock:
            self._alive -= 1

    def _next(self, inbox: SimpleQueue[tuple[int, Job, _Outbox] | None]) -> Any:
        try:
            return inbox.get(timeout=_IDLE_S)
        except Empty:
            with self._lock:
                if inbox in self._idle:
                    self._idle.remove(inbox)
                    return None
        # Chosen at the last moment: the task is there, or about to be.
        return inbox.get()
