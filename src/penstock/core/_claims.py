"""How a limiter is bound to its store: a claim to its keys, and who closes the store.

Limiters on one store object under one prefix use the same keys. With the same strategy that is how
they share a limit. With different strategies each would read the other's states: an error if the
states have different forms, but two fixed windows with different limits look alike and would
silently share their counts. So a limiter claims its prefix when it is made, and a limiter with
another strategy under that prefix is rejected.

Keys also meet if one prefix continues another: key `user:bob` under the prefix `q` is key `bob`
under the prefix `q:user`. Two such limiters are rejected whatever their strategies: they would
share single keys, and not a limit. Without a prefix a limiter has all keys of a store object.

Limiters with equal strategies hold the same claim. The store refers to it weakly, so it ends with
the last of them. Two store objects on one server do not see each other's claims.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from weakref import WeakSet, WeakValueDictionary

from .._queueing import Mutex
from ._errors import UnsupportedError
from ._store import MadeBy, Store
from ._strategy import Strategy
from ._validation import reject

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Claim", "Closing", "OnStore", "StoreClaims", "claim"]


C = TypeVar("C", bound="Closing")
L = TypeVar("L", bound="OnStore")

_mutex = Mutex()


class Claim:
    """One strategy's claim to the keys that begin with `lead`, held by every limiter that shares
    it. The lead of a limit without keys is its only key."""

    __slots__ = ("__weakref__", "lead", "meaning", "nests", "strategy")

    def __init__(self, lead: str, strategy: Strategy) -> None:
        self.lead = lead
        self.strategy: Strategy = strategy
        self.meaning: object = _meaning(strategy)
        self.nests: list[_Nest] = []


class _Nest:
    """Claims whose leads begin with another lead. Each of them refers to it, so it ends with the
    last of them."""

    __slots__ = ("__weakref__", "claims")

    def __init__(self) -> None:
        self.claims: WeakSet[Claim] = WeakSet()


class StoreClaims:
    """The claims to the keys of one store: by lead, and by the leads that they continue."""

    def __init__(self) -> None:
        self.by_lead: WeakValueDictionary[str, Claim] = WeakValueDictionary()
        self._nests: WeakValueDictionary[str, _Nest] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self.by_lead)

    def taken(self, wanted: Claim) -> Claim:
        """The claim in force: `wanted`, or one that it has to share its keys with."""
        other = self._meets(wanted)
        if other is not None:
            return other
        found = self.by_lead.setdefault(wanted.lead, wanted)
        if found is wanted:
            for lead in _leads_above(wanted.lead):
                nest = self._nests.setdefault(lead, _Nest())
                nest.claims.add(wanted)
                wanted.nests.append(nest)
        return found

    def _meets(self, wanted: Claim) -> Claim | None:
        """A claim to other keys of which some are wanted too."""
        for lead in _leads_above(wanted.lead):
            above = self.by_lead.get(lead)
            if above is not None:
                return above
        nest = self._nests.get(wanted.lead)
        return None if nest is None else next(iter(nest.claims), None)


def _leads_above(lead: str) -> Iterator[str]:
    """The shorter leads that this one begins with. None begins with the key of a limit without
    keys, since that does not end with a colon."""
    if lead:
        yield ""
    for place in range(len(lead) - 1):
        if lead[place] == ":":
            yield lead[: place + 1]


def claim(store: Store, lead: str, strategy: Strategy) -> Claim:
    """Claim the keys of `store` that begin with `lead` for `strategy`. The claim lasts as long as
    it is referenced. Raises `config_invalid` if another limiter has some of them, or if the store
    rejects the strategy."""
    store.require_strategy(strategy)
    wanted = Claim(lead, strategy)
    if not _may_share(_taken(store, wanted), wanted):
        import gc

        # It may belong to a limiter that is garbage already.
        gc.collect()
    found = _taken(store, wanted)
    if not _may_share(found, wanted):
        _refuse(store, wanted, found)
    return found


def _may_share(found: Claim, wanted: Claim) -> bool:
    return found.lead == wanted.lead and found.meaning == wanted.meaning


def _taken(store: Store, wanted: Claim) -> Claim:
    with _mutex.hold():
        if store._claims is None:
            store._claims = StoreClaims()
        found: Claim = store._claims.taken(wanted)
        return found


def _meaning(strategy: Strategy) -> object:
    """Equal for strategies that may share their counts. The `repr` of a strategy contains its
    declared parameters; without any, the attributes that all strategies have are compared."""
    if strategy.values or type(strategy).__repr__ is not Strategy.__repr__:
        return repr(strategy)
    return type(strategy), strategy.limit, strategy.window_ms, strategy.ttl_ms


def _refuse(store: Store, wanted: Claim, found: Claim) -> NoReturn:
    name = type(store).__name__
    if found.lead == wanted.lead:
        reject(
            f"{wanted.strategy!r} and {found.strategy!r} would count in the same keys: this {name} "
            f"already has a limiter with the second {_where(found.lead)}; give one of them another "
            "prefix, as in rate_limit(..., prefix='login'), or close the other one first"
        )
    longer = max(wanted.lead, found.lead, key=len)
    example = longer + ("alice" if longer.endswith(":") else "")
    reject(
        f"a limiter {_where(wanted.lead)} and one {_where(found.lead)} would share keys of this "
        f"{name}, such as {example!r}; give each limiter "
        "a prefix that does not continue another one, as in rate_limit(..., prefix='login'), or "
        "close the other one first"
    )


def _where(lead: str) -> str:
    return f"under the prefix {lead.removesuffix(':')!r}" if lead else "without a prefix"


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
