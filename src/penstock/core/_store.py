"""What a backend is: one atomic read-modify-write, `apply`.

A store keeps states under keys and knows nothing about rate limiting. Subclass `Store` and write
`apply` (or `aapply`, or both): read the key's state, treating one whose time has passed on the
caller's clock as absent; call `transform.run(state, now, cost)`; write what the outcome says;
return its result; all that as one step. `reset`, the batch forms and `apply_all` follow from that,
and may be overridden where the backend has something better.

What holds locks, connections and counts is pickled as the call that it was made by (`MadeBy`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from ._clock import Clock
from ._errors import UnsupportedError
from ._flow import adrive, drive
from ._steps import Step, in_order, looked_at
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

Told = Callable[[Any, BaseException | None], None]
"""What is called with results, or with None and why there are none."""


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

    begin: Callable[[Sequence[Step], int, Told], None] | None = None
    """How steps are asked by those who want to be told by a call instead of awaiting, which takes a
    task: the result of `aapply` for one step, the results of `aapply_all` for several. Nothing is
    told before it returns; what fails at once is raised. None for stores that are only awaited."""

    made_by: MadeBy | None = None
    """How to open it again, if it was opened from a URL; see `from_its_url`."""

    # Who counts under which prefix; see `core/_claims.py`.
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

    def apply_all(self, steps: Sequence[Step], now: int) -> list[Any]:
        """Several steps as one decision: all are written if every step that is no shadow allowed,
        else none is. Returns their results, in order, each as its own `apply` would have answered.
        A step of cost 0 only looks.

        This one charges in order and gives back when a later step denies (`is_atomic` is False)."""

        def serve(step: Step) -> Any:
            return self.apply(step.key, step.transform, now, step.cost)

        return drive(in_order(looked_at(steps), now), serve)

    async def aapply_all(self, steps: Sequence[Step], now: int) -> list[Any]:
        """The awaitable twin of `apply_all`."""

        async def serve(step: Step) -> Any:
            return await self.aapply(step.key, step.transform, now, step.cost)

        return await adrive(in_order(looked_at(steps), now), serve)

    def is_atomic(self, lead: str) -> bool:
        """Whether `apply_all` lets nobody in between, for keys that begin with `lead`."""
        return False

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


def require_store(store: Any) -> Store:
    """The store, or `config_invalid` for anything else."""
    if not isinstance(store, Store):
        reject(
            "store must be a penstock.Store, such as MemoryStore(), or for rate_limit and Limits a "
            f"URL, not {store!r}"
        )
    return store


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
