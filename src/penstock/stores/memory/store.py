"""MemoryStore: limits inside one process, exact under threads.

States are native Python values, never serialized. The table behind it is compiled where that is
possible (see `accel`) and interpreted where it is not; both keep the same promises.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from ...core.clock import Clock, SystemClock, require_clock
from ...core.native import native
from ...core.store import Store, Transform
from ...core.validation import require_choice, require_instant, require_int
from .sweeper import Sweeper
from .table import Table, require_ttl, wrong_kind

__all__ = ["MemoryStore"]

# Whose locks a forked child must have anew: the thread that held one is not in the child.
_living: weakref.WeakSet[MemoryStore] = weakref.WeakSet()

# Through what a limiter gets its decisions.
_DECIDING = ("apply", "aapply", "apply_many", "aapply_many")

R = TypeVar("R")

Overflow = Literal["evict", "deny"]


class MemoryStore(Store):
    """Keeps states in this process. Serves sync and async callers alike: it never waits.

    `max_keys` bounds how many keys are remembered. When it is reached and no key has expired:

    - `overflow="evict"` forgets the key that was least recently needed. Service goes on, but a
      forgotten key starts afresh, so a caller who can rotate through more keys than fit is not
      limited any more. Watch `evictions`, and size `max_keys` well above the honest population.
    - `overflow="deny"` denies new keys until one expires. Nothing that is remembered is ever
      forgotten early, but a flood of made-up keys shuts out newcomers for as long. Watch
      `refusals`, and put keys behind something that cannot be made up.

    `sweep_every_ms` starts a thread that drops expired keys even while nobody asks; without it,
    checks do that as they go.
    """

    def __init__(
        self,
        max_keys: int | None = None,
        overflow: Overflow = "evict",
        *,
        sweep_every_ms: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        if max_keys is not None:
            require_int("max_keys", max_keys, high=2**31 - 1)
        self.max_keys = max_keys
        self.overflow: Overflow = require_choice("overflow", overflow, ("evict", "deny"))
        self.clock: Clock = SystemClock() if clock is None else require_clock(clock)
        self.table: Any = _make_table(max_keys, overflow == "evict")
        _living.add(self)
        self._sweeper: Sweeper | None = None
        if sweep_every_ms is not None:
            require_int("sweep_every_ms", sweep_every_ms)
            self._sweeper = Sweeper(self, sweep_every_ms)

    # Properties, so that a limiter which looks them up once is bound to the table itself.
    @property
    def apply(self) -> Callable[..., Any]:
        """See `Store.apply`."""
        bound: Callable[..., Any] = self.table.apply
        return bound

    async def aapply(self, key: str, transform: Transform[R], now: int, cost: int) -> R:
        result: R = self.apply(key, transform, now, cost)
        return result

    def apply_many(
        self, keys: Sequence[str], transform: Transform[R], now: int, cost: int
    ) -> list[R]:
        apply = self.apply
        return [apply(key, transform, now, cost) for key in keys]

    @property
    def open_table(self) -> Any:
        """The table, for a limiter that may go straight to it: not if a subclass has put something
        of its own in between."""
        own = type(self)
        replaced = any(getattr(own, name) is not getattr(MemoryStore, name) for name in _DECIDING)
        return None if replaced else self.table

    def reset(self, key: str) -> None:
        self.table.discard(key)

    async def areset(self, key: str) -> None:
        self.table.discard(key)

    def sweeps_by(self, clock: Clock | None) -> bool:
        """Whether the sweeper, if there is one, goes by this clock; None is the system's."""
        if self._sweeper is None:
            return True
        if clock is None or type(clock) is SystemClock:
            return type(self.clock) is SystemClock
        return self.clock is clock

    def sweep(self, now: int | None = None) -> int:
        """Drop every key that is expired at `now`, by default on the store's clock: give it that of
        the limiters, if they have one of their own."""
        dropped: int = self.table.sweep(require_instant(self.clock.now() if now is None else now))
        return dropped

    @property
    def evictions(self) -> int:
        """How many live keys were forgotten to make room."""
        count: int = self.table.evictions
        return count

    @property
    def refusals(self) -> int:
        """How many requests were denied because there was no room for their key."""
        count: int = self.table.refusals
        return count

    def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.stop()
            self._sweeper = None

    async def aclose(self) -> None:
        self.close()

    def __len__(self) -> int:
        """How many keys are remembered and not yet expired, at the latest instant seen."""
        return len(self.table)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"MemoryStore(max_keys={self.max_keys}, overflow={self.overflow!r})"


def _make_table(max_keys: int | None, evict: bool) -> Any:
    if native is None:
        return Table(max_keys, evict)
    return native.Table(-1 if max_keys is None else max_keys, evict, wrong_kind, require_ttl)


def _after_fork() -> None:
    for store in _living:
        store.table.renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
