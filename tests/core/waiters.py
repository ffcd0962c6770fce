"""Callers that wait in a queue, for the tests of `acquire`."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from penstock import Decision, Limiter, ManualClock


def until(condition: Callable[[], bool]) -> None:
    """Wait for other threads to bring something about."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.0005)


async def auntil(condition: Callable[[], bool]) -> None:
    """The awaitable twin of `until`."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.0005)


def waiting(limiter: Limiter) -> int:
    """How many callers are in the queues of a limiter, which nothing public tells."""
    return len(limiter._queues)


class WatchedClock(ManualClock):
    """Knows how many wait for it to move."""

    listeners = 0

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        end = super().subscribe(listener)
        self.listeners += 1

        def unsubscribe() -> None:
            self.listeners -= 1
            end()

        return unsubscribe


class QueuedCallers:
    """Threads that join the queue of one limiter, one after the other."""

    def __init__(self, limiter: Limiter, pool: ThreadPoolExecutor) -> None:
        self.limiter, self.pool = limiter, pool
        self.order: list[Any] = []

    def join(self, name: Any, key: str = "k", **options: Any) -> Future[Decision]:
        before = waiting(self.limiter)

        def acquire() -> Decision:
            decision = self.limiter.acquire(key, **options)
            self.order.append(name)
            return decision

        future = self.pool.submit(acquire)
        until(lambda: waiting(self.limiter) > before or future.done())
        return future
