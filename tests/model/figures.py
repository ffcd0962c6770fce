"""The figures of one limit, as plain data.

A scenario is printed when it fails, and must be readable by itself. So its limits are small frozen
classes; `strategy` makes the object of the package, `policy` the mapping of a policy file. The
models (`models.py`) take the same figures.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import penstock
from penstock import Strategy

F = TypeVar("F", bound="Figures")


@dataclass(frozen=True)
class Figures:
    """The figures of a limit. `limit` is the ceiling that its decisions report."""

    limit: int

    paced = False
    """Whether units come back one by one at a pace, so that they can be booked ahead."""

    @property
    def span_ms(self) -> int:
        """The time after which a key that was full has everything again."""
        raise NotImplementedError

    def strategy(self) -> Strategy:
        raise NotImplementedError

    def policy(self) -> dict[str, Any]:
        """The limit in a policy file."""
        raise NotImplementedError

    def plan(self) -> dict[str, Any]:
        """The figures that a plan or an override replaces."""
        return {"limit": self.limit}

    def with_limit(self: F, limit: int) -> F:
        """The same limit for another plan: only its ceiling (and with it its pace) differs."""
        return replace(self, limit=limit)

    def with_pace(self: F, factor: int) -> F:
        """The same limit for another plan: only its pace differs, if it has one."""
        return self

    @property
    def pace(self) -> float:
        """The units that come back in a millisecond, if they come back at a pace."""
        return 0.0

    def fills_like(self, other: Figures) -> bool:
        """Whether both take the same time to replenish everything."""
        return self.pace * other.limit == other.pace * self.limit

    def allows(self, other: Figures) -> bool:
        """Whether everything that the other figures admit is admitted by these."""
        return self.limit >= other.limit


@dataclass(frozen=True)
class Gcra(Figures):
    """`limit` is the burst; `rate` units come back in each period."""

    period_ms: int
    rate: int
    paced = True

    @property
    def span_ms(self) -> int:
        return -(-self.period_ms * self.limit // self.rate)

    def strategy(self) -> Strategy:
        return penstock.gcra(self.rate, self.period_ms, self.limit)

    def policy(self) -> dict[str, Any]:
        figures = {"limit": self.rate, "periodMs": self.period_ms, "burst": self.limit}
        return {"strategy": "gcra", **figures}

    def plan(self) -> dict[str, Any]:
        return {"limit": self.rate, "burst": self.limit}

    def with_limit(self, limit: int) -> Gcra:
        rate = max(1, self.rate * limit // self.limit)
        return replace(self, limit=limit, rate=rate)

    def with_pace(self, factor: int) -> Gcra:
        return replace(self, rate=self.rate * factor)

    @property
    def pace(self) -> float:
        return self.rate / self.period_ms

    def allows(self, other: Figures) -> bool:
        return isinstance(other, Gcra) and self.limit >= other.limit and self.rate >= other.rate


@dataclass(frozen=True)
class TokenBucket(Figures):
    per_sec: float
    paced = True

    @property
    def span_ms(self) -> int:
        return int(self.limit * 1000 / self.per_sec) + 1

    def strategy(self) -> Strategy:
        return penstock.token_bucket(self.limit, self.per_sec)

    def policy(self) -> dict[str, Any]:
        figures = {"capacity": self.limit, "refillPerSec": self.per_sec}
        return {"strategy": "tokenBucket", **figures}

    def plan(self) -> dict[str, Any]:
        return {"capacity": self.limit, "refillPerSec": self.per_sec}

    def with_limit(self, limit: int) -> TokenBucket:
        return replace(self, limit=limit, per_sec=self.per_sec * limit / self.limit)

    def with_pace(self, factor: int) -> TokenBucket:
        return replace(self, per_sec=self.per_sec * factor)

    @property
    def pace(self) -> float:
        return self.per_sec / 1000

    def allows(self, other: Figures) -> bool:
        faster = isinstance(other, TokenBucket) and self.per_sec >= other.per_sec
        return faster and self.limit >= other.limit


@dataclass(frozen=True)
class FixedWindow(Figures):
    window_ms: int
    anchor: str = "epoch"

    @property
    def span_ms(self) -> int:
        return self.window_ms

    def strategy(self) -> Strategy:
        return penstock.fixed_window(self.limit, self.window_ms, self.anchor)  # type: ignore[arg-type]

    def policy(self) -> dict[str, Any]:
        figures = {"limit": self.limit, "windowMs": self.window_ms, "anchor": self.anchor}
        return {"strategy": "fixedWindow", **figures}


@dataclass(frozen=True)
class SlidingWindow(Figures):
    window_ms: int
    buckets: int = 10

    @property
    def span_ms(self) -> int:
        return self.window_ms + self.window_ms // self.buckets + 2

    def strategy(self) -> Strategy:
        return penstock.sliding_window(self.limit, self.window_ms, self.buckets)

    def policy(self) -> dict[str, Any]:
        figures = {"limit": self.limit, "windowMs": self.window_ms, "buckets": self.buckets}
        return {"strategy": "slidingWindow", **figures}


@dataclass(frozen=True)
class WindowLog(Figures):
    window_ms: int

    @property
    def span_ms(self) -> int:
        return self.window_ms

    def strategy(self) -> Strategy:
        return penstock.sliding_window_log(self.limit, self.window_ms)

    def policy(self) -> dict[str, Any]:
        figures = {"limit": self.limit, "windowMs": self.window_ms}
        return {"strategy": "slidingWindowLog", **figures}


@dataclass(frozen=True)
class CalendarQuota(Figures):
    period: str = "day"
    timezone: str = "UTC"

    @property
    def span_ms(self) -> int:
        days = {"hour": 1 / 24, "day": 25 / 24, "week": 8, "month": 32}[self.period]
        return int(days * 86_400_000)

    def strategy(self) -> Strategy:
        return penstock.calendar_quota(self.limit, self.period, self.timezone)  # type: ignore[arg-type]

    def policy(self) -> dict[str, Any]:
        figures = {"limit": self.limit, "period": self.period, "timezone": self.timezone}
        return {"strategy": "calendarQuota", **figures}


@dataclass(frozen=True)
class Slots(Figures):
    ttl_ms: int = 30_000

    @property
    def span_ms(self) -> int:
        return self.ttl_ms

    def strategy(self) -> Strategy:
        return penstock.slots(self.limit, self.ttl_ms)

    def policy(self) -> dict[str, Any]:
        return {"strategy": "slots", "limit": self.limit, "ttlMs": self.ttl_ms}


@dataclass(frozen=True)
class Unlimited(Figures):
    limit: int = 2**53 - 1

    @property
    def span_ms(self) -> int:
        return 1

    def strategy(self) -> Strategy:
        return penstock.unlimited()

    def policy(self) -> dict[str, Any]:
        raise NotImplementedError("a policy file lifts a limit by a plan or an override")
