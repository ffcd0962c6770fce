"""The generic cell rate algorithm: a leaky bucket kept as one number.

A limit of `limit` per `period_ms` is one unit every T = period / limit ms. The state is the
theoretical arrival time (TAT): the instant at which everything admitted so far will have been
paid for at that pace. A request of cost n moves the TAT by n * T, and is admitted if the TAT then
runs ahead of now by no more than tau = T * burst. So an idle key may spend `burst` at once, and
after that one unit every T, evenly, with no window to game.

The TAT never moves back, and an instant before it only makes the debt look larger: a clock that
jumps back is denied until real time catches up.

The TAT is a double in epoch milliseconds. So that no sum is ever rounded, T is: down to a multiple
of 1/2048 ms,

    T = floor(period_ms * 2048 / limit) / 2048

Until the year 2109 an instant is below 2**42 ms. Instants, T * cost, tau and their sums are then
multiples of 1/2048 with at most 53 bits, which doubles hold exactly. So a cold key admits `burst`
units at one instant, neither one more nor one less, in whatever portions they come; and since
tau <= period for the default burst, all of them are there again after `period_ms`. Quotients are
not exact, but their floors are: a / b with whole a up to 2**53 is never rounded up to a whole
number that it does not reach.

The price is a rate that is up to 2**-11 / T too fast: 0.003% at 60 a second, 0.05% at 1,000. Where
it could pass 0.5%, above 10,240 a second, the constructor refuses, and names the token bucket,
which counts tokens and has no grid.

A refund moves the TAT back. It must not return units that time has replenished, or reservations
could be banked: each held until its units are there again, and then all cancelled at once. The
units of a charge are replenished at its `reset_at`, so the TAT moves back by no more than what is
left of that. `proofs/refunds.py` has the bound.

A pause is a TAT, too, and marked as one: half a step off the grid. Otherwise it could not be told
from a debt, and a charge that is cancelled during the pause would end it. The next admission takes
the mark away. So does the next booking: if the mark stayed for as long as callers queue, all their
refunds would be lost. A charge from before the pause that is cancelled after such a booking may end
the pause earlier, by the units that it has more than were booked. From 2039 on doubles have no bit
left for the mark, and a cancelled charge then shortens a pause by what its units take at the pace.

A TAT means nothing without the interval and tau that it was written with, which are its figures.
Under others the time that it ran ahead when it was written is multiplied by the middle one of 1,
T' / T and tau' / tau (`core/_figures.py` says why), and rounded up to the grid. Waits are multiples
of the grid, so rounding up to it makes no wait longer than it was before. What it ran ahead by more
than tau is kept as it is, and the first unit comes no earlier than after that. A TAT that has the
mark of a pause is put where the first unit is there at the same instant.

In Redis the raw TAT holds no figures. It is read with the interval and tau of the reader, that is,
the time that it runs ahead is kept. With the default burst that is nearly the same, since tau is
the period then. With another burst, a wait is longer after a change than before it by at most
tau - tau', where tau' is that of the reader, and a pause ends later by (tau - T) - (tau' - T'), or
earlier if that is negative.

The order of the floating-point operations is fixed: every accelerator repeats it to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor
from typing import TYPE_CHECKING, Any, NoReturn

from ..core._decision import Booking, Decision, Forecast, Outcome
from ..core._durations import parse_rate
from ..core._figures import NUDGE, middle
from ..core._lua import LuaSource, beside, real, whole
from ..core._strategy import Parameter, Strategy
from ..core._validation import MAX_SAFE, MAX_SPAN_MS, MAX_STORED_MS, reject, stored_number
from ._token_bucket import full_before, token_bucket

if TYPE_CHECKING:
    from datetime import timedelta


__all__ = ["Gcra", "gcra", "strategy_of_rate"]


def _decode(raw: Any) -> float | None:
    return None if raw is None else real(raw)


def _decode_with_figures(raw: Any) -> tuple[float, tuple[float, float], int] | None:
    if raw is None:
        return None
    tat, interval, tolerance, at = raw.split()
    return real(tat), (real(interval), real(tolerance)), whole(at)


_GRID = 2048
_MARK = 0.5 / _GRID
# Of 1/2048 ms. Rounded down from just below one more, T is 0.5% too short.
_LEAST_STEPS = 200


class Gcra(Strategy):
    """State: the TAT, a float in epoch ms."""

    name = "gcra"
    parameters: tuple[Parameter, ...] = (
        Parameter("limit", "count", "units per period"),
        Parameter("period_ms", "span", "the period of the rate"),
        Parameter(
            "burst",
            "count",
            "units that may come at once; by default the limit",
            default=None,
            example=10,
        ),
    )
    books_ahead = True
    kernel: str | None = "gcra"
    lua_sources: tuple[LuaSource, ...] = (
        LuaSource(
            "gcra",
            beside(__file__),
            argv=("now", "periodMs", "limit", "burst", "cost"),
            state="string: the TAT, %.17g",
            raw="the TAT, or nil",
            decode=_decode,
            beyond_check=("refund", "charge", "book", "pause"),
        ),
    )

    lua_with_figures: LuaSource | None = LuaSource(
        "gcraWithFigures",
        beside(__file__, "_with_figures"),
        over=beside(__file__),
        strategy="gcra",
        argv=("now", "periodMs", "limit", "burst", "cost"),
        state=(
            "string: the TAT, the interval and tau that it was written with, each %.17g, and the "
            "instant of that, %.0f"
        ),
        raw="the same, or nil",
        decode=_decode_with_figures,
        beyond_check=("refund", "charge", "book", "pause"),
    )

    def __init__(self, limit: int, period_ms: int | timedelta, burst: int | None = None) -> None:
        super().__init__(limit=limit, period_ms=period_ms, burst=burst)
        burst = limit if burst is None else burst
        self.values: Mapping[str, Any] = {**self.values, "burst": burst}
        self.rate_limit = limit
        self.period_ms: int = self.values["period_ms"]
        self.burst: int = burst
        self.limit: int = burst
        if not is_coarse_enough(limit, self.period_ms):
            _refuse(limit, self.period_ms, burst)
        self.interval_ms: float = _steps(limit, self.period_ms) / _GRID
        self.tolerance_ms: float = self.interval_ms * self.burst
        if self.tolerance_ms > MAX_SPAN_MS:
            reject(f"burst {self.burst} at this rate takes over {MAX_SPAN_MS} ms; lower it")
        self.ttl_ms: int = max(1, ceil(self.tolerance_ms))
        self.figures: tuple[float, ...] | None = (self.interval_ms, self.tolerance_ms)

    def kernel_arguments(self) -> tuple[Any, ...]:
        return self.interval_ms, self.tolerance_ms, self.burst, self.may_change

    @property
    def rate(self) -> tuple[int, int]:
        return self.rate_limit, self.period_ms

    def in_words(self) -> str:
        rate = super().in_words()
        return rate if self.burst == self.rate_limit else f"{rate}, {self.burst:,} at once"

    def most_within(self, span_ms: int) -> int:
        # From the first admission to the last the TAT has moved by no more than the time between
        # them and tau.
        return self.burst + (span_ms - 1) * _GRID // _steps(self.rate_limit, self.period_ms)

    def is_looser_than(self, other: Strategy, *, alongside: bool, steady: bool) -> bool:
        """Counted in units, a debt that is paid off faster is never the larger one. If more may be
        charged than was admitted, debts compare only at the same pace."""
        if not isinstance(other, Gcra):
            return super().is_looser_than(other, alongside=alongside, steady=steady)
        pace = self.interval_ms - other.interval_ms
        return self.burst >= other.burst and (pace == 0 or (pace < 0 and steady))

    def check(self, state: float | None, now: int, cost: int) -> Outcome[Decision]:
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
            return Outcome(
                state, Decision(False, self.burst, remaining, ceil(tat), retry), 0, False
            )
        # Nearly every TAT is on the grid, which is quickly seen.
        if not (new * 2048.0).is_integer() and _is_marked(new):
            new += _MARK
        remaining = floor((tau - (new - at)) / interval)
        if remaining < 0:
            remaining = 0
        reset_at = ceil(new)
        # Not one rounding away from ceil(new - now): below 2^53 that difference is exact.
        ttl_ms = reset_at - now or 1
        return Outcome(new, Decision(True, self.burst, remaining, reset_at, 0), ttl_ms, True)

    def refund(self, state: float | None, now: int, cost: int, charged_at: int) -> Outcome[int]:
        if state is None or state <= now:
            return Outcome(state, 0, 0, False)
        last_starts_at = ceil(state - self.tolerance_ms)
        # What was booked for later stays as it is once somebody stands behind it: two would be
        # let in at one instant.
        if charged_at > now and last_starts_at > charged_at:
            return Outcome(state, 0, 0, False)
        # During a pause only the last of what was booked since it began may come back.
        is_paused = now < state - self.tolerance_ms + self.interval_ms and _is_marked(state)
        if is_paused and (charged_at <= now or last_starts_at < charged_at):
            return Outcome(state, 0, 0, False)
        # What time has replenished does not come back as well: see `counted_at`.
        unpaid = charged_at - now + self.tolerance_ms
        if unpaid <= 0:
            return Outcome(state, 0, 0, False)
        new = state - min(self.interval_ms * cost, unpaid)
        # Kept, though it may mean no more than no state: a clock that goes back must not find less.
        new = max(new, now + 0.0)
        # A unit that time has replenished in part comes back with the rest of it.
        units = min(cost, ceil((state - new) / self.interval_ms))
        return Outcome(new, units, max(1, ceil(new - now)), True)

    def counted_at(self, decision: Decision, charged_at: int) -> int:
        return full_before(decision.reset_at, self.tolerance_ms, charged_at)

    def charge(self, state: float | None, now: int, cost: int) -> Outcome[Decision]:
        units = cost - self.excess(state, now, cost)
        tat = now + 0.0 if state is None or state < now else state
        return self._taken(tat + self.interval_ms * units, now)

    def excess(self, state: float | None, now: int, cost: int) -> int:
        # The burst is spent, and as much again is owed.
        ahead = 0.0 if state is None or state < now else state - now
        return max(0, cost - max(0, floor((2 * self.tolerance_ms - ahead) / self.interval_ms)))

    def book(self, state: float | None, now: int, cost: int, max_wait_ms: int) -> Outcome[Booking]:
        tat = now + 0.0 if state is None or state < now else state
        new = tat + self.interval_ms * cost
        delay_ms = max(0, min(ceil(new - self.tolerance_ms - now), MAX_SAFE))
        if delay_ms > max_wait_ms:
            remaining = self._units_at(tat, now)
            denial = Decision(False, self.burst, remaining, ceil(tat), delay_ms)
            return Outcome(state, Booking(denial, delay_ms), 0, False)
        if _is_marked(new):
            new += _MARK
        taken = self._taken(new, now)
        return Outcome(taken.state, Booking(taken.result, delay_ms), taken.ttl_ms, True)

    def pause(self, state: float | None, now: int, until_ms: int) -> Outcome[None]:
        # With this TAT the first unit is there at `until_ms`, and the others follow at the pace.
        tau = self.tolerance_ms
        tat = until_ms + (tau - self.interval_ms) - _MARK
        if state is not None and state > tat:
            # Behind the start of what was booked last: then none of it is the last one any more,
            # which a refund would take back.
            tat = ceil(state - tau - _MARK) + tau + _MARK
        if until_ms <= now or tat == state:
            return Outcome(state, None, 0, False)
        return Outcome(tat, None, max(1, ceil(tat - now)), True)

    def adopt(self, state: float, now: int, figures: tuple[float, ...], at: int) -> float:
        interval, tau = figures
        if state <= now:
            return state
        if _is_marked(state):
            return state - (tau - interval) + (self.tolerance_ms - self.interval_ms)
        owed = max(0.0, state - at - tau)
        used = state - at - owed
        paced, scaled = used * self.interval_ms / interval, used * self.tolerance_ms / tau
        kept = middle(paced, scaled, used)
        if owed > 0:
            kept = max(kept, self.tolerance_ms - self.interval_ms)
        if kept == used:
            return state
        return min(at + owed + ceil(kept * NUDGE * _GRID) / _GRID, MAX_STORED_MS + 0.0)

    def _taken(self, tat: float, now: int) -> Outcome[Decision]:
        if tat - self.tolerance_ms <= now and _is_marked(tat):
            tat += _MARK
        decision = Decision(True, self.burst, self._units_at(tat, now), ceil(tat), 0)
        return Outcome(tat, decision, max(1, ceil(tat - now)), True)

    def more_in_ms(self, decision: Decision, now: int, peeked: bool = False) -> float:
        # `reset_at` is when all of `burst` is there; the units after the next one come later. It
        # was rounded up, and may be by another clock: the next unit is never more than T away.
        later = self.burst - decision.remaining - (not peeked)
        interval = self.interval_ms
        ms = decision.reset_at - now - later * interval
        return ms if ms < interval else interval

    def longest_wait_ms(self, cost: int) -> int:
        # The TAT is at most tau ahead. Two roundings up, as in the retry itself.
        return ceil(self.interval_ms * cost) + 1

    def restore(self, kept: Any) -> float:
        return stored_number(kept, MAX_STORED_MS)

    def peek(self, state: float | None, now: int) -> Decision:
        decision = self.check(state, now, 1).result
        tat = now if state is None or state < now else state
        return Decision(
            decision.allowed,
            self.burst,
            self._units_at(tat, now),
            decision.reset_at,
            decision.retry_after_ms,
        )

    def forecast(self, state: float | None, now: int, cost: int) -> Forecast:
        if state is None or state <= now:
            return Forecast(self.burst // cost, now, now)
        units = self._units_at(state, now)
        full_at = ceil(state)
        more_at = ceil(state - self.tolerance_ms + (units + 1) * self.interval_ms)
        return Forecast(units // cost, min(more_at, full_at), full_at)

    def _units_at(self, tat: float, now: int) -> int:
        """The largest cost that `check` would admit."""
        return max(0, floor((self.tolerance_ms - (tat - now)) / self.interval_ms))


def _is_marked(tat: float) -> bool:
    """Whether it is that of a pause, and nothing was admitted since."""
    return tat * _GRID % 1.0 == 0.5


def is_coarse_enough(limit: int, period_ms: int) -> bool:
    """Whether rounding the interval down to the grid changes the rate by at most 0.5%."""
    return _steps(limit, period_ms) >= _LEAST_STEPS


def _refuse(limit: int, period_ms: int, burst: int) -> NoReturn:
    reject(
        f"gcra of {limit} per {period_ms} ms is too fine for its grid of 1/{_GRID} ms: the rate "
        f"could be over 0.5% too high; use token_bucket({burst}, {limit * 1000 / period_ms!r}), or "
        f"at most {period_ms * _GRID // _LEAST_STEPS} per {period_ms} ms"
    )


def _steps(limit: int, period_ms: int) -> int:
    # Lua divides doubles and takes the floor, which is the same; see above.
    return period_ms * _GRID // limit


def gcra(limit: int, period_ms: int | timedelta, burst: int | None = None) -> Gcra:
    """`limit` per `period_ms`, evenly paced, with up to `burst` (by default `limit`) at once.

    In any period at most `burst` + `limit` - 1, and from a limit of 2,048 on up to 0.5% more: a
    rested key may spend its burst at once, and goes on at the rate.
    """
    return Gcra(limit, period_ms, burst)


def strategy_of_rate(text: str) -> Strategy:
    """A rate such as `"100/minute"`: GCRA with a burst of the whole count; above what its grid can
    space exactly (10,240 a second), the token bucket of the same capacity and rate, which admits
    the same."""
    limit, period_ms = parse_rate(text)
    if limit and not is_coarse_enough(limit, period_ms):
        return token_bucket(limit, limit * 1000 / period_ms)
    return gcra(limit, period_ms)
