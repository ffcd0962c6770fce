"""The token bucket: a store of permission that refills steadily and never overflows.

The bucket holds at most `capacity` tokens, starts full, and gains r = refill_per_sec / 1000 each
millisecond. A request of cost n is admitted if n tokens are there, and takes them.

`last` is the instant up to which refills have been credited. It never moves back: after a
backward jump nothing accrues until the clock passes `last` again, so the same span is never
credited twice.

The state is forgotten once an untouched bucket is full again. That instant is found with the
arithmetic that `check` itself uses: a product that falls short of the capacity by one rounding
gets one millisecond more, so that forgetting never differs from remembering.

What is taken unconditionally or given back may be a sum that no double is: it is rounded down then.
Else what came back could be worth a token more than what was charged: three tokens on top of one
that is not quite there are not four. A booking is rounded as a check is, whose wait it has.

Under other figures the tokens that were missing at `last` are multiplied by the middle one of 1 and
the ratios of the capacities and of the refills (`core/_figures.py` says why). A debt takes as long
as before, and the first token comes no earlier than after that.

The raw hash in Redis holds no figures: there the tokens that are left are kept. Since the hash
expires when the bucket of the last writer is full, a client that alternates between two buckets of
which the larger one fills more slowly can have the larger one full after the time that the smaller
one takes to fill.

The order of the floating-point operations is fixed: every accelerator repeats it to the bit.
"""

from __future__ import annotations

from math import ceil, floor, inf, nextafter
from typing import Any

from ..core._decision import Booking, Decision, Forecast, Outcome
from ..core._durations import pace_in_words
from ..core._figures import NUDGE, middle
from ..core._lua import LuaSource, beside, hash_fields, real, signed, whole
from ..core._strategy import Parameter, Strategy
from ..core._validation import (
    MAX_SAFE,
    MAX_SPAN_MS,
    MAX_STORED_MS,
    reject,
    stored_number,
    stored_pair,
    stored_whole,
)

__all__ = ["TokenBucket", "token_bucket"]


State = tuple[float, int]

# Not yet a token, however little is missing.
_NEARLY_ONE = nextafter(1.0, 0.0)

# More than the roundings of a bucket come to, and less than anybody books.
_ROUNDINGS = 2.0**-10

# Makes up for the roundings of a product.
_A_LITTLE_MORE = 1 + 2.0**-50

# Units admitted, times the capacity: below it, the roundings of as many steps add up to less than
# a quarter of a token.
_EXACT = 2**50

_WINDOW = Parameter("window_ms", "span")


def _decode(raw: Any) -> State | None:
    fields = hash_fields(raw)
    return None if fields is None else (signed(fields[0]), whole(fields[1]))


def _decode_with_figures(raw: Any) -> tuple[State, tuple[float, float], int] | None:
    if all(field is None for field in raw):
        return None
    tokens, last, capacity, rate = raw
    return (signed(tokens), whole(last)), (real(capacity), real(rate)), whole(last)


def full_before(reset_at: int, full_in_ms: float, charged_at: int) -> int:
    """The instant by which to refund a charge after which everything is replenished at `reset_at`.

    A refund must not return units that time has replenished, and units charged at `charged_at` are
    replenished at the latest when a bucket that was empty then is full. A charge that left units
    over is replenished sooner: as early as if it had emptied the bucket at the instant that is
    returned here. For a booking that is the instant at which it starts, give or take a rounding.
    """
    emptied_at = ceil(reset_at - full_in_ms)
    return charged_at if abs(emptied_at - charged_at) <= 1 else emptied_at


def _sum_rounded_down(tokens: float, units: float) -> float:
    """Where a sum was rounded, the difference has none to round: it tells which way that was."""
    total = tokens + units
    return nextafter(total, -inf) if total - units > tokens else total


