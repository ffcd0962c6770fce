"""The sliding window, exact: remember when each admitted unit came.

A unit counts for `window_ms` after its stamp. A request is admitted if the units that still count
and its own cost fit the limit. There is no estimate and no edge; the price is memory for every
distinct instant within the window, which is why the limit is bounded.

Units admitted in one millisecond share one (stamp, count) pair. A unit is stamped with the newest
instant in the log when the clock reads earlier than that: after a backward jump, stamps stay
ascending and nothing leaves the window before its time.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from ..core.decision import Decision, Forecast, Step, decide
from ..core.strategy import LuaRider, Stepping
from ..core.validation import MAX_SPAN_MS, require_int
from .lua import SLIDING_WINDOW_LOG

__all__ = ["SlidingWindowLog", "sliding_window_log"]

# A shared store keeps one member per unit, so the log's size must stay reasonable there too.
MAX_LOG_LIMIT = 1_000_000

State = tuple[tuple[int, int], ...]


class SlidingWindowLog(Stepping):
    """Remembers when each unit came. Made by `sliding_window_log`.

    The state is ((stamp, count), ...), ascending.
    """

    name = "sliding_window_log"

    def __init__(self, limit: int, window_ms: int) -> None:
        self.limit: int = require_int("limit", limit, high=MAX_LOG_LIMIT)
        self.window_ms: int = require_int("window_ms", window_ms, high=MAX_SPAN_MS)
        self.ttl_ms: int = self.window_ms
        self.native: tuple[Any, ...] = ("sliding_window_log", self.limit, self.window_ms)
        self.lua: LuaRider = SLIDING_WINDOW_LOG.rider(windowMs=window_ms, limit=limit)

    def step(self, state: State | None, now: int, cost: int) -> Step[Decision]:
        log, count = self._live(state, now)
        oldest = log[0][0] if log else now
        reset_at = oldest + self.window_ms
        if count + cost <= self.limit:
            decision = decide(True, self.limit, self.limit - count - cost, reset_at, 0)
            if log and log[-1][0] >= now:
                newest, units = log[-1]
                log = (*log[:-1], (newest, units + cost))
            else:
                log = (*log, (now, cost))
            return log, decision, log[-1][0] - now + self.window_ms, True
        retry = self._retry(log, count, now, cost)
        remaining = max(0, self.limit - count)
        return state, decide(False, self.limit, remaining, reset_at, retry), 0, False

    def peek(self, state: State | None, now: int) -> Decision:
        decision = self.check(state, now, 1).result
        _, count = self._live(state, now)
        remaining = max(0, self.limit - count)
        return decide(
            decision.allowed, self.limit, remaining, decision.reset_at, decision.retry_after_ms
        )

    def forecast(self, state: State | None, now: int, cost: int) -> Forecast:
        log, count = self._live(state, now)
        spendable = max(0, self.limit - count) // cost
        if not log:
            return Forecast(spendable, now, now)
        return Forecast(spendable, log[0][0] + self.window_ms, log[-1][0] + self.window_ms)

    def _live(self, state: State | None, now: int) -> tuple[State, int]:
        """The pairs that still count at `now`, and how many units they hold."""
        edge = now - self.window_ms
        log = state or ()
        if log and log[0][0] <= edge:
            log = tuple([pair for pair in log if pair[0] > edge])
        return log, sum([units for _, units in log])

    def _retry(self, log: State, count: int, now: int, cost: int) -> int:
        """Until enough of the oldest units have left; a cost above the limit waits for all."""
        if not log:
            return self.window_ms
        needed = min(max(count + cost - self.limit, 1), count)
        freed = accumulate(units for _, units in log)
        stamp = next(pair[0] for pair, total in zip(log, freed, strict=True) if total >= needed)
        return max(1, stamp + self.window_ms - now)

    def __repr__(self) -> str:
        return f"sliding_window_log(limit={self.limit}, window_ms={self.window_ms})"


def sliding_window_log(limit: int, window_ms: int) -> SlidingWindowLog:
    """`limit` in any `window_ms`, wherever it starts, to the millisecond.

    Exact, at the price of memory for every millisecond that admitted something.
    """
    return SlidingWindowLog(limit, window_ms)
