"""`rate_limit`: where a strategy, a store and a clock become a limiter."""

from __future__ import annotations

from .accel.limiter import limiter_class
from .core.clock import Clock
from .core.durations import parse_rate
from .core.limiter import Limiter
from .core.pickling import MadeBy
from .core.store import Store
from .core.strategy import Strategy
from .core.validation import reject
from .stores.memory import MemoryStore
from .strategies.gcra import gcra

__all__ = ["rate_limit"]


def rate_limit(
    strategy: Strategy | str,
    *,
    store: Store | None = None,
    clock: Clock | None = None,
    prefix: str = "",
    max_waiters: int | None = None,
) -> Limiter:
    """A limiter for `strategy`, which may be a rate such as `"100/minute"` (paced by GCRA).

    Without a `store` it keeps its own MemoryStore, and closes it; a store that was passed in is
    left to its owner. `max_waiters` bounds how many callers may wait in `acquire` for one key.
    """
    chosen = gcra(*parse_rate(strategy)) if isinstance(strategy, str) else strategy
    home = MemoryStore(clock=clock) if store is None else store
    if isinstance(home, MemoryStore) and not home.sweeps_by(clock):
        reject(
            "the store is swept by another clock than this limiter's, and would forget what still "
            "counts: give both the same, MemoryStore(sweep_every_ms=..., clock=clock)"
        )
    limiter = limiter_class(chosen, home)(
        chosen,
        home,
        clock=clock,
        prefix=prefix,
        owns_store=store is None,
        max_waiters=max_waiters,
    )
    limiter.made_by = MadeBy(
        rate_limit, strategy, store=store, clock=clock, prefix=prefix, max_waiters=max_waiters
    )
    return limiter