class TokenBucket(Strategy):
    """State: (tokens, last): a float, and the epoch ms up to which it was credited."""

    name = "token_bucket"
    parameters: tuple[Parameter, ...] = (
        Parameter("capacity", "count", "tokens that the bucket holds"),
        Parameter("refill_per_sec", "rate", "tokens that come back each second"),
    )
    books_ahead = True
    kernel: str | None = "token_bucket"
    lua_sources: tuple[LuaSource, ...] = (
        LuaSource(
            "tokenBucket",
            beside(__file__),
            argv=("now", "capacity", "refillPerSec", "cost"),
            state="hash: t tokens, %.17g; l the last ms credited, %.0f",
            raw="t and l, or nil twice",
            decode=_decode,
            beyond_check=("refund", "charge", "book", "pause"),
        ),
    )

    lua_with_figures: LuaSource | None = LuaSource(
        "tokenBucketWithFigures",
        beside(__file__, "_with_figures"),
        over=beside(__file__),
        strategy="tokenBucket",
        argv=("now", "capacity", "refillPerSec", "cost"),
        state=(
            "hash: t tokens, %.17g; l the last ms credited, %.0f; c the capacity and r the refill "
            "per ms that it was written with, each %.17g"
        ),
        raw="t, l, c and r, or nil four times",
        decode=_decode_with_figures,
        beyond_check=("refund", "charge", "book", "pause"),
    )

    def __init__(self, capacity: int, refill_per_sec: float) -> None:
        super().__init__(capacity=capacity, refill_per_sec=refill_per_sec)
        self.limit = capacity
        self.refill_per_sec: float = self.values["refill_per_sec"]
        self.capacity: float = float(capacity)
        self.refill_per_ms: float = self.refill_per_sec / 1000
        # A rate as small as 1e-308 divides down to zero here.
        if self.refill_per_ms <= 0 or self.capacity / self.refill_per_ms > MAX_SPAN_MS:
            reject(
                f"a bucket of {capacity} at {refill_per_sec} per second takes over {MAX_SPAN_MS} "
                "ms to fill; lower the capacity or raise the refill"
            )
        self.full_in_ms: float = self.capacity / self.refill_per_ms
        self.ttl_ms: int = max(1, ceil(self.full_in_ms))
        while self.ttl_ms * self.refill_per_ms < self.capacity:
            self.ttl_ms += 1
        self.figures: tuple[float, ...] | None = (self.capacity, self.refill_per_ms)
        # The deepest debt: its end is still an instant that a state may name.
        self.lowest: float = max(self.capacity - 2 * MAX_SPAN_MS * self.refill_per_ms, -MAX_SAFE)

    @classmethod
    def per(cls, limit: int, window_ms: int) -> TokenBucket:
        for parameter, value in ((cls.parameters[0], limit), (_WINDOW, window_ms)):
            parameter.require(value)
        return cls(limit, limit * 1000 / window_ms)

    def kernel_arguments(self) -> tuple[Any, ...]:
        return self.capacity, self.refill_per_ms, self.ttl_ms, self.may_change

    def most_within(self, span_ms: int) -> int | None:
        # A token more than the arithmetic of real numbers says, for all the roundings together.
        most = self.limit + floor((span_ms - 1) * self.refill_per_ms * (1 + 1e-12)) + 1
        return most if most * self.limit <= _EXACT else None

    def is_looser_than(self, other: Strategy, *, alongside: bool, steady: bool) -> bool:
        """Each step, as it is rounded, leaves the larger number of tokens the larger one; but two
        buckets that are filled up at other instants are rounded at others."""
        if not isinstance(other, TokenBucket):
            return super().is_looser_than(other, alongside=alongside, steady=steady)
        pace = self.refill_per_ms - other.refill_per_ms
        return alongside and self.capacity >= other.capacity and pace >= 0

    def in_words(self) -> str:
        return f"{pace_in_words(self.refill_per_sec)}, {self.limit:,} at once"

    def check(self, state: State | None, now: int, cost: int) -> Outcome[Decision]:
        rate = self.refill_per_ms
        tokens, at = self._level(state, now)
        if tokens >= cost:
            tokens -= cost
            reset_at = at + ceil((self.capacity - tokens) / rate)
            decision = Decision(True, self.limit, floor(tokens), reset_at, 0)
            return Outcome((tokens, at), decision, (at - now) + self.ttl_ms, True)
        reset_at = at + ceil((self.capacity - tokens) / rate)
        retry = min((at - now) + ceil((cost - tokens) / rate), MAX_SAFE)
        remaining = max(0, floor(tokens))
        return Outcome(state, Decision(False, self.limit, remaining, reset_at, retry), 0, False)

    def refund(self, state: State | None, now: int, cost: int, charged_at: int) -> Outcome[int]:
        if state is None:
            return Outcome(state, 0, 0, False)
        tokens, at = self._level(state, now)
        # What was booked for later stays as it is once somebody stands behind it, with a token of
        # their own; what is less than that is rounding.
        owed = -tokens - (charged_at - at) * self.refill_per_ms
        if charged_at > now and tokens < 0 and owed > _ROUNDINGS:
            return Outcome(state, 0, 0, False)
        # An empty bucket that is credited up to a later instant may be paused until then, and what
        # comes back must not end that.
        is_paused = at > now and tokens < 1
        most = _NEARLY_ONE if is_paused else self.capacity
        if tokens >= most:
            return Outcome(state, 0, 0, False)
        # What time has replenished does not come back as well: see `counted_at`.
        unpaid = (charged_at - now + self.full_in_ms) * self.refill_per_ms
        if unpaid <= 0:
            return Outcome(state, 0, 0, False)
        back = min(cost, unpaid * _A_LITTLE_MORE)
        # A token that time has replenished in part comes back with the rest of it.
        room = max(0.0, -tokens) if is_paused else self.capacity - tokens
        units = max(0, min(cost, ceil(min(back, room) - _ROUNDINGS)))
        # Kept, though it may be full: a clock that goes back must not be credited twice.
        tokens = min(most, _sum_rounded_down(tokens, back))
        return Outcome((tokens, at), units, self._ttl(tokens, at, now), True)

    def counted_at(self, decision: Decision, charged_at: int) -> int:
        return full_before(decision.reset_at, self.full_in_ms, charged_at)

    def charge(self, state: State | None, now: int, cost: int) -> Outcome[Decision]:
        units = cost - self.excess(state, now, cost)
        tokens, at = self._level(state, now)
        return self._taken(_sum_rounded_down(tokens, -units), at, now)

    def excess(self, state: State | None, now: int, cost: int) -> int:
        tokens, _ = self._level(state, now)
        return max(0, cost - max(0, floor(tokens + self.capacity)))

    def book(self, state: State | None, now: int, cost: int, max_wait_ms: int) -> Outcome[Booking]:
        tokens, at = self._level(state, now)
        left = tokens - cost
        delay_ms = 0
        if left < 0:
            delay_ms = min((at - now) + ceil(-left / self.refill_per_ms), MAX_SAFE)
        if delay_ms > max_wait_ms or left < self.lowest:
            reset_at = at + ceil((self.capacity - tokens) / self.refill_per_ms)
            remaining = max(0, floor(tokens))
            denial = Decision(False, self.limit, remaining, reset_at, delay_ms)
            return Outcome(state, Booking(denial, delay_ms), 0, False)
        taken = self._taken(left, at, now)
        return Outcome(taken.state, Booking(taken.result, delay_ms), taken.ttl_ms, True)

    def pause(self, state: State | None, now: int, until_ms: int) -> Outcome[None]:
        tokens, at = self._level(state, now)
        if until_ms <= now or (tokens < 1 and at >= until_ms):
            return Outcome(state, None, 0, False)
        # What it earns until then is credited at once, and nothing more before that. One token is
        # there a millisecond later, unless that takes longer without a pause, too.
        tokens, at = self._level(state, until_ms)
        tokens = min(tokens, _NEARLY_ONE)
        return Outcome((tokens, at), None, self._ttl(tokens, at, now), True)

    def adopt(self, state: State, now: int, figures: tuple[float, ...], at: int) -> State:
        # Of the two instants, the one that the state has is the one up to which it is credited.
        capacity, rate = figures
        tokens, at = state
        if now > at and tokens + (now - at) * rate >= capacity:
            return self.capacity, at
        is_paused = at > now and tokens < 1
        used = capacity - min(max(tokens, 0.0), capacity)
        paced, scaled = used * self.refill_per_ms / rate, used * self.capacity / capacity
        kept = middle(paced, scaled, used)
        if tokens < 0:
            kept = max(kept, self.capacity - 1) - tokens * self.refill_per_ms / rate
        tokens = max(self.capacity - kept * NUDGE, self.lowest)
        return (min(tokens, _NEARLY_ONE) if is_paused else tokens), at

    def _taken(self, tokens: float, at: int, now: int) -> Outcome[Decision]:
        reset_at = at + ceil((self.capacity - tokens) / self.refill_per_ms)
        decision = Decision(True, self.limit, max(0, floor(tokens)), reset_at, 0)
        return Outcome((tokens, at), decision, self._ttl(tokens, at, now), True)

    def _ttl(self, tokens: float, at: int, now: int) -> int:
        """Until the bucket is full again; a debt takes longer than an empty bucket."""
        if tokens >= 0:
            return (at - now) + self.ttl_ms
        full_in = ceil((self.capacity - tokens) / self.refill_per_ms)
        while tokens + full_in * self.refill_per_ms < self.capacity:
            full_in += 1
        return (at - now) + full_in

    def more_in_ms(self, decision: Decision, now: int, peeked: bool = False) -> float:
        # `reset_at` is when the bucket is full; the tokens after the next one come later.
        later = self.limit - decision.remaining - (not peeked)
        return decision.reset_at - now - later / self.refill_per_ms

    def longest_wait_ms(self, cost: int) -> int:
        # From an empty bucket, credited up to now.
        return ceil(cost / self.refill_per_ms)

    def restore(self, kept: Any) -> State:
        tokens, last = stored_pair(kept)
        return stored_number(tokens, MAX_SAFE, -MAX_SAFE), stored_whole(last, MAX_STORED_MS)

    def peek(self, state: State | None, now: int) -> Decision:
        decision = self.check(state, now, 1).result
        tokens, _ = self._level(state, now)
        return Decision(
            decision.allowed,
            self.limit,
            max(0, floor(tokens)),
            decision.reset_at,
            decision.retry_after_ms,
        )

    def forecast(self, state: State | None, now: int, cost: int) -> Forecast:
        tokens, _ = self._level(state, now)
        whole = max(0, floor(tokens))
        if tokens >= self.capacity:
            return Forecast(whole // cost, now, now)
        more_at = self._reaches(whole + 1, state, now)
        return Forecast(whole // cost, more_at, self._reaches(self.capacity, state, now))

    def _reaches(self, goal: float, state: State | None, now: int) -> int:
        """The first instant after `now` at which `check` would find `goal` tokens: the closed
        form, corrected for rounding."""
        tokens, at = self._level(state, now)
        when = at + ceil((goal - tokens) / self.refill_per_ms)
        while self._level(state, when)[0] < goal:
            when += 1
        while when > now + 1 and self._level(state, when - 1)[0] >= goal:
            when -= 1
        return when

    def _level(self, state: State | None, now: int) -> State:
        """Tokens at `now`, and the instant up to which they are credited."""
        if state is None:
            return self.capacity, now
        tokens, at = state
        if now > at:
            tokens += (now - at) * self.refill_per_ms
            at = now
        return (tokens if tokens < self.capacity else self.capacity), at


def token_bucket(capacity: int, refill_per_sec: float) -> TokenBucket:
    """Up to `capacity` at once, refilled at `refill_per_sec`, fractions included."""
    return TokenBucket(capacity, refill_per_sec)
