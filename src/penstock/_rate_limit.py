"""`rate_limit`: makes a limiter of a strategy, a store and a clock."""

from __future__ import annotations

from typing import overload

from .accel._gates import limiter_class
from .core._clock import Clock
from .core._limiter import Limiter, SlotLimiter
from .core._store import MadeBy, Store
from .core._strategy import Strategy
from .stores._opening import open_for_limiter
from .strategies import Slots, strategy_of_rate

__all__ = ["rate_limit"]


@overload
def rate_limit(
    strategy: Slots,
    *,
    store: Store | str | None = ...,
    clock: Clock | None = ...,
    prefix: str = ...,
    max_waiters: int | None = ...,
) -> SlotLimiter: ...


@overload
def rate_limit(
    strategy: Strategy | str,
    *,
    store: Store | str | None = ...,
    clock: Clock | None = ...,
    prefix: str = ...,
    max_waiters: int | None = ...,
) -> Limiter: ...


def rate_limit(
    strategy: Strategy | str,
    *,
    store: Store | str | None = None,
    clock: Clock | None = None,
    prefix: str = "",
    max_waiters: int | None = None,
) -> Limiter:
    """A limiter for `strategy`, which may be a rate such as `"100/minute"`.

    A rate is paced by GCRA: 100 at once for a key that has rested, and one more every 600 ms from
    then on. Over time that is 100 a minute, and in the worst minute 199: twice the count less one,
    a saved-up burst and what accrues while it is spent. (From a count of 2,048 on, up to 0.5% more;
    above 10,240 a second it is a token bucket, which does the same.) `gcra(100, 60_000, burst=10)`
    admits 109 in the worst minute, and `sliding_window_log(100, 60_000)` never more than 100. Units
    go from ms to weeks: `"5/30s"`, `"1000/week"`.

    Without a `store` the limiter has a MemoryStore of its own. A URL such as
    `"redis://localhost:6379"` is opened as by `open_store`. Either is closed with the limiter, by
    `close`, `aclose`, `with` or `async with`; a store object that is passed in is left open.
    Limiters that share a store keep separate counts by their `prefix`; those with the same prefix
    share their counts and must have the same strategy. `max_waiters` bounds how many callers may
    wait in `acquire` for one key.
    """
    chosen = strategy_of_rate(strategy) if isinstance(strategy, str) else strategy
    home, owns_store = open_for_limiter(store, clock)
    try:
        limiter = limiter_class(chosen, home)(
            chosen,
            home,
            clock=clock,
            prefix=prefix,
            owns_store=owns_store,
            max_waiters=max_waiters,
        )
    except BaseException:
        if owns_store:
            home.close()
        raise
    limiter.made_by = MadeBy(
        rate_limit, strategy, store=store, clock=clock, prefix=prefix, max_waiters=max_waiters
    )
    return limiter
