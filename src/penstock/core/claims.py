"""Who counts under which prefix of a store.

Limiters on one store object under one prefix use the same keys. With the same strategy that is how
limits are shared; with another one, or with other parameters, each would read what the other wrote
as its own. Where the two forms of state differ that is an error of its own, but two windows of
different limits look alike, and would silently share their counts. So a limiter claims its prefix
when it is made, and another meaning is refused.

A claim lasts as long as a limiter holds it: all that mean the same hold the same one, and the store
only knows it weakly. Stores that are other objects over the same server cannot be seen here.
"""

from __future__ import annotations

from typing import NoReturn
from weakref import WeakValueDictionary

from .._queueing import Mutex
from .store import Store
from .strategy import Strategy
from .validation import reject

__all__ = ["Claim", "claim"]

_mutex = Mutex()


class Claim:
    """Held by the limiters that share a prefix."""

    __slots__ = ("__weakref__", "meaning", "strategy")

    def __init__(self, strategy: Strategy) -> None:
        self.strategy: Strategy = strategy
        self.meaning: object = _meaning(strategy)


def claim(store: Store, lead: str, strategy: Strategy) -> Claim:
    """The claim of `strategy` to the keys of `store` that begin with `lead`, to be held on to.
    Raises `config_invalid` if somebody else counts there."""
    wanted = Claim(strategy)
    if _taken(store, lead, wanted).meaning != wanted.meaning:
        import gc

        # It may be that of a limiter that nobody has any more.
        gc.collect()
    found = _taken(store, lead, wanted)
    if found.meaning != wanted.meaning:
        _refuse(store, lead, strategy, found.strategy)
    return found


def _taken(store: Store, lead: str, wanted: Claim) -> Claim:
    """The claim that holds, which is the one wanted if there was none."""
    with _mutex.hold():
        if store._claims is None:
            store._claims = WeakValueDictionary()
        found: Claim = store._claims.setdefault(lead, wanted)
        return found


def _meaning(strategy: Strategy) -> object:
    """Equal for strategies that may share their counts. A strategy that declares its parameters
    says them in its `repr`; of one that does not, what all strategies have in common has to do."""
    if strategy.values or type(strategy).__repr__ is not Strategy.__repr__:
        return repr(strategy)
    return type(strategy), strategy.limit, strategy.window_ms, strategy.ttl_ms


def _refuse(store: Store, lead: str, one: Strategy, other: Strategy) -> NoReturn:
    where = f"under the prefix {lead[:-1]!r}" if lead else "without a prefix"
    reject(
        f"{one!r} and {other!r} would count in the same keys: a limiter with the second is on this "
        f"{type(store).__name__} {where} already; give one of them a prefix of its own, such as "
        "rate_limit(..., prefix='login'), or close the other one first"
    )
