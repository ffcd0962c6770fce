"""The fixed window: count, and start over when the window ends.

With anchor "epoch" windows are slices of the calendar, the same for every key: a minute's window
starts on the minute. With anchor "first" a key's window starts with its first request and the
next one with the first request after its end.

The weakness is part of the definition: the whole quota may be spent at the end of one window and
again at the start of the next. Aligned to the epoch that is 2 x limit within an instant; anchored
at "first" it is one less, because one request must have opened the first window.

A stored window that starts later than the computed one means that the clock went back. The
stored one stands, so that the jump does not open a fresh quota.
"""

from __future__ import annotations

from typing import Any, Literal

from ..core.decision import Decision, Forecast, Step, decide
from ..core.strategy import LuaRider, Stepping
from ..core.validation import MAX_SPAN_MS, require_choice, require_int
from .lua import FIXED_WINDOW, FIXED_WINDOW_FIRST

__all__ = ["Anchor", "FixedWindow", "fixed_window"]

Anchor = Literal["epoch", "first"]
"""Where windows start: on multiples of their length, or with a key's first request."""

State = tuple[int, int]


class FixedWindow(Stepping):
    """Counts, and starts over when the window ends. Made by `fixed_window`.

    The state is (start, count). `anchor` says where windows start.
    """

    name = "fixed_window"

    def __init__(self, limit: int, window_ms: int, anchor: Anchor = "epoch") -> None:
        self.limit: int = require_int("limit", limit)
        self.window_ms: int = require_int("window_ms", window_ms, high=MAX_SPAN_MS)
        self.anchor: Anchor = require_choice("anchor", anchor, ("epoch", "first"))
        self.ttl_ms: int = self.window_ms
        self._aligned = anchor == "epoch"
        self.native: tuple[Any, ...] = ("fixed_window", self.limit, self.window_ms, self._aligned)
        program = FIXED_WINDOW if self._aligned else FIXED_WINDOW_FIRST
        self.lua: LuaRider = program.rider(limit=limit, windowMs=window_ms)

    def step(self, state: State | None, now: int, cost: int) -> Step[Decision]:
        start, count = self._window(state, now)
        reset_at = start + self.window_ms
        if count + cost <= self.limit:
            decision = decide(True, self.limit, self.limit - count - cost, reset_at, 0)
            return (start, count + cost), decision, reset_at - now, True
        remaining = max(0, self.limit - count)
        return state, decide(False, self.limit, remaining, reset_at, reset_at - now), 0, False

    def peek(self, state: State | None, now: int) -> Decision:
        decision = self.check(state, now, 1).result
        _, count = self._window(state, now)
        remaining = max(0, self.limit - count)
        return decide(
            decision.allowed, self.limit, remaining, decision.reset_at, decision.retry_after_ms
        )

    def forecast(self, state: State | None, now: int, cost: int) -> Forecast:
        start, count = self._window(state, now)
        full_at = start + self.window_ms if count else now
        return Forecast(max(0, self.limit - count) // cost, full_at, full_at)

    def _window(self, state: State | None, now: int) -> State:
        """The window that `now` falls into, and what was spent in it."""
        if self._aligned:
            start = now // self.window_ms * self.window_ms
        elif state is not None and now - state[0] < self.window_ms:
            return state
        else:
            start = now
        return state if state is not None and state[0] >= start else (start, 0)

    def __repr__(self) -> str:
        return (
            f"fixed_window(limit={self.limit}, window_ms={self.window_ms}, anchor={self.anchor!r})"
        )


def fixed_window(limit: int, window_ms: int, anchor: Anchor = "epoch") -> FixedWindow:
    """`limit` per window of `window_ms`, counted from zero in each.

    With `anchor="epoch"` windows are slices of the calendar, the same for every key; with `"first"`
    a key's window opens with its first request. Either way the end of one window and the start of
    the next can hold up to twice the limit.
    """
    return FixedWindow(limit, window_ms, anchor)
