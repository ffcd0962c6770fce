"""The base class of stores: one atomic read-modify-write, `apply`.

A store keeps states under keys and knows nothing about rate limiting. Subclass `Store` and write
`apply` (or `aapply`, or both), which does the following atomically: read the key's state, ignoring
one that has expired on the caller's clock; call `transform.run(state, now, cost)`; write what the
outcome says; return its result. `reset`, the batch calls and `apply_all` are built on that, and may
be overridden if the backend has something faster.

Stores and limiters hold locks and connections, so they are pickled as the call that made them
(`MadeBy`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, wraps
from typing import Any, ParamSpec, TypeVar

from ._clock import Clock
from ._errors import UnsupportedError
from ._flow import adrive, drive
from ._resets import ResetLog
from ._steps import Step, in_order, looked_at, timed
from ._strategy import Strategy
from ._transform import CLEAR, Transform
from ._validation import reject

__all__ = [
    "COUNTED",
    "STATS",
    "MadeBy",
    "Store",
    "Told",
    "from_its_url",
    "require_store",
]


class MadeBy:
    """A call that can be repeated in another process. Its `repr` leaves the arguments out: they may
    contain a password."""

    __slots__ = ("_arguments", "_make", "_options")

    def __init__(self, make: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        self._make = make
        self._arguments = arguments
        self._options = options

    def reduced(self) -> tuple[Any, ...]:
        """The value of `__reduce__` for the object that the call made."""
        return _make_again, (self._make, self._arguments, self._options)

    def __repr__(self) -> str:
        return f"<MadeBy {self._make.__qualname__}>"


def _make_again(make: Callable[..., Any], arguments: tuple[Any, ...], options: Any) -> Any:
    return make(*arguments, **options)


R = TypeVar("R")
P = ParamSpec("P")
S = TypeVar("S", bound="Store")

Told = Callable[[Any, BaseException | None], None]
"""A callback with the results, or with None and the error."""


STATS: dict[str, str] = {
    "keys": "Keys in the store.",
    "bytes": "Approximate memory of the keys and their states.",
    "evictions": "Keys evicted before their state expired, to make room.",
    "refusals": "Requests denied because the store was full.",
}
"""The statistics that a store may report."""

COUNTED = frozenset({"evictions", "refusals"})
"""The statistics that are counters; the others are gauges."""


class Store:
    """The base class of all stores. A subclass implements `apply`, `aapply` or both; everything
    else is built on them."""

    reads_own_clock: bool = False
    """Whether decisions use the backend's clock, and ignore the `now` that callers pass."""

    answers_at_once: bool = False
    """Whether states are in this process, so that no call ever waits, and an awaited call finishes
    without suspending."""

    native_table: Any = None
    """The compiled table that holds the states, in which a limiter can decide without `apply`; None
    for all other stores."""

    begin: Callable[[Sequence[Step], int, Told], None] | None = None
    """`begin(steps, now, told)` is `aapply` for one step, and `aapply_all` for several, with a
    callback instead of an await, which would take a task. The callback is never called before
    `begin` returns; an error that is known at once is raised. None if the store does not have
    it."""

    made_by: MadeBy | None = None
    """How to open it again, if it was opened from a URL; see `from_its_url`."""

    # The claims of limiters to keys: a `StoreClaims` of `core/_claims.py`.
    _claims: Any = None

    # The queues of this process that wait for a slot, by key; see `core/_waiting.py`.
    _slot_queues: dict[str, deque[Any]] | None = None

    @cached_property
    def resets(self) -> ResetLog:
        """The resets of keys through this object, after which older charges refund nothing."""
        return ResetLog()

    def apply(self, key: str, transform: Transform[R], now: int, cost: int) -> R:
        """Run the transform on the key's state, atomically, and return its result."""
        raise _lacks(self, "apply", "acheck, apeek, ... (the async calls)")

    async def aapply(self, key: str, transform: Transform[R], now: int, cost: int) -> R:
        """The awaitable twin of `apply`."""
        raise _lacks(self, "aapply", "check, peek, ... (the sync calls)")

    def apply_timed(self, key: str, transform: Transform[R], now: int, cost: int) -> tuple[R, int]:
        """As `apply`, with the instant of the decision: `now`, or that of the clock that the store
        reads."""
        if not self.reads_own_clock:
            return self.apply(key, transform, now, cost), now
        result, at = self.apply_all(timed(key, transform, cost), now)
        return result, at

    async def aapply_timed(
        self, key: str, transform: Transform[R], now: int, cost: int
    ) -> tuple[R, int]:
        """The awaitable twin of `apply_timed`."""
        if not self.reads_own_clock:
            return await self.aapply(key, transform, now, cost), now
        result, at = await self.aapply_all(timed(key, transform, cost), now)
        return result, at

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

    def apply_all(self, steps: Sequence[Step], now: int) -> list[Any]:
        """Several steps as one decision: all are written if every step that is not a shadow admits,
        otherwise none. Returns their results in order, each as `apply` would have returned it. A
        step of cost 0 only looks.

        This default charges in order, and refunds when a later step denies: `is_atomic` is
        False."""

        def serve(step: Step) -> Any:
            return self.apply(step.key, step.transform, now, step.cost)

        return drive(in_order(looked_at(steps), now), serve)

    async def aapply_all(self, steps: Sequence[Step], now: int) -> list[Any]:
        """The awaitable twin of `apply_all`."""

        async def serve(step: Step) -> Any:
            return await self.aapply(step.key, step.transform, now, step.cost)

        return await adrive(in_order(looked_at(steps), now), serve)

    def is_atomic(self, lead: str) -> bool:
        """Whether `apply_all` is atomic for keys that begin with `lead`."""
        return False

    def reset(self, key: str) -> None:
        """Forget a key."""
        self.apply(key, CLEAR, 0, 1)

    async def areset(self, key: str) -> None:
        """The awaitable twin of `reset`."""
        await self.aapply(key, CLEAR, 0, 1)

    def require_clock(self, clock: Clock | None) -> None:
        """Raise `config_invalid` if a limiter with this clock cannot use the store. None stands for
        the system clock."""
        if clock is not None and self.reads_own_clock:
            reject(
                f"{type(self).__name__} uses the clock of its server, so the given clock would be "
                "ignored; leave it out, or make the store with use_server_time=False"
            )

    def server_now(self, key: str) -> int | None:
        """What the clock shows of the server that owns the key and removes expired states,
        whichever clock decides; None if there is no such server, or if it is not known."""
        return None

    def require_strategy(self, strategy: Strategy) -> None:
        """Raise `config_invalid` if checks of this strategy would keep the store busy for too
        long."""

    def another(self, *, clock: Clock | None, max_keys: int | None = None) -> Store:
        """An empty store with bounds of its own, for keys that must not evict those of this one. A
        store on a server returns itself."""
        return self

    def stats(self) -> Mapping[str, int]:
        """Statistics under the names of `STATS`, for monitoring. Must not block. Empty by default:
        a server has metrics of its own."""
        return {}

    def close(self) -> None:
        """Release connections and other resources. Idempotent."""

    async def aclose(self) -> None:
        """The awaitable twin of `close`."""

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle contains the URL and options that the store was opened with, including a
        password; loading it opens the store again."""
        if self.made_by is None:
            name = type(self).__name__
            raise UnsupportedError(
                f"this {name} cannot be pickled or copied: it was not opened from a URL, and its "
                "connections, locks and counts belong to this process; use open_store(url), or "
                "make the store in the other process"
            )
        return self.made_by.reduced()


def require_store(store: Any) -> Store:
    """The store, or `config_invalid` for anything else."""
    if not isinstance(store, Store):
        reject(
            "store must be a penstock.Store, such as MemoryStore(), or for rate_limit and Limits a "
            f"URL, not {store!r}"
        )
    return store


def from_its_url(from_url: Callable[P, S]) -> Callable[P, S]:
    """Decorates the `from_url(cls, url, **options)` of a store, so that the store can be pickled as
    that call."""

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
