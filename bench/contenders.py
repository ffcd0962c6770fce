"""Who is measured, and how each is asked.

Every contender is given the job in the cheapest form that its documentation shows: limiters are
made once, arguments that do not change are bound ahead of time, background work that the
algorithm does not need is left off. What comes back differs, and `answer` says how: some return a
full decision (limit, remaining, reset, retry), most return a bare yes or no.

Peers are imported by name when they are opened, so that one that is not installed costs its own
row and nothing else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import Any

from penstock import Clock, gcra, rate_limit

__all__ = ["CONTENDERS", "Contender", "Quota"]

Check = Callable[[str], Any]
AsyncCheck = Callable[[str], Awaitable[Any]]
BatchCheck = Callable[[Iterable[str]], list[Any]]

# Above every number of keys measured here; throttled-py forgets keys beyond its default of 1024.
_ROOMY = 2_000_000


@dataclass(frozen=True)
class Quota:
    """`limit` requests per `period_s` seconds."""

    limit: int
    period_s: int


@dataclass(frozen=True)
class Contender:
    """One library with one algorithm. A way of asking that it does not have is None."""

    name: str
    package: str
    answer: str
    open: Callable[[Quota], Check] | None
    aopen: Callable[[Quota], AsyncCheck] | None = None
    open_many: Callable[[Quota], BatchCheck] | None = None
    allowed: Callable[[Any], bool] = bool
    keyed: bool = True
    """A library without keys is passed the amount instead."""
    pure: bool = False
    """Whether this is Penstock with the compiled path turned off."""


def _penstock(quota: Quota, clock: Clock | None = None) -> Any:
    return rate_limit(gcra(quota.limit, quota.period_s * 1000), clock=clock)


def _limits(strategy: str, quota: Quota) -> Check:
    limits = import_module("limits")
    item = limits.RateLimitItemPerSecond(quota.limit, quota.period_s)
    limiter = getattr(limits.strategies, strategy)(limits.storage.MemoryStorage())
    return partial(limiter.hit, item)


def _limits_async(strategy: str, quota: Quota) -> AsyncCheck:
    limits = import_module("limits")
    aio = import_module("limits.aio")
    item = limits.RateLimitItemPerSecond(quota.limit, quota.period_s)
    limiter = getattr(aio.strategies, strategy)(aio.storage.MemoryStorage())
    return partial(limiter.hit, item)


def _throttled(module: str, algorithm: str, quota: Quota) -> Any:
    throttled = import_module(module)
    per = import_module("throttled.rate_limiter").per_duration
    store = throttled.MemoryStore(options={"MAX_SIZE": _ROOMY})
    period = timedelta(seconds=quota.period_s)
    return throttled.Throttled(using=algorithm, quota=per(period, quota.limit), store=store).limit


def _admitted(result: Any) -> bool:
    return not result.limited


def _pyrate_limiter(quota: Quota) -> Any:
    """A limiter with a bucket per key, routed as the documentation shows.

    Its GCRA is the algorithm that keeps no log. That has nothing to leak either, so the
    background leaking is left off.
    """
    pyrate = import_module("pyrate_limiter")
    rates = [pyrate.Rate(quota.limit, quota.period_s * 1000)]
    clock = pyrate.MonotonicClock()
    buckets: dict[str, Any] = {}

    def wrap_item(_factory: Any, name: str, weight: int = 1) -> Any:
        return pyrate.RateItem(name, clock.now(), weight=weight)

    def get(_factory: Any, item: Any) -> Any:
        bucket = buckets.get(item.name)
        if bucket is None:
            bucket = buckets[item.name] = pyrate.StateBucket(rates)
        return bucket

    routing = {"wrap_item": wrap_item, "get": get}
    return pyrate.Limiter(type("PerKey", (pyrate.BucketFactory,), routing)())


def _pyrate(quota: Quota) -> Check:
    return partial(_pyrate_limiter(quota).try_acquire, blocking=False)


def _pyrate_async(quota: Quota) -> AsyncCheck:
    return partial(_pyrate_limiter(quota).try_acquire_async, blocking=False)


def _token_bucket(quota: Quota) -> Check:
    token_bucket = import_module("token_bucket")
    storage = token_bucket.MemoryStorage()
    limiter = token_bucket.Limiter(quota.limit / quota.period_s, quota.limit, storage)
    check: Check = limiter.consume
    return check


def _aiolimiter(quota: Quota) -> AsyncCheck:
    """One limiter for everything. It waits where others deny, and returns nothing."""
    limiter = import_module("aiolimiter").AsyncLimiter(quota.limit, quota.period_s)
    acquire: AsyncCheck = limiter.acquire
    return acquire


def _ours(name: str, pure: bool) -> Contender:
    return Contender(
        name,
        "penstock",
        "decision",
        open=lambda quota: _penstock(quota).check,
        aopen=lambda quota: _penstock(quota).acheck,
        open_many=lambda quota: _penstock(quota).check_many,
        pure=pure,
    )


def _of_limits(title: str, strategy: str) -> Contender:
    return Contender(
        f"limits, {title}",
        "limits",
        "bool",
        open=partial(_limits, strategy),
        aopen=partial(_limits_async, strategy),
    )


def _of_throttled(title: str, algorithm: str) -> Contender:
    return Contender(
        f"throttled-py, {title}",
        "throttled-py",
        "decision",
        open=partial(_throttled, "throttled", algorithm),
        aopen=partial(_throttled, "throttled.asyncio", algorithm),
        allowed=_admitted,
    )


CONTENDERS = {
    contender.name: contender
    for contender in (
        _ours("penstock", pure=False),
        _ours("penstock, interpreted", pure=True),
        _of_limits("fixed window", "FixedWindowRateLimiter"),
        _of_limits("moving window", "MovingWindowRateLimiter"),
        _of_throttled("gcra", "gcra"),
        _of_throttled("token bucket", "token_bucket"),
        Contender("pyrate-limiter, gcra", "pyrate-limiter", "bool", _pyrate, _pyrate_async),
        Contender("token-bucket", "token-bucket", "bool", _token_bucket),
        Contender(
            "aiolimiter",
            "aiolimiter",
            "nothing",
            open=None,
            aopen=_aiolimiter,
            allowed=lambda _: True,
            keyed=False,
        ),
    )
}
