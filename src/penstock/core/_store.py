"""How what holds locks, connections and counts is pickled: as the call that it was made by.

What a backend is: one atomic read-modify-write, `apply`.

A store keeps states under keys and knows nothing about rate limiting. Subclass `Store` and write
`apply` (or `aapply`, or both): read the key's state, treating one whose time has passed on the
caller's clock as absent; call `transform.run(state, now, cost)`; write what the outcome says;
return its result; let nobody in between. `reset` and the batch forms follow from that, and may be
overridden where the backend has something better.

Taking many units at once from a shared store, to spend them elsewhere.

A lease is a check of a larger cost, with one twist: when less than wanted is left but enough for
the request that asks, what is left is taken, so that no budget is stranded at the end of a window.
`bargain` holds that rule once; the transform runs it against the oracle inside an atomic `apply`,
and a store with a faster `check` may run it against that, one atomic check at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import wraps
from operator import attrgetter
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from ._clock import Clock
from ._decision import Decision, Forecast, Outcome
from ._errors import UnsupportedError
from ._lua import LuaAccelerator
from ._strategy import Strategy
from ._validation import reject

__all__ = [
    "CLEAR",
    "COUNTED",
    "STATS",
    "Grant",
    "MadeBy",
    "Store",
    "Transform",
    "bargain",
    "checking",
    "forecasting",
    "from_its_url",
    "leasing",
    "peeking",
]


class MadeBy:
    """A call. Its text says nothing of the arguments: there may be a password among them."""

    __slots__ = ("_arguments", "_make", "_options")

    def __init__(self, make: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        self._make = make
        self._arguments = arguments
        self._options = options

    def reduced(self) -> tuple[Any, ...]:
        """For the `__reduce__` of what was made."""
        return _make_again, (self._make, self._arguments, self._options)

    def __repr__(self) -> str:
        return f"<MadeBy {self._make.__qualname__}>"


def _make_again(make: Callable[..., Any], arguments: tuple[Any, ...], options: Any) -> Any:
    return make(*arguments, **options)


R = TypeVar("R")
P = ParamSpec("P")
S = TypeVar("S", bound="Store")


class Transform(Generic[R]):
    """A pure transition on its way to a store, with the accelerators it may be swapped for.

    `run(state, now, cost)` yields an Outcome. `strategy` is whose state it reads and `kind` that
    one's name. `lua` and `native` are its accelerators; `role` says what they have to do to stand
    for `run`: "check", "lease" (see `Grant`), or "peek" and "forecast", which only read.
    `refuse(now, retry_after_ms)` is the answer of a store that has no room for a new key, and
    `decision_in(result)` the decision about the key, for a store that has to choose which keys it
    can do without; None where a result tells nothing of the kind.
    """

    __slots__ = (
        "decision_in",
        "kernel",
        "kind",
        "lua",
        "native",
        "need",
        "refuse",
        "role",
        "run",
        "strategy",
    )

    def __init__(
        self,
        strategy: Strategy | None,
        role: str,
        run: Callable[[Any, int, int], Outcome[R]],
        refuse: Callable[[int, int], R],
    ) -> None:
        self.strategy: Strategy | None = strategy
        self.kind: str = "" if strategy is None else strategy.name
        self.role: str = role
        self.run: Callable[[Any, int, int], Outcome[R]] = run
        self.refuse: Callable[[int, int], R] = refuse
        self.lua: LuaAccelerator | None = None if strategy is None else strategy.lua
        self.native: tuple[Any, ...] | None = None if strategy is None else strategy.native
        self.decision_in: Callable[[R], Any] = _none
        # For the role "lease": the least that helps, where `cost` is what is wanted.
        self.need: int = 1
        # What the compiled path made of `native`, once it has seen this transform.
        self.kernel: Any = None

    def needs_room(self, now: int, cost: int) -> bool:
        """Whether a check of a new key would be kept. Where there is no room for it, those who only
        look are told what such a check would be."""
        return self.strategy is not None and self.strategy.check(None, now, cost).persist

    def __repr__(self) -> str:
        return f"<Transform {self.role} of {self.strategy!r}>"


def _none(_result: Any) -> None:
    return None


def _itself(result: Any) -> Any:
    return result


def checking(strategy: Strategy) -> Transform[Decision]:
    """The transform behind `check`."""

    def refuse(now: int, retry_after_ms: int) -> Decision:
        return Decision(False, strategy.limit, 0, now + retry_after_ms, retry_after_ms)

    transform = Transform(strategy, "check", strategy.check, refuse)
    if strategy.restricts:
        transform.decision_in = _itself
    return transform


def peeking(strategy: Strategy) -> Transform[Decision]:
    """The transform behind `peek`: it never writes."""

    def run(state: Any, now: int, _cost: int) -> Outcome[Decision]:
        return Outcome(state, strategy.peek(state, now), 0, False)

    return Transform(strategy, "peek", run, checking(strategy).refuse)


def forecasting(strategy: Strategy) -> Transform[Forecast]:
    """The transform behind `forecast`: it never writes."""

    def run(state: Any, now: int, cost: int) -> Outcome[Forecast]:
        return Outcome(state, strategy.forecast(state, now, cost), 0, False)

    def refuse(now: int, retry_after_ms: int) -> Forecast:
        return Forecast(0, now + retry_after_ms, now + retry_after_ms)

    return Transform(strategy, "forecast", run, refuse)


CLEAR: Transform[None] = Transform(
    None,
    "clear",
    lambda _state, _now, _cost: Outcome(None, None, 0, True),
    lambda _now, _retry_after_ms: None,
)
"""Forgets a key."""


STATS: dict[str, str] = {
    "keys": "Keys that are remembered.",
    "bytes": "About what they take.",
    "evictions": "Keys forgotten, though they still counted, to make room.",
    "refusals": "Requests denied for want of room.",
}
"""What a store may tell of itself."""

COUNTED = frozenset({"evictions", "refusals"})
"""What of it only ever grows."""


class Store:
    """Where states live: the base class of all stores. A subclass has `apply`, `aapply` or both,
    and everything else follows from them."""

    reads_own_clock: bool = False
    """True when the backend's clock decides and the `now` that callers pass is not used."""

    answers_at_once: bool = False
    """True when states are in this process and no call ever waits: what is awaited ends in one
    step."""

    native_table: Any = None
    """The compiled table of this process in which the states are, for a limiter that may decide
    there without `apply`; None for all others."""

    made_by: MadeBy | None = None
    """How to open it again, if it was opened from a URL; see `from_its_url`."""

    # Who counts under which prefix; see `core/_limiter.py`.
    _claims: WeakValueDictionary[str, Any] | None = None

    def apply(self, key: str, transform: Transform[R], now: int, cost: int) -> R:
        """Run the transform on the key's state, atomically, and return its result."""
        raise _lacks(self, "apply", "acheck, apeek, ... (the async calls)")

    async def aapply(self, key: str, transform: Transform[R], now: int, cost: int) -> R:
        """The awaitable twin of `apply`."""
        raise _lacks(self, "aapply", "check, peek, ... (the sync calls)")

    def apply_many(
        self, keys: Sequence[str], transform: Transform[R], now: int, cost: int
    ) -> list[R]:
        """As one `apply` per key, in order, at one instant."""
        return [self.apply(key, transform, now, cost) for key in keys]

    async def aapply_many(
        self, keys: Sequence[str], transform: Transform[R], now: int, cost: int
    ) -> list[R]:
        """The awaitable twin of `apply_many`."""
        return [await self.aapply(key, transform, now, cost) for key in keys]

    def reset(self, key: str) -> None:
        """Forget a key."""
        self.apply(key, CLEAR, 0, 1)

    async def areset(self, key: str) -> None:
        """The awaitable twin of `reset`."""
        await self.aapply(key, CLEAR, 0, 1)

    def require_clock(self, clock: Clock | None) -> None:
        """Raise `config_invalid` if a limiter with this clock cannot use the store; None is the
        system's."""
        if clock is not None and self.reads_own_clock:
            reject(
                f"{type(self).__name__} reads its server's clock, so the one given here would "
                "be ignored; leave it out, or make the store with use_server_time=False"
            )

    def another(self, *, clock: Clock | None, max_keys: int | None = None) -> Store:
        """An empty store with bounds of its own, for keys that must not push out those of this
        one; the store itself where its room is a server's matter."""
        return self

    def stats(self) -> Mapping[str, int]:
        """What the store tells those who watch it, under the names of `STATS`. It must not wait.
        By default there is nothing to tell: a server has metrics of its own."""
        return {}

    def close(self) -> None:
        """Give back what the store holds. Idempotent."""

    async def aclose(self) -> None:
        """The awaitable twin of `close`."""

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle holds what the store was opened from, a password in its URL included; to load
        it is to open it again."""
        if self.made_by is None:
            name = type(self).__name__
            raise UnsupportedError(
                f"this {name} cannot be pickled or copied: it was not opened from a URL, and its "
                "connections, locks and counts are of this process; open it by open_store(url), "
                "or make one in the other process"
            )
        return self.made_by.reduced()


def from_its_url(from_url: Callable[P, S]) -> Callable[P, S]:
    """For the `from_url(cls, url, **options)` of a store: it remembers what it was opened from, and
    can be pickled as that."""

    @wraps(from_url)
    def opened(*args: P.args, **options: P.kwargs) -> S:
        store = from_url(*args, **options)
        cls: Any = args[0]
        store.made_by = MadeBy(cls.from_url, *args[1:], **options)
        return store

    return opened


def _lacks(store: Store, method: str, instead: str) -> UnsupportedError:
    return UnsupportedError(
        f"{type(store).__name__} has no {method}(); use {instead}, or a store that serves both"
    )


# Others may take what was left between two attempts; after this many the bare need decides.
_ATTEMPTS = 8


class Grant(NamedTuple):
    """`capacity` units, taken at `now` on the clock that decides; 0 is a refusal. `decision` is
    the store's answer to the last attempt."""

    capacity: int
    decision: Decision
    now: int


