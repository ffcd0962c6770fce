"""The generic cell rate algorithm: a leaky bucket kept as one number.

A limit of `limit` per `period_ms` is one unit every T = period / limit. The state is the
theoretical arrival time (TAT): the instant at which everything admitted so far will have been
paid for at that pace. A request of cost n moves the TAT by n * T, and is admitted if the TAT then
runs ahead of now by no more than tau = T * burst. So an idle key may spend `burst` at once, and
after that one unit every T, evenly, with no window to game.

The TAT never moves back, and an instant before it only makes the debt look larger: a clock that
jumps back is denied until real time catches up.

The TAT is a double in epoch milliseconds, where a double resolves about 0.0002 ms. Emission
intervals are rounded to that grid: the rate is exact to 0.1% down to T = 0.12 ms (8,000 units a
second), to 12% at the smallest T that is accepted. Beyond that, a token bucket has no such grid.

The order of the floating-point operations is fixed: every accelerator repeats it to the bit.
"""

from __future__ import annotations

from math import ceil, floor
from typing import Any

from ..core.decision import Decision, Forecast, Step, decide
from ..core.strategy import LuaRider, Stepping
from ..core.validation import MAX_SAFE, MAX_SPAN_MS, reject, require_int
from .lua import GCRA

__all__ = ["Gcra", "gcra"]

# Below this, adding one interval to an epoch instant is lost in rounding, and so is the limit.
_MIN_INTERVAL_MS = 2.0**-10


class Gcra(Stepping):
    """Paces evenly after a burst. Made by `gcra`.

    The state is the theoretical arrival time (TAT), a float in epoch ms.
    """

    name = "gcra"

    def __init__(self, limit: int, period_ms: int, burst: int | None = None) -> None:
        require_int("limit", limit)
        require_int("period_ms", period_ms, high=MAX_SPAN_MS)
        self.rate_limit = limit
        self.period_ms = period_ms
        self.burst: int = limit if burst is None else require_int("burst", burst)
        self.limit: int = self.burst
        self.interval_ms: float = period_ms / limit
        self.tolerance_ms: float = self.interval_ms * self.burst
        if self.interval_ms < _MIN_INTERVAL_MS:
            reject(
                f"gcra of {limit} per {period_ms} ms is finer than a double can hold at epoch "
                f"scale; use token_bucket, or at most {int(period_ms / _MIN_INTERVAL_MS)} per "
                f"{period_ms} ms"
            )
        if self.tolerance_ms > MAX_SPAN_MS:
            reject(f"burst {self.burst} at this rate takes over {MAX_SPAN_MS} ms; lower it")
        self.ttl_ms: int = max(1, ceil(self.tolerance_ms))
        self.native: tuple[Any, ...] = ("gcra", self.interval_ms, self.tolerance_ms, self.burst)
        self.lua: LuaRider = GCRA.rider(periodMs=period_ms, limit=limit, burst=self.burst)

    def step(self, state: float | None, now: int, cost: int) -> Step[Decision]:
        interval, tau = self.interval_ms, self.tolerance_ms
        # The same instant as a double: mixed arithmetic would convert it again each time.
        at = now + 0.0
        tat = at if state is None or state < at else state
        new = tat + (interval if cost == 1 else interval * cost)
        allow_at = new - tau
        if at < allow_at:
            remaining = floor((tau - (tat - at)) / interval)
            if remaining < 0:
                remaining = 0
            retry = ceil(allow_at - at)
            if retry > MAX_SAFE:
                retry = MAX_SAFE
            return state, decide(False, self.burst, remaining, ceil(tat), retry), 0, False
        remaining = floor((tau - (new - at)) / interval)
        if remaining < 0:
            remaining = 0
        reset_at = ceil(new)
        # Not one rounding away from ceil(new - now): below 2^53 that difference is exact.
        ttl_ms = reset_at - now or 1
        return new, decide(True, self.burst, remaining, reset_at, 0), ttl_ms, True

    def peek(self, state: float | None, now: int) -> Decision:
        decision = self.check(state, now, 1).result
        tat = now if state is None or state < now else state
        remaining = max(0, floor((self.tolerance_ms - (tat - now)) / self.interval_ms))
        return decide(
            decision.allowed, self.burst, remaining, decision.reset_at, decision.retry_after_ms
        )

    def forecast(self, state: float | None, now: int, cost: int) -> Forecast:
        if state is None or state <= now:
            # Where the grid of doubles widens between now and the TAT, a cold key has less.
            units = min(self.burst, self._units_at(now, now))
            return Forecast(units // cost, now, now)
        units = self._units_at(state, now)
        full_at = ceil(state)
        more_at = ceil(state - self.tolerance_ms + (units + 1) * self.interval_ms)
        # Rounding may put that instant a step early or on now itself; the definition decides.
        more_at = max(more_at, now + 1)
        while more_at < full_at and self._units_at(state, more_at) <= units:
            more_at += 1
        return Forecast(units // cost, min(more_at, full_at), full_at)

    def _units_at(self, tat: float, now: int) -> int:
        """The largest cost that `check` would admit: the closed form, corrected for rounding."""
        units = max(0, floor((self.tolerance_ms - (tat - now)) / self.interval_ms))
        while units > 0 and not self._admits(tat, now, units):
            units -= 1
        while self._admits(tat, now, units + 1):
            units += 1
        return units

    def _admits(self, tat: float, now: int, cost: int) -> bool:
        return now >= max(tat, now) + self.interval_ms * cost - self.tolerance_ms

    def __repr__(self) -> str:
        return f"gcra(limit={self.rate_limit}, period_ms={self.period_ms}, burst={self.burst})"


def gcra(limit: int, period_ms: int, burst: int | None = None) -> Gcra:
    """`limit` per `period_ms`, evenly paced, with up to `burst` (by default `limit`) at once.

    A rested key may spend the burst and goes on at the rate, so the worst placed period holds
    `burst + limit - 1`.
    """
    return Gcra(limit, period_ms, burst)
