"""`two_tier`: one limit across a fleet, at in-process speed.

Three ways to share a limit that lives in a store:

- `strict`: every check goes there. Exact, one round trip each.
- `cached-deny`: allowed traffic goes there; a denial is remembered here for as long as it holds.
- `leased`: a batch of credits is taken in one step and spent here.

What `leased` costs in exactness is bounded, for N nodes and batches of B. Coupled to a window, a
node's credits are void when it ends, and the fleet admits at most the limit in every window, for
any N. Carried over, the fleet may spend what it held from before: at most limit + N * (B - 1).
What it costs in efficiency are credits stranded on a node that does not need them.

Clocks of nodes do not matter where the store has one of its own: it says, with each grant, how
long its window still lasts. Any other store goes by the clocks of the nodes, in every mode.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Literal, get_args

from .._queueing.tasks import TaskPlace
from .._rate_limit import rate_limit
from ..core._clock import Clock, SystemClock
from ..core._decision import Decision, Forecast
from ..core._limiter import Limiter
from ..core._store import MadeBy, Store
from ..core._strategy import Strategy
from ..core._transform import Grant, Transform, leasing
from ..core._validation import (
    reject,
    require_choice,
    require_cost,
    require_int,
    require_key,
    require_keys,
)
from ..strategies import strategy_of_rate
from ._batch import AdaptiveBatch
from ._credits import Denials, Term, clocks_for, term_of
from ._near import LeaseRequest, NearTier
from ._refilling import Refilling

__all__ = ["MODES", "CachedDenyLimiter", "TwoTierLimiter", "require_batch", "two_tier"]


class CachedDenyLimiter(Limiter):
    """Asks the store unless it said no and that still holds. Made by `two_tier`."""

    def __init__(
        self, strategy: Strategy, store: Store, *, clock: Clock | None, prefix: str, max_keys: int
    ) -> None:
        for_store, here = clocks_for(store, clock)
        super().__init__(strategy, store, clock=for_store, prefix=prefix)
        # One reading serves both sides: a store with a clock of its own does not look at it.
        self._here = self._now if for_store is here else here.now
        self._denials = Denials(max_keys)

    def check(self, key: str, cost: int = 1) -> Decision:
        name, now = self._name(key, cost), self._here()
        held = self._denials.recall(name, cost, now)
        if held is not None:
            return held
        decision = self._apply(name, self._check, now, cost)
        return self._noted(name, now, cost, decision)

    async def acheck(self, key: str, cost: int = 1) -> Decision:
        name, now = self._name(key, cost), self._here()
        held = self._denials.recall(name, cost, now)
        if held is not None:
            return held
        decision = await self._aapply(name, self._check, now, cost)
        return self._noted(name, now, cost, decision)

    def check_many(self, keys: Iterable[str], cost: int = 1) -> list[Decision]:
        names, now = self._names(keys, cost), self._here()
        known = [self._denials.recall(name, cost, now) for name in names]
        asked = _unknown(names, known)
        if asked:
            decisions = self.store.apply_many(asked, self._check, now, cost)
            self._merge(known, asked, decisions, now, cost)
        return _all(known)

    async def acheck_many(self, keys: Iterable[str], cost: int = 1) -> list[Decision]:
        names, now = self._names(keys, cost), self._here()
        known = [self._denials.recall(name, cost, now) for name in names]
        asked = _unknown(names, known)
        if asked:
            decisions = await self.store.aapply_many(asked, self._check, now, cost)
            self._merge(known, asked, decisions, now, cost)
        return _all(known)

    def reset(self, key: str) -> None:
        super().reset(key)
        self._denials.forget(self._name(key))

    async def areset(self, key: str) -> None:
        await super().areset(key)
        self._denials.forget(self._name(key))

    def _merge(
        self,
        known: list[Decision | None],
        asked: list[str],
        decisions: list[Decision],
        asked_at: int,
        cost: int,
    ) -> None:
        """Fill the gaps in `known` with what the store said, in order."""
        answers = iter(zip(asked, decisions, strict=True))
        for place, decision in enumerate(known):
            if decision is None:
                name, answer = next(answers)
                known[place] = self._noted(name, asked_at, cost, answer)

    def _noted(self, name: str, asked_at: int, cost: int, decision: Decision) -> Decision:
        if not decision.allowed:
            self._denials.remember(name, asked_at, cost, decision)
        return decision


def _unknown(names: list[str], known: list[Decision | None]) -> list[str]:
    return [name for name, decision in zip(names, known, strict=True) if decision is None]


def _all(known: list[Decision | None]) -> list[Decision]:
    return [decision for decision in known if decision is not None]


Mode = Literal["strict", "cached-deny", "leased"]
MODES: tuple[Mode, ...] = get_args(Mode)

# Transforms for as many different costs are kept; more would be somebody's data, not a habit.
_KEPT = 64


def two_tier(
    strategy: Strategy | str,
    l2: Store,
    mode: Mode = "leased",
    batch: int | AdaptiveBatch = 100,
    low_water: int = 0,
    window_coupled: bool | None = None,
    return_idle_after_ms: int | None = None,
    *,
    clock: Clock | None = None,
    prefix: str = "",
    max_keys: int = 100_000,
) -> Limiter:
    """A limiter over the shared store `l2`.

    `window_coupled` is, by default, whether the strategy has a window. `low_water` leases ahead
    once a key's credits are down to it, which costs a trip per `batch - 1 - low_water` requests;
    `return_idle_after_ms` drops credits that nobody spends;
    `max_keys` bounds what the node remembers. `clock` decides where the store has none of its own.
    """
    require_choice("mode", mode, MODES)
    require_int("max_keys", max_keys, high=2**31 - 1)
    require_batch(batch, low_water)
    if return_idle_after_ms is not None:
        require_int("return_idle_after_ms", return_idle_after_ms)
    chosen = strategy_of_rate(strategy) if isinstance(strategy, str) else strategy
    term = term_of(chosen, window_coupled)
    limiter: Limiter
    if mode == "strict":
        for_store, _ = clocks_for(l2, clock)
        limiter = rate_limit(chosen, store=l2, clock=for_store, prefix=prefix)
    elif mode == "cached-deny":
        limiter = CachedDenyLimiter(chosen, l2, clock=clock, prefix=prefix, max_keys=max_keys)
    else:
        limiter = TwoTierLimiter(
            chosen,
            l2,
            batch=batch,
            low_water=low_water,
            term=term,
            idle_ms=return_idle_after_ms,
            clock=clock,
            prefix=prefix,
            max_keys=max_keys,
        )
    limiter.made_by = MadeBy(
        two_tier,
        strategy,
        l2,
        mode,
        batch,
        low_water,
        window_coupled,
        return_idle_after_ms,
        clock=clock,
        prefix=prefix,
        max_keys=max_keys,
    )
    return limiter


def require_batch(batch: int | AdaptiveBatch, low_water: int) -> None:
    """Refuse a batch, and a low-water mark that it could never lift a key above."""
    require_int("low_water", low_water, low=0)
    most = batch.most if isinstance(batch, AdaptiveBatch) else require_int("batch", batch)
    if low_water and low_water >= most:
        reject(
            f"low_water must be below the batch of {most}, not {low_water}: a lease ahead of need "
            "brings what lies between the two"
        )


class TwoTierLimiter(Refilling, Limiter):
    """Spends leased credits here and goes to the store for more. Made by `two_tier`."""

    decides_in_store: bool = False

    @property
    def answers_at_once(self) -> bool:
        """No: a task may have a lease under way, and waiting for it would block the task's loop."""
        return False

    def __init__(
        self,
        strategy: Strategy,
        store: Store,
        *,
        batch: int | AdaptiveBatch,
        low_water: int,
        term: Term,
        idle_ms: int | None,
        clock: Clock | None,
        prefix: str,
        max_keys: int,
    ) -> None:
        for_store, here = clocks_for(store, clock)
        Limiter.__init__(self, strategy, store, clock=for_store, prefix=prefix)
        near = NearTier(
            limit=strategy.limit,
            batch=batch,
            term=term,
            idle_ms=idle_ms,
            max_keys=max_keys,
            clock=here,
            foreign_clock=store.reads_own_clock and isinstance(here, SystemClock),
        )
        Refilling.__init__(self, near, low_water)
        self.window_coupled: bool = term.coupled
        self._leases: dict[int, Transform[Grant]] = {}

    def _bind(self) -> None:
        super()._bind()
        if self._compiled is not None:
            self.check = self._compiled  # type: ignore[method-assign]

    def check(self, key: str, cost: int = 1) -> Decision:
        return self._spend_interpreted(key, cost)

    async def acheck(self, key: str, cost: int = 1) -> Decision:
        decision = self._local(key, cost)
        if decision.allowed and decision.remaining > self._level:
            return decision
        return await self._asettle(key, cost, decision)

    # Local credits are spent at one instant; only then are leases taken for what they leave over.
    # A key that is given twice cannot overtake itself: if it misses once, it misses again.

    def check_many(self, keys: Iterable[str], cost: int = 1) -> list[Decision]:
        """As one `check` per key, in order."""
        named, now = _valid(keys, cost), self._near.now()
        local = self._near.spend_many(named, cost, now)
        return [
            found if self._settles(found) else self._settle(key, cost, found, now)
            for key, found in zip(named, local, strict=True)
        ]

    async def acheck_many(self, keys: Iterable[str], cost: int = 1) -> list[Decision]:
        """The awaitable twin of `check_many`; keys that need a lease wait for it side by side."""
        return [_unless_failed(found) for found in await self.acheck_each(keys, cost)]

    async def acheck_each(self, keys: Iterable[str], cost: int = 1) -> list[Decision | Exception]:
        """As `acheck_many`, with the failure of a key in the place of its decision: what others
        spent stays decided."""
        named, now = _valid(keys, cost), self._near.now()
        local = self._near.spend_many(named, cost, now)
        found: list[Decision | Exception] = [*local]
        places = [place for place, decision in enumerate(local) if not self._settles(decision)]
        rest = [self._asettle(named[place], cost, local[place], now) for place in places]
        settled = await asyncio.gather(*rest, return_exceptions=True)
        for place, answer in zip(places, settled, strict=True):
            if isinstance(answer, BaseException) and not isinstance(answer, Exception):
                raise answer
            found[place] = answer
        return found

    def _settles(self, decision: Decision) -> bool:
        """Whether a local spend is all there is to do."""
        return decision.allowed and decision.remaining > self._level

    def peek(self, key: str) -> Decision:
        """Local credits if there are any, else how the store stands."""
        held = self._near.local.peek(key)
        return held if held.allowed else super().peek(key)

    async def apeek(self, key: str) -> Decision:
        held = self._near.local.peek(key)
        return held if held.allowed else await super().apeek(key)

    def forecast(self, key: str, cost: int = 1) -> Forecast:
        """The store's forecast, with the credits held here on top."""
        held = self._near.local.forecast(key, cost)
        return _with_credits(super().forecast(key, cost), held)

    async def aforecast(self, key: str, cost: int = 1) -> Forecast:
        held = self._near.local.forecast(key, cost)
        return _with_credits(await super().aforecast(key, cost), held)

    def reset(self, key: str) -> None:
        """Forget the key in the store and on this node; credits on other nodes remain."""
        # In the queue: a lease that is under way belongs to the time before. Where this thread must
        # not wait for it, what it brings remains, as on another node.
        place = self._place(require_key(key), sys._getframe())
        with place or nullcontext():
            super().reset(key)
            self._near.forget(key)

    async def areset(self, key: str) -> None:
        place = TaskPlace.of_task(self._near.queues, require_key(key))
        assert place is not None
        async with place:
            await super().areset(key)
            self._near.forget(key)

    @property
    def near_store(self) -> Store:
        """Where this node keeps its credits."""
        return self._near.store

    def close(self) -> None:
        self._finish()
        self._near.close()
        super().close()

    async def aclose(self) -> None:
        await self._afinish()
        self._near.close()
        await super().aclose()

    # A store that goes by the caller's clock is given the instant from which the near tier, which
    # then goes by the same clock, reckons.

    def _fetch(self, request: LeaseRequest) -> Grant:
        key, want, need, now = request
        return self._apply(self._lead + key, self._lease_of(need), now, want)

    async def _afetch(self, request: LeaseRequest) -> Grant:
        key, want, need, now = request
        return await self._aapply(self._lead + key, self._lease_of(need), now, want)

    def _lease_of(self, need: int) -> Transform[Grant]:
        """The transform for a need; nearly always the same one, so it is kept."""
        transform = self._leases.get(need)
        if transform is None:
            transform = leasing(self.strategy, need)
            if len(self._leases) < _KEPT:
                self._leases[need] = transform
        return transform


def _valid(keys: Iterable[str], cost: int) -> list[str]:
    """Refuse a batch as a whole before any of it is charged."""
    require_cost(cost)
    return [require_key(key) for key in require_keys(keys)]


def _unless_failed(found: Decision | Exception) -> Decision:
    if isinstance(found, Exception):
        raise found
    return found


def _with_credits(far: Forecast, near: Forecast) -> Forecast:
    return Forecast(far.spendable_now + near.spendable_now, far.next_replenish_at, far.full_at)
