"""What a limiter has of its store: a claim to its prefix, and the store itself if it made it.

Limiters on one store object under one prefix use the same keys. With the same strategy that is how
limits are shared; with another one, or with other parameters, each would read what the other wrote
as its own. Where the two forms of state differ that is an error of its own, but two windows of
different limits look alike, and would silently share their counts. So a limiter claims its prefix
when it is made, and another meaning is refused.

A claim lasts as long as a limiter holds it: all that mean the same hold the same one, and the store
only knows it weakly. Stores that are other objects over the same server cannot be seen here.
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

        # It may be the claim of a limiter that is not referenced any more.
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


class Closing:
    """Closed at the end of a `with` or `async with` block."""

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
    """What every limiter has of its store: it closes the one that it made, and is pickled as the
    call that it was made by."""

    store: Store
    made_by: MadeBy | None = None
    """Set by the functions that make limiters, if the call may be repeated elsewhere."""

    _owns_store: bool
    _claims: Sequence[Claim]

    def shared(self: L) -> L:
        """The same limiter, beside which others may count under its prefix with other figures: for
        those who keep states that cannot read each other apart by themselves."""
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
                f"this {type(self).__name__} cannot be pickled or copied: only what rate_limit and "
                "two_tier make can; make it with one of them, or in the other process"
            )
        if self._owns_store and self.store.made_by is None:
            raise UnsupportedError(
                f"{self!r} cannot be pickled or copied: its counts are in the memory of this "
                "process; give it a store that others can open too, as in "
                "rate_limit(..., store='redis://localhost:6379')"
            )
        return self.made_by.reduced()
