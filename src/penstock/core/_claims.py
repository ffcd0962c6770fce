"""How a limiter is bound to its store: a claim to its prefix, and who closes the store.

Limiters on one store object under one prefix use the same keys. With the same strategy that is how
they share a limit. With different strategies each would read the other's states: an error if the
states have different forms, but two fixed windows with different limits look alike and would
silently share their counts. So a limiter claims its prefix when it is made, and a limiter with
another strategy under that prefix is rejected.

Limiters with equal strategies hold the same claim. The store refers to it weakly, so it ends with
the last of them. Two store objects on one server do not see each other's claims.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from weakref import WeakValueDictionary

from .._queueing import Mutex
from ._errors import UnsupportedError
from ._store import MadeBy, Store
from ._strategy import Strategy
from ._validation import reject

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Claim", "Closing", "OnStore", "claim"]


C = TypeVar("C", bound="Closing")
L = TypeVar("L", bound="OnStore")

_mutex = Mutex()


class Claim:
    """One strategy's claim to a prefix, held by every limiter that shares it."""

    __slots__ = ("__weakref__", "meaning", "strategy")

    def __init__(self, strategy: Strategy) -> None:
        self.strategy: Strategy = strategy
        self.meaning: object = _meaning(strategy)


def claim(store: Store, lead: str, strategy: Strategy) -> Claim:
    """Claim the keys of `store` that begin with `lead` for `strategy`. The claim lasts as long as
    it is referenced. Raises `config_invalid` if a limiter with another strategy has them, or if the
    store rejects the strategy."""
    store.require_strategy(strategy)
    wanted = Claim(strategy)
    if _taken(store, lead, wanted).meaning != wanted.meaning:
        import gc

        # It may belong to a limiter that is garbage already.
        gc.collect()
    found = _taken(store, lead, wanted)
    if found.meaning != wanted.meaning:
        _refuse(store, lead, strategy, found.strategy)
    return found


def _taken(store: Store, lead: str, wanted: Claim) -> Claim:
    """The claim in force, which is `wanted` if there was none."""
    with _mutex.hold():
        if store._claims is None:
            store._claims = WeakValueDictionary()
        found: Claim = store._claims.setdefault(lead, wanted)
        return found


def _meaning(strategy: Strategy) -> object:
    """Equal for strategies that may share their counts. The `repr` of a strategy contains its
    declared parameters; without any, the attributes that all strategies have are compared."""
    if strategy.values or type(strategy).__repr__ is not Strategy.__repr__:
        return repr(strategy)
    return type(strategy), strategy.limit, strategy.window_ms, strategy.ttl_ms


def _refuse(store: Store, lead: str, one: Strategy, other: Strategy) -> NoReturn:
    where = f"under the prefix {lead[:-1]!r}" if lead else "without a prefix"
    reject(
        f"{one!r} and {other!r} would count in the same keys: this {type(store).__name__} already "
        f"has a limiter with the second {where}; give one of them another prefix, as in "
        "rate_limit(..., prefix='login'), or close the other one first"
    )


class Closing:
    """A context manager, sync and async, that closes at the end of the block."""

    def close(self) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        raise NotImplementedError

    def __enter__(self: C) -> C:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self: C) -> C:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()


class OnStore(Closing):
    """The base of limiters: closes the store if the limiter made it, and pickles the limiter as
    the call that made it."""

    store: Store
    made_by: MadeBy | None = None
    """The call that made it, for pickling; None if it cannot be repeated elsewhere."""

    _owns_store: bool
    _claims: Sequence[Claim]

    def shared(self: L) -> L:
        """Give up the claim, so that limiters with other parameters may use the same prefix. For
        callers that keep states of different forms apart by themselves. Returns the limiter."""
        self._claims = ()
        return self

    def close(self) -> None:
        """Close the store, if this limiter made it."""
        self._claims = ()
        if self._owns_store:
            self.store.close()

    async def aclose(self) -> None:
        """The awaitable twin of `close`."""
        self._claims = ()
        if self._owns_store:
            await self.store.aclose()

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle holds what the limiter was made from: see `Store.__reduce__`."""
        if self.made_by is None:
            raise UnsupportedError(
                f"this {type(self).__name__} cannot be pickled or copied: only limiters made by "
                "rate_limit, Limits or two_tier can; use one of these, or make it in the other "
                "process"
            )
        if self._owns_store and self.store.made_by is None:
            raise UnsupportedError(
                f"{self!r} cannot be pickled or copied: its counts are in the memory of this "
                "process; give it a store that others can open too, as in "
                "rate_limit(..., store='redis://localhost:6379')"
            )
        return self.made_by.reduced()
