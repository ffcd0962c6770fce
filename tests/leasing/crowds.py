"""A crowd in front of a leased limiter, for tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from penstock import fixed_window
from penstock.leasing import TwoTierLimiter, two_tier
from tests.leasing.far import FarStore

WINDOW = 60_000


def leased(far: FarStore, limit: int = 1_000, **options: Any) -> TwoTierLimiter:
    options = {"batch": 10, "clock": far.clock, **options}
    limiter = two_tier(fixed_window(limit, WINDOW), far, "leased", **options)
    assert isinstance(limiter, TwoTierLimiter)
    return limiter


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def queued(limiter: TwoTierLimiter, key: str) -> int:
    """How many callers have joined the queue of a key, the one that leases included."""
    # Nothing public tells: a caller that waits shows only when it is answered.
    queue = limiter._near.queues.get(key)
    return 0 if queue is None else len(queue)


def waiting(limiter: TwoTierLimiter, key: str = "k") -> int:
    """How many wait for the one that leases."""
    return max(0, queued(limiter, key) - 1)
