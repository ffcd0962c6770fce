"""Calls whose message is still on its way.

A caller may open a call and never send its message, and each such call holds one of the places that
are bounded. They are looked through now and then, the oldest first, which costs a call less than a
timer of its own would.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

__all__ = ["ARRIVAL_S", "Arrivals"]

ARRIVAL_S = 10.0
"""How long the message of a call may take to arrive; a quarter more before it is noticed."""


class Arrivals:
    """Tasks that wait for a message, each since when. One that has waited for too long is taken
    off the list and then cancelled: a task that is cancelled and still on it, its caller left."""

    def __init__(self, limit_s: float = ARRIVAL_S) -> None:
        self.limit_s = limit_s
        self.waiting: dict[asyncio.Task[Any] | None, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look through the list from now on."""
        self._timer = asyncio.get_running_loop().call_later(self.limit_s / 4, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        latest = monotonic() - self.limit_s
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
