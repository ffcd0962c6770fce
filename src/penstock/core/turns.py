"""Turns: at most one at a time per key, in order of arrival, in both colours.

For work that must not be done twice at once for one key, such as fetching a lease, while other
keys go their way. Threads and tasks stand in the same line (see `waiting.py`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from .waiting import Lines

__all__ = ["Turns"]


class Turns:
    """Per-key mutual exclusion, first come, first served."""

    def __init__(self) -> None:
        self._lines = Lines(None)

    @contextmanager
    def take(self, key: str) -> Iterator[None]:
        """Wait for the turn, hold it, pass it on."""
        woken = threading.Event()
        wake = woken.set
        line = self._lines.join(key, wake)
        try:
            while line.tickets[0] is not wake:
                woken.wait()
                woken.clear()
            yield
        finally:
            self._lines.leave(key, line, wake)

    @asynccontextmanager
    async def atake(self, key: str) -> AsyncIterator[None]:
        """The awaitable twin of `take`."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(woken.set)

        line = self._lines.join(key, wake)
        try:
            while line.tickets[0] is not wake:
                await woken.wait()
                woken.clear()
            yield
        finally:
            self._lines.leave(key, line, wake)
