"""A strategy as a user would write it, Lua and all: the leaky bucket as a meter.

Every admitted unit is poured into a bucket that leaks `leak_units` every `leak_every_ms`; what
would make it overflow is denied. All arithmetic is in whole numbers that a double holds, so that
Lua repeats it exactly.
"""

from __future__ import annotations

from typing import Any

import penstock
from penstock import ConfigInvalidError, Decision, Forecast, Outcome, Parameter, Strategy
from penstock.strategies import LuaSource, beside, hash_fields, whole

State = tuple[int, int]

MOST = 10**9
LATEST = 2**47
LONGEST_MS = 2**42
MAX_SAFE = 2**53 - 1


def _decode(raw: Any) -> State | None:
    fields = hash_fields(raw)
    return None if fields is None else (whole(fields[0]), whole(fields[1]))


@penstock.register
class LeakyBucket(Strategy):
    """State: (level, the instant of the last leak)."""

    name = "leaky_bucket"
    parameters: tuple[Parameter, ...] = (
        Parameter("capacity", "count", "units that the bucket holds", high=MOST),
        Parameter("leak_every_ms", "span", "the time between leaks", example="600ms"),
        Parameter("leak_units", "count", "units that leak each time", default=1, high=MOST),
    )
    lua_sources: tuple[LuaSource, ...] = (
        LuaSource(
            "leakyBucket",
            beside(__file__),
            argv=("now", "capacity", "leakEveryMs", "leakUnits", "cost"),
            state="hash: l level, a instant of the last leak, each %.0f",
            raw="l and a, or nil twice",
            decode=_decode,
        ),
    )

    def __init__(self, capacity: int, leak_every_ms: int, leak_units: int = 1) -> None:
        super().__init__(capacity=capacity, leak_every_ms=leak_every_ms, leak_units=leak_units)
        self.limit = capacity
        self.every_ms: int = self.values["leak_every_ms"]
        self.leak_units = leak_units
        self.ttl_ms = self._leaks(capacity) * self.every_ms
        if self.ttl_ms > LONGEST_MS:
            raise ConfigInvalidError(f"a bucket of {capacity} takes {self.ttl_ms} ms to drain")

    @classmethod
    def per(cls, limit: int, window_ms: int) -> LeakyBucket:
        """As many per window in the long run, never faster: the interval is rounded up."""
        return cls(limit, -(-window_ms // limit))

    def check(self, state: State | None, now: int, cost: int) -> Outcome[Decision]:
        level, at = self._leaked(state, now)
        if level + cost <= self.limit:
            level += cost
            empty_at = at + self._leaks(level) * self.every_ms
            decision = Decision(True, self.limit, self.limit - level, empty_at, 0)
            return Outcome((level, at), decision, empty_at - now, True)
        empty_at = at + self._leaks(level) * self.every_ms
        room_at = at + self._leaks(level + cost - self.limit) * self.every_ms
        retry = room_at - now if cost <= self.limit else MAX_SAFE
        remaining = max(0, self.limit - level)
        return Outcome(state, Decision(False, self.limit, remaining, empty_at, retry), 0, False)

    def forecast(self, state: State | None, now: int, cost: int) -> Forecast:
        level, at = self._leaked(state, now)
        if not level:
            return Forecast(self.limit // cost, now, now)
        empty_at = at + self._leaks(level) * self.every_ms
        return Forecast(max(0, self.limit - level) // cost, at + self.every_ms, empty_at)

    def restore(self, kept: Any) -> State:
        level, at = kept
        if type(level) is not int or type(at) is not int:
            raise ValueError(f"{kept!r} is no level and instant")
        if not 0 <= level <= MOST or not 0 <= at <= LATEST:
            raise ValueError(f"{kept!r} is out of bounds")
        return level, at

    def _leaks(self, units: int) -> int:
        """How many leaks it takes to be rid of so many units."""
        return -(-units // self.leak_units)

    def _leaked(self, state: State | None, now: int) -> State:
        """The level at `now`, and the instant of the last leak. A clock that went back leaks
        nothing until it has caught up."""
        if state is None:
            return 0, now
        level, at = state
        if now > at:
            leaks = (now - at) // self.every_ms
            level = max(0, level - leaks * self.leak_units)
            at += leaks * self.every_ms
        return (level, at) if level else (0, max(at, now))