def bargain(want: int, need: int) -> Generator[int, Decision, tuple[int, Decision]]:
    """Yields the cost to try next and is sent the decision; returns what was taken."""
    cost = want
    for attempt in range(_ATTEMPTS):
        decision = yield cost
        if decision.allowed:
            return cost, decision
        if cost == need:
            break
        left = decision.remaining
        cost = left if need < left < cost and attempt < _ATTEMPTS - 2 else need
    return 0, decision


def leasing(strategy: Strategy, need: int) -> Transform[Grant]:
    """The transform behind a lease: `cost` is how much is wanted, `need` the least that helps."""

    def run(state: Any, now: int, want: int) -> Outcome[Grant]:
        deal = bargain(max(want, need), need)
        cost = next(deal)
        while True:
            outcome = strategy.check(state, now, cost)
            try:
                cost = deal.send(outcome.result)
            except StopIteration as settled:
                taken, decision = settled.value
                grant = Grant(taken, decision, now)
                return Outcome(outcome.state, grant, outcome.ttl_ms, outcome.persist)

    def refuse(now: int, retry_after_ms: int) -> Grant:
        denial = Decision(False, strategy.limit, 0, now + retry_after_ms, retry_after_ms)
        return Grant(0, denial, now)

    transform = Transform(strategy, "lease", run, refuse)
    transform.need = need
    transform.decision_in = attrgetter("decision")
    return transform
