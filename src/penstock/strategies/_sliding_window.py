"""The sliding window, estimated from counts in ticks.

Time is cut into ticks of w = window / buckets. The window that ends now covers the current tick,
the buckets - 1 ticks before it, and the last part of one more. Whole ticks are counted in full,
the partial one in proportion to the part that is still inside, as if its requests had come
evenly. More buckets narrow that guess: the error is at most the count of one tick. One bucket is
the classic two-window estimate.

A tick that is stored but lies ahead of now means that the clock went back. The newest stored tick
is then taken as the current one, so that nothing that was counted drops out early.

The state is forgotten once its newest tick has left the window by the arithmetic that `check`
itself uses; where the quotient is rounded down to the tick before, one millisecond later.

The order of the floating-point operations is fixed: every accelerator repeats it to the bit.
"""

from __future__ import annotations

from math import ceil, floor
from typing import TYPE_CHECKING, Any

from ..core._decision import Decision, Forecast, Outcome
from ..core._lua import LuaSource, beside, whole
from ..core._strategy import Parameter, Strategy
from ..core._validation import MAX_INSTANT_MS, MAX_SAFE, reject, stored_runs

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta


__all__ = ["SlidingWindow", "sliding_window"]


MAX_BUCKETS = 100_000

State = tuple[tuple[int, int], ...]

# No limit of a window is larger, or its pauses may end a moment too soon.
_HELD = 2.0**32


def _decode(raw: Any) -> State | None:
    for field in raw[::2]:
        whole(field)
    return tuple(sorted(_pair(value) for value in raw[1::2])) or None


def _pair(value: Any) -> tuple[int, int]:
    tick, count = value.split(b":" if isinstance(value, bytes) else ":")
    return whole(tick), whole(count)


