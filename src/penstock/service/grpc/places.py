"""How many calls may be at work, and how long one may keep its place before it says what it wants.

The library could count them too, but would turn away health probes with the rest, just when they
matter, and some of its versions stop taking calls altogether once the bound is reached.

A caller may open a call and never send its message. Such calls are looked through now and then,
the oldest first, which costs a call less than a timer of its own would.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

__all__ = ["ARRIVAL_S", "MAX_CONCURRENT", "Places"]

MAX_CONCURRENT = 4_096
"""Calls at work at once, over all connections; one more is answered RESOURCE_EXHAUSTED."""

ARRIVAL_S = 10.0
"""How long the message of a call may take to arrive; a quarter more before it is noticed."""


class Places:
    """`taken` is how many calls are at work, and `waiting` whose message has not come, each since
    when. A task that has waited for too long is taken off the list and then cancelled; one that is
    cancelled and still on it was left by its caller."""

    def __init__(self, limit: int = MAX_CONCURRENT, arrival_s: float = ARRIVAL_S) -> None:
        self.limit = limit
        self.arrival_s = arrival_s
        self.taken = 0
        self.waiting: dict[asyncio.Task[Any] | None, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look through those that wait, from now on."""
        self._timer = asyncio.get_running_loop().call_later(self.arrival_s / 4, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        latest = monotonic() - self.arrival_s
        late = []
        for task, since in self.waiting.items():
            if since > latest:
                break
            late.append(task)
        for task in late:
            del self.waiting[task]
            if task is not None:
                task.cancel()
        self.start()
