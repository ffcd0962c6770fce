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

from typing import TYPE_CHECKING, Any, Literal

from ..core._decision import Decision, Forecast, Outcome
from ..core._lua import LuaSource, beside, hash_fields, whole
from ..core._strategy import Parameter, Strategy
from ..core._validation import MAX_SAFE, MAX_STORED_MS, stored_pair, stored_whole

if TYPE_CHECKING:
    from datetime import timedelta


__all__ = ["Anchor", "FixedWindow", "fixed_window"]


Anchor = Literal["epoch", "first"]
"""Where windows start: on multiples of their length, or with a key's first request."""

State = tuple[int, int]

# A pause has to hold under whatever limit the window is read with later, and whatever comes back
# meanwhile: so it is the largest count, and all counts from here on are that of a pause.
PAUSED = MAX_SAFE // 2 + 1


def _decode(raw: Any) -> State | None:
    fields = hash_fields(raw)
    return None if fields is None else (whole(fields[0]), whole(fields[1]))


def _lua_source(name: str, anchor: str) -> LuaSource:
    return LuaSource(
        name,
        beside(__file__),
        strategy="fixedWindow",
        argv=("now", "limit", "windowMs", "cost"),
        constants={"anchor": anchor},
        state="hash: s start of the window, c count in it, each %.0f",
        raw="s and c, or nil twice",
        decode=_decode,
        beyond_check=("refund", "charge", "pause"),
    )


class FixedWindow(Strategy):
    """State: (start, count)."""

    name = "fixed_window"
    parameters: tuple[Parameter, ...] = (
        Parameter("limit", "count", "units per window"),
        Parameter("window_ms", "span", "the length of a window"),
        Parameter(
            "anchor",
            "choice",
            "where windows start, on the calendar or with a first request",
            choices=("epoch", "first"),
            default="epoch",
        ),
    )
    window_kind: str | None = "fixed"
    kernel: str | None = "fixed_window"
    lua_sources: tuple[LuaSource, ...] = (
        _lua_source("fixedWindow", "epoch"),
        _lua_source("fixedWindowFirst", "first"),
    )

    def __init__(self, limit: int, window_ms: int | timedelta, anchor: str = "epoch") -> None:
        super().__init__(limit=limit, window_ms=window_ms, anchor=anchor)
        self.limit = limit
        self.window_ms: int = self.values["window_ms"]
        self.anchor = anchor
        self.ttl_ms: int = self.window_ms
        self._aligned = anchor == "epoch"

    @classmethod
    def per(cls, limit: int, window_ms: int) -> FixedWindow:
        # No window of the calendar suits a limit that was made up for one request.
        return cls(limit, window_ms, "first")

    def kernel_arguments(self) -> tuple[Any, ...]:
        return self.limit, self.window_ms, self._aligned

    def lua_source(self) -> LuaSource:
        return self.lua_sources[0 if self._aligned else 1]

    @property
    def looks_back_ms(self) -> int:
        return self.window_ms

    def most_within(self, span_ms: int) -> int:
        # By as many windows as that many instants can touch.
        return self.limit * ((span_ms + self.window_ms - 2) // self.window_ms + 1)

    def is_looser_than(self, other: Strategy, *, alongside: bool, steady: bool) -> bool:
        """Windows that start together count together; on the calendar, short ones fill long ones
        from edge to edge."""
        if isinstance(other, FixedWindow) and self.anchor == other.anchor:
            whole, part = divmod(self.window_ms, other.window_ms)
            together = self._aligned or alongside
            if together and whole == 1 and part == 0 and other.limit <= self.limit:
                return True
            if steady and self._aligned and part == 0 and whole:
                return other.limit * whole <= self.limit
        return super().is_looser_than(other, alongside=alongside, steady=steady)

    def check(self, state: State | None, now: int, cost: int) -> Outcome[Decision]:
        start, count = self._window(state, now)
        reset_at = start + self.window_ms
        if count + cost <= self.limit:
            decision = Decision(True, self.limit, self.limit - count - cost, reset_at, 0)
            return Outcome((start, count + cost), decision, reset_at - now, True)
        remaining = max(0, self.limit - count)
        return Outcome(
            state, Decision(False, self.limit, remaining, reset_at, reset_at - now), 0, False
        )

    def refund(self, state: State | None, now: int, cost: int, charged_at: int) -> Outcome[int]:
        start, count = self._window(state, now)
        units = min(cost, count) if start <= charged_at < start + self.window_ms else 0
        if not units:
            return Outcome(state, 0, 0, False)
        if units == count and not self._aligned and start <= now:
            # The request that opened the window has not been made.
            return Outcome(None, units, 0, True)
        return Outcome((start, count - units), units, start + self.window_ms - now, True)

    def counted_at(self, decision: Decision, charged_at: int) -> int:
        return max(charged_at, decision.reset_at - self.window_ms)

    def charge(self, state: State | None, now: int, cost: int) -> Outcome[Decision]:
        start, count = self._window(state, now)
        count += cost - self.excess(state, now, cost)
        reset_at = start + self.window_ms
        decision = Decision(True, self.limit, max(0, self.limit - count), reset_at, 0)
        return Outcome((start, count), decision, reset_at - now, True)

    def excess(self, state: State | None, now: int, cost: int) -> int:
        _, count = self._window(state, now)
        return max(0, cost - max(0, min(2 * self.limit, MAX_SAFE) - count))

    def pause(self, state: State | None, now: int, until_ms: int) -> Outcome[None]:
        start, count = self._window(state, now)
        end = start + self.window_ms
        if until_ms <= now or (end >= until_ms and count >= PAUSED):
            return Outcome(state, None, 0, False)
        if end < until_ms:
            # The first window that ends no earlier, as if the clock had been there before.
            last = until_ms - 1
            start = (
                last // self.window_ms * self.window_ms
                if self._aligned
                else until_ms - self.window_ms
            )
            end = start + self.window_ms
        return Outcome((start, MAX_SAFE), None, end - now, True)

    def longest_wait_ms(self, cost: int) -> int:
        return self.window_ms

    def restore(self, kept: Any) -> State:
        start, count = stored_pair(kept)
        return stored_whole(start, MAX_STORED_MS), stored_whole(count, MAX_SAFE)

    def peek(self, state: State | None, now: int) -> Decision:
        decision = self.check(state, now, 1).result
        _, count = self._window(state, now)
        remaining = max(0, self.limit - count)
        return Decision(
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


def fixed_window(
    limit: int, window_ms: int | timedelta, anchor: Literal["epoch", "first"] = "epoch"
) -> FixedWindow:
    """`limit` per window. Windows are aligned to the epoch, or open with the first request."""
    return FixedWindow(limit, window_ms, anchor)