class SlidingWindow(Strategy):
    """State: ((tick, count), ...), ascending. A tick may be empty: what was in it came back."""

    name = "sliding_window"
    parameters: tuple[Parameter, ...] = (
        Parameter("limit", "count", "units in any window"),
        Parameter("window_ms", "span", "the length of the window"),
        Parameter(
            "buckets",
            "count",
            "parts in which it is counted",
            default=10,
            high=MAX_BUCKETS,
            example=10,
            shapes_state=True,
        ),
    )
    window_kind: str | None = "sliding"
    kernel: str | None = "sliding_window"
    lua_sources: tuple[LuaSource, ...] = (
        LuaSource(
            "slidingWindow",
            beside(__file__),
            argv=("now", "windowMs", "limit", "cost", "buckets"),
            state='hash: field tick % (buckets + 1), value "<tick>:<count>", each %.0f',
            raw='field, "<tick>:<count>", field, "<tick>:<count>", ...',
            decode=_decode,
            beyond_check=("refund", "charge", "pause"),
        ),
    )

    def __init__(self, limit: int, window_ms: int | timedelta, buckets: int = 10) -> None:
        super().__init__(limit=limit, window_ms=window_ms, buckets=buckets)
        self.limit = limit
        self.window_ms: int = self.values["window_ms"]
        self.buckets = buckets
        # A check reads the ticks that have units: at most one per bucket, and one per unit.
        self.most_parts: int = min(limit, buckets)
        self.tick_ms: float = self.window_ms / buckets
        # Finer ticks would be numbered beyond what a double counts, and Lua has only doubles.
        if self.tick_ms < 2.0**-7:
            reject(f"{buckets} buckets in {self.window_ms} ms are too fine; use fewer buckets")
        # A later one was counted in shorter ticks, by another window that was given the same key:
        # taken at its word it would lie so far ahead that no arithmetic holds there.
        self.last_tick: int = floor(MAX_INSTANT_MS / self.tick_ms)
        self.ttl_ms: int = ceil(self.tick_ms + self.window_ms) + 1
        # The most that a tick may be charged with, so that the sum of all is a whole double.
        self.most_in_tick: int = max(limit, MAX_SAFE // (buckets + 1))

    @property
    def looks_back_ms(self) -> int:
        # The oldest tick counts in part, and here in full.
        return ceil(self.window_ms + self.tick_ms) + 1

    def most_within(self, span_ms: int) -> int:
        # As many ticks in a row as a window has never hold more than the limit. One tick more at
        # either end, and one for an instant that was rounded to the tick beside its own.
        ticks = span_ms * self.buckets // self.window_ms + 3
        return self.limit * -(-ticks // self.buckets)

    def is_looser_than(self, other: Strategy, *, alongside: bool, steady: bool) -> bool:
        if isinstance(other, SlidingWindow) and self.state_form == other.state_form:
            return other.limit <= self.limit
        return super().is_looser_than(other, alongside=alongside, steady=steady)

    def check(self, state: State | None, now: int, cost: int) -> Outcome[Decision]:
        w = self.tick_ms
        tick, kept, full, oldest, weight = self._view(state, now)
        estimate = full + oldest * weight
        projected = estimate + cost
        reset_at = ceil((tick + 1) * w + self.window_ms)
        if projected <= self.limit:
            remaining = max(0, floor(self.limit - projected))
            decision = Decision(True, self.limit, remaining, reset_at, 0)
            return Outcome(_added(kept, tick, cost), decision, self._expiry(tick) - now, True)
        excess = projected - self.limit
        if oldest > 0 and excess <= oldest * weight:
            retry = ceil(excess * w / oldest)
        else:
            retry = ceil((tick + 1) * w - now)
        remaining = max(0, floor(self.limit - estimate))
        decision = Decision(False, self.limit, remaining, reset_at, max(1, retry))
        return Outcome(state, decision, 0, False)

    def refund(self, state: State | None, now: int, cost: int, charged_at: int) -> Outcome[int]:
        tick, _, _, _, _ = self._view(state, now)
        charged = floor(charged_at / self.tick_ms)
        if state is None or charged < tick - self.buckets:
            return Outcome(state, 0, 0, False)
        # Units are in the tick of their instant, or in a later one if that was there already. Those
        # taken may be older ones than the caller's own: that admits no sooner.
        units, left = 0, []
        for at, count in state:
            taken = min(cost - units, count) if at >= charged else 0
            units += taken
            # An empty tick stays: the clock has been there. So do those that are out of sight: no
            # newer tick stands for this instant, and they count again if the clock goes back.
            left.append((at, count - taken))
        if not units:
            return Outcome(state, 0, 0, False)
        return Outcome(tuple(left), units, self._expiry(left[-1][0]) - now, True)

    def counted_at(self, decision: Decision, charged_at: int) -> int:
        # A window before `reset_at` its tick ended, give or take a rounding: so half a tick sooner,
        # or in an earlier one if ticks are that short.
        before = self.window_ms + max(self.tick_ms / 2, 2.0)
        return max(charged_at, floor(decision.reset_at - before))

    def charge(self, state: State | None, now: int, cost: int) -> Outcome[Decision]:
        tick, kept, full, oldest, weight = self._view(state, now)
        units = cost - self.excess(state, now, cost)
        projected = full + oldest * weight + units
        remaining = max(0, floor(self.limit - projected))
        reset_at = ceil((tick + 1) * self.tick_ms + self.window_ms)
        decision = Decision(True, self.limit, remaining, reset_at, 0)
        return Outcome(_added(kept, tick, units), decision, self._expiry(tick) - now, True)

    def excess(self, state: State | None, now: int, cost: int) -> int:
        tick, kept, full, oldest, weight = self._view(state, now)
        free = floor(2 * self.limit - (full + oldest * weight))
        in_tick = self.most_in_tick - dict(kept).get(tick, 0)
        return max(0, cost - max(0, min(free, in_tick)))

    def pause(self, state: State | None, now: int, until_ms: int) -> Outcome[None]:
        tick, kept, _, _, _ = self._view(state, now)
        if until_ms <= now:
            return Outcome(state, None, 0, False)
        # A pause has to hold under whatever limit the window is read with later, and whatever comes
        # back meanwhile: so its tick is as full as can be. It holds until nearly the end of the
        # tick in which it fades, that is, for as long as its part of the count is above `_HELD`.
        fading = ceil((until_ms - 1) / self.tick_ms + _HELD / self.most_in_tick) - 1
        tick = min(max(tick, fading - self.buckets), self.last_tick)
        count = dict(kept).get(tick, 0)
        missing = self.most_in_tick - count
        if missing <= 0:
            return Outcome(state, None, 0, False)
        kept = tuple([pair for pair in kept if pair[0] >= tick - self.buckets])
        return Outcome(_added(kept, tick, missing), None, self._expiry(tick) - now, True)

    def more_in_ms(self, decision: Decision, now: int, peeked: bool = False) -> float:
        # A decision does not tell the ticks apart. If all that is used came in the newest one, it
        # fades last, during the tick that ends at `reset_at`; what came earlier fades sooner.
        w, used = self.tick_ms, self.limit - decision.remaining
        elapsed = ceil(w / used)
        if used * ((w - elapsed) / w) > used - 1:
            elapsed += 1
        return min(decision.reset_at - w + elapsed, decision.reset_at) - now

    def longest_wait_ms(self, cost: int) -> int:
        # A denial never looks further than the end of the current tick.
        return ceil(self.tick_ms) + 1

    def restore(self, kept: Any) -> State:
        return stored_runs(kept, self.last_tick)

    def peek(self, state: State | None, now: int) -> Decision:
        decision = self.check(state, now, 1).result
        _, _, full, oldest, weight = self._view(state, now)
        remaining = max(0, floor(self.limit - (full + oldest * weight)))
        return Decision(
            decision.allowed, self.limit, remaining, decision.reset_at, decision.retry_after_ms
        )

    def forecast(self, state: State | None, now: int, cost: int) -> Forecast:
        _, kept, _, _, _ = self._view(state, now)
        spendable = self._fits(state, now, cost)
        if self._is_clear(kept, now):
            return Forecast(spendable, now, now)
        # The newest tick may be empty, and the last one may lose its weight before it drops out.
        expiry = max(self._expiry(kept[-1][0]), now + 1)
        full_at = _first(now + 1, expiry, lambda at: self._is_clear(kept, at))
        units = self._fits(kept, now, 1)
        more_at = _first(now + 1, full_at, lambda at: self._fits(kept, at, 1) > units)
        return Forecast(spendable, more_at, full_at)

    def _fits(self, state: State | None, now: int, cost: int) -> int:
        """How many requests of `cost` in a row `check` would admit: the quotient, corrected for
        rounding."""
        _, _, full, oldest, weight = self._view(state, now)
        part = oldest * weight
        fits = max(0, floor(self.limit - (full + part))) // cost
        while fits and (full + (fits - 1) * cost) + part + cost > self.limit:
            fits -= 1
        while (full + fits * cost) + part + cost <= self.limit:
            fits += 1
        return fits

    def _is_clear(self, state: State, now: int) -> bool:
        _, _, full, oldest, weight = self._view(state, now)
        return not full and not oldest * weight

    def _view(self, state: State | None, now: int) -> tuple[int, State, int, int, float]:
        """The current tick, the ticks still in sight, and what `check` computes from them."""
        w = self.tick_ms
        tick = floor(now / w)
        if state and state[-1][0] > tick:
            tick = min(state[-1][0], self.last_tick)
        weight = 1.0
        if (elapsed := now - tick * w) > 0:
            weight = (w - elapsed) / w
            if weight < 0.0:
                weight = 0.0
        edge = tick - self.buckets
        kept = state or ()
        if kept and kept[0][0] < edge:
            kept = tuple([pair for pair in kept if pair[0] >= edge])
        oldest = kept[0][1] if kept and kept[0][0] == edge else 0
        return tick, kept, sum([count for _, count in kept]) - oldest, oldest, weight

    def _expiry(self, tick: int) -> int:
        """The instant from which a state whose newest tick is `tick` means nothing."""
        tick = min(tick, self.last_tick)
        at = ceil((tick + 1) * self.tick_ms + self.window_ms)
        while floor(at / self.tick_ms) - self.buckets <= tick:
            at += 1
        return at


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The first instant at which something holds that goes on to hold, as it does at `high`."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _added(kept: State, tick: int, cost: int) -> State:
    """With `cost` more in the newest tick, which is `tick` or later."""
    if kept and kept[-1][0] >= tick:
        newest, count = kept[-1]
        return (*kept[:-1], (newest, count + cost))
    return (*kept, (tick, cost))


def sliding_window(limit: int, window_ms: int | timedelta, buckets: int = 10) -> SlidingWindow:
    """`limit` in any `window_ms`, estimated from `buckets` counts: little memory, no edges."""
    return SlidingWindow(limit, window_ms, buckets)
