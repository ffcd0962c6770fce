"""One minute of bursty traffic, and what each strategy makes of it.

The same requests go to every strategy, through the strategies themselves: nothing here knows how
they decide. Instants are real ones, a minute of wall-clock time that starts on the minute.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

from penstock import (
    Strategy,
    fixed_window,
    gcra,
    sliding_window,
    sliding_window_log,
    token_bucket,
)

__all__ = ["LIMIT", "REQUESTS", "SPAN_MS", "STRATEGIES", "WINDOW_MS", "Replay", "replay"]

START_MS = 1_767_268_800_000  # 2026-01-01, 12:00:00 UTC
SPAN_MS = 60_000
LIMIT, WINDOW_MS = 20, 10_000

STRATEGIES: dict[str, Strategy] = {
    "gcra": gcra(LIMIT, WINDOW_MS),
    "gcra, burst=5": gcra(LIMIT, WINDOW_MS, burst=5),
    "token_bucket": token_bucket(LIMIT, LIMIT * 1000 / WINDOW_MS),
    'fixed_window, "epoch"': fixed_window(LIMIT, WINDOW_MS),
    'fixed_window, "first"': fixed_window(LIMIT, WINDOW_MS, "first"),
    "sliding_window": sliding_window(LIMIT, WINDOW_MS),
    "sliding_window, buckets=1": sliding_window(LIMIT, WINDOW_MS, buckets=1),
    "sliding_window_log": sliding_window_log(LIMIT, WINDOW_MS),
}


def _evenly(count: int, start_ms: int, end_ms: int) -> list[int]:
    return [start_ms + (end_ms - start_ms) * number // count for number in range(count)]


# Offsets from the start, in ms: a burst across the boundary of two windows, a flood at two and a
# half times the rate, a spike after a rest, and traffic at exactly the rate.
REQUESTS = [
    *_evenly(2, 1_500, 6_500),
    *_evenly(72, 8_900, 12_500),
    *_evenly(60, 22_000, 34_000),
    *_evenly(50, 44_600, 45_100),
    *_evenly(28, 46_000, 60_000),
]


@dataclass(frozen=True)
class Replay:
    """Which requests were admitted and which denied, as offsets from the start."""

    admitted: list[int]
    denied: list[int]

    def trailing(self, at_ms: int) -> int:
        """How many were admitted in the window that ends at `at_ms`."""
        end = bisect_right(self.admitted, at_ms)
        return end - bisect_right(self.admitted, at_ms - WINDOW_MS)

    @property
    def most_trailing(self) -> int:
        return max(self.trailing(at_ms) for at_ms in self.admitted)


def replay(strategy: Strategy) -> Replay:
    """Put the requests to a strategy, one by one, as a store would."""
    admitted: list[int] = []
    denied: list[int] = []
    state: Any = None
    expires = 0
    for offset in REQUESTS:
        now = START_MS + offset
        outcome = strategy.check(state if now < expires else None, now, 1)
        if outcome.persist:
            state, expires = outcome.state, now + outcome.ttl_ms
        (admitted if outcome.result.allowed else denied).append(offset)
    return Replay(admitted, denied)
