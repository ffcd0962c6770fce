"""`two_tier`: one limit across a fleet, at in-process speed.

Three ways to share a limit that lives in a store:

- `strict`: every check goes there. Exact, one round trip each.
- `cached-deny`: allowed traffic goes there; a denial is remembered here for as long as it holds.
- `leased`: a batch of credits is taken in one step and spent here.

What `leased` costs in exactness is bounded, for N nodes and batches of B. Coupled to a window, a
node's credits are void when it ends, and the fleet admits at most the limit in every window, for
any N. Carried over, the fleet may spend what it held from before: at most limit + N * (B - 1).
What it costs in efficiency are credits stranded on a node that does not need them.

Clocks of nodes do not matter: the store says, with each grant, how long its window still lasts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from ..core.clock import Clock
from ..core.decision import Decision, Forecast
from ..core.grant import Grant, leasing
from ..core.limiter import Limiter
from ..core.store import Store, Transform
from ..core.strategy import Strategy
from ..core.validation import require_choice, require_cost, require_int, require_key, require_keys
from ..front import rate_limit
from ..stores.flow import adrive, drive
from .batch import AdaptiveBatch
from .denials import Denials
from .near import Errand, NearTier

__all__ = ["CachedDenyLimiter", "TwoTierLimiter", "two_tier"]

MODES = ("strict", "cached-deny", "leased")


def two_tier(
    strategy: Strategy,
    l2: Store,
    mode: str = "leased",
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
    once a key's credits are down to it; `return_idle_after_ms` drops credits that nobody spends;
    `max_keys` bounds what the node remembers. `clock` serves `strict` and stores without a clock
    of their own, and measures how long credits last.
    """
    require_choice("mode", mode, MODES)
    require_int("max_keys", max_keys)
    if mode == "strict":
        return rate_limit(strategy, store=l2, clock=clock, prefix=prefix)
    if mode == "cached-deny":
        return CachedDenyLimiter(strategy, l2, clock=clock, prefix=prefix, max_keys=max_keys)
    if not isinstance(batch, AdaptiveBatch):
        require_int("batch", batch)
    require_int("low_water", low_water, low=0)
    if return_idle_after_ms is not None:
        require_int("return_idle_after_ms", return_idle_after_ms)
    coupled = strategy.window_ms is not None if window_coupled is None else window_coupled
    return TwoTierLimiter(
        strategy,
        l2,
        batch=batch,
        low_water=low_water,
        coupled=coupled,
        idle_ms=return_idle_after_ms,
        clock=clock,
        prefix=prefix,
        max_keys=max_keys,
    )


def _near_clock(store: Store, clock: Clock | None) -> tuple[Clock | None, Clock | None]:
    """(for the store, for this node): a store with its own clock is not handed another."""
    return (None if store.reads_own_clock else clock), clock


class CachedDenyLimiter(Limiter):
    """Asks the store unless it said no and that still holds."""

    def __init__(
        self, strategy: Strategy, store: Store, *, clock: Clock | None, prefix: str, max_keys: int
    ) -> None:
        for_store, here = _near_clock(store, clock)
        super().__init__(strategy, store, clock=for_store, prefix=prefix)
        self._denials = Denials(max_keys)
        self._here = (self.clock if here is None else here).now

    def check(self, key: str, cost: int = 1) -> Decision:
        name = self._name(key, cost)
        held = self._denials.recall(name, self._here(), cost)
        if held is not None:
            return held
        decision = self._apply(name, self._check, self._now(), cost)
        return self._noted(name, cost, decision)

    async def acheck(self, key: str, cost: int = 1) -> Decision:
        name = self._name(key, cost)
        held = self._denials.recall(name, self._here(), cost)
        if held is not None:
            return held
        decision = await self._aapply(name, self._check, self._now(), cost)
        return self._noted(name, cost, decision)

    def check_many(self, keys: Iterable[str], cost: int = 1) -> list[Decision]:
        return [self.check(key, cost) for key in _valid(keys, cost)]

    async def acheck_many(self, keys: Iterable[str], cost: int = 1) -> list[Decision]:
        return [await self.acheck(key, cost) for key in _valid(keys, cost)]

    def reset(self, key: str) -> None:
        self._denials.forget(self._name(key))
        super().reset(key)

    async def areset(self, key: str) -> None:
        self._denials.forget(self._name(key))
        await super().areset(key)

    def _noted(self, name: str, cost: int, decision: Decision) -> Decision:
        if not decision.allowed:
            self._denials.remember(name, self._here(), cost, decision)
        return decision


class TwoTierLimiter(Limiter):
    """Spends leased credits here and goes to the store for more."""

    def __init__(
        self,
        strategy: Strategy,
        store: Store,
        *,
        batch: int | AdaptiveBatch,
        low_water: int,
        coupled: bool,
        idle_ms: int | None,
        clock: Clock | None,
        prefix: str,
        max_keys: int,
    ) -> None:
        for_store, here = _near_clock(store, clock)
        super().__init__(strategy, store, clock=for_store, prefix=prefix)
        self.window_coupled = coupled
        self._near = NearTier(
            limit=strategy.limit,
            batch=batch,
            coupled=coupled,
            idle_ms=idle_ms,
            max_keys=max_keys,
            clock=here,
        )
        # Without a low-water mark, nothing is ever down to it.
        self._low_water = low_water or -1
        self._local = self._near.local.check
        self._leases: dict[int, Transform[Grant]] = {}
        self._ahead: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._executor: ThreadPoolExecutor | None = None

    def check(self, key: str, cost: int = 1) -> Decision:
        decision = self._local(key, cost)
        if decision.allowed:
            if decision.remaining <= self._low_water:
                self._lease_ahead(key)
            return decision
        arrival = self._near.arrive()
        with self._near.turns.take(key):
            return drive(self._near.refill(key, cost, arrival), self._fetch)

    async def acheck(self, key: str, cost: int = 1) -> Decision:
        decision = self._local(key, cost)
        if decision.allowed:
            if decision.remaining <= self._low_water:
                self._alease_ahead(key)
            return decision
        arrival = self._near.arrive()
        async with self._near.turns.atake(key):
            return await adrive(self._near.refill(key, cost, arrival), self._afetch)

    def check_many(self, keys: Iterable[str], cost: int = 1) -> list[Decision]:
        return [self.check(key, cost) for key in _valid(keys, cost)]

    async def acheck_many(self, keys: Iterable[str], cost: int = 1) -> list[Decision]:
        return [await self.acheck(key, cost) for key in _valid(keys, cost)]

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
        self._near.forget(require_key(key))
        super().reset(key)

    async def areset(self, key: str) -> None:
        self._near.forget(require_key(key))
        await super().areset(key)

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=True)
        self._near.close()
        super().close()

    async def aclose(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.close()
        await super().aclose()

    def _fetch(self, errand: Errand) -> Grant:
        name = self._lead + errand.key
        return self._apply(name, self._lease_of(errand.need), self._now(), errand.want)

    async def _afetch(self, errand: Errand) -> Grant:
        name = self._lead + errand.key
        return await self._aapply(name, self._lease_of(errand.need), self._now(), errand.want)

    def _lease_of(self, need: int) -> Transform[Grant]:
        """The transform for a need; nearly always the same one, so it is kept."""
        transform = self._leases.get(need)
        if transform is None:
            transform = leasing(self.strategy, need)
            if len(self._leases) < 64:
                self._leases[need] = transform
        return transform

    def _lease_ahead(self, key: str) -> None:
        if key in self._ahead:
            return
        self._ahead.add(key)
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="penstock-lease")
        self._executor.submit(self._run_ahead, key)

    def _run_ahead(self, key: str) -> None:
        try:
            with self._near.turns.take(key):
                drive(self._near.prefetch(key), self._fetch)
        except Exception:
            # Ahead of need, a failure costs nothing yet; the miss that follows will tell.
            return
        finally:
            self._ahead.discard(key)

    def _alease_ahead(self, key: str) -> None:
        if key in self._ahead:
            return
        self._ahead.add(key)
        task = asyncio.get_running_loop().create_task(self._arun_ahead(key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _arun_ahead(self, key: str) -> None:
        try:
            async with self._near.turns.atake(key):
                await adrive(self._near.prefetch(key), self._afetch)
        except Exception:
            return
        finally:
            self._ahead.discard(key)


def _valid(keys: Iterable[str], cost: int) -> list[str]:
    """Refuse a batch as a whole before any of it is charged."""
    require_cost(cost)
    return [require_key(key) for key in require_keys(keys)]


def _with_credits(far: Forecast, near: Forecast) -> Forecast:
    return Forecast(far.spendable_now + near.spendable_now, far.next_replenish_at, far.full_at)
