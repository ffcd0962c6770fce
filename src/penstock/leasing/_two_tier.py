"""`two_tier`: one limit across a fleet, at in-process speed.

There are three ways to share a limit in a store:

- `strict`: every check asks the store. Exact, one round trip each.
- `cached-deny`: checks ask the store, but a denial is remembered on the node while it is valid, and
  at most for `max_stale_ms`, since another node may refund units meanwhile.
- `leased`: a batch of credits is taken from the store in one step and spent on the node.

The inexactness of `leased` is bounded, for N nodes and batches of B. If credits are coupled to a
window they are void when it ends, and the fleet admits at most the limit in every window, for any
N. If credits carry over, the fleet may also spend what it held before: at most limit + N * (B - 1).
Credits on a node that does not need them are stranded, so the fleet may admit less than the limit.

If the store has a clock of its own, the clocks of the nodes do not matter: each grant says how long
its window lasts. Other stores use the clocks of the nodes, in every mode.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import count
from typing import Any, Literal, TypeVar, get_args

from .._queueing.tasks import TaskPlace
from .._rate_limit import rate_limit
from ..core._charges import Charge, Settling
from ..core._clock import Clock, SystemClock
from ..core._decision import Decision, Forecast
from ..core._errors import StoreUnavailableError
from ..core._flow import Flow, adrive, drive
from ..core._limiter import Limiter, require_strategy
from ..core._loops import running_loop
from ..core._reserving import areserved, require_until, reserved
from ..core._steps import Step
from ..core._store import MadeBy, Store, require_store
from ..core._strategy import Strategy
from ..core._transform import Grant, Transform, leasing
from ..core._validation import (
    MAX_SPAN_MS,
    reject,
    require_choice,
    require_cost,
    require_int,
    require_key,
    require_keys,
)
from ..strategies import strategy_of_rate
from ._batch import AdaptiveBatch
from ._credits import MAX_STALE_MS, Denials, Receipt, Term, clocks_for, term_of
from ._near import LeaseRequest, NearTier
from ._refilling import Refilling

__all__ = [
    "MODES",
    "CachedDenyLimiter",
    "TwoTierLimiter",
    "require_batch",
    "two_tier",
]


Answer = TypeVar("Answer", Decision, Forecast, Charge)


class CachedDenyLimiter(Limiter):
    """Asks the store, unless it has denied such a request and the denial is still valid. Made by
    `two_tier`."""

    def __init__(
        self,
        strategy: Strategy,
        store: Store,
        *,
        clock: Clock | None,
        prefix: str,
        max_keys: int,
        max_stale_ms: int,
    ) -> None:
        for_store, here = clocks_for(store, clock)
        super().__init__(strategy, store, clock=for_store, prefix=prefix)
        # One reading is enough for both: a store with its own clock ignores it.
        self._here = self._now if for_store is here else here.now
        self._numbers = count(1)
        self._denials = Denials(max_keys, max_stale_ms, self._numbers)

    def check(self, key: str, cost: int = 1) -> Decision:
        name, now = self._name(key, cost), self._here()
        held = self._denials.recall(name, cost, now)
        if held is not None:
            return held
        number = next(self._numbers)
        decision = self._apply(name, self._check, now, cost)
        return self._noted(name, number, now, cost, decision)

    async def acheck(self, key: str, cost: int = 1) -> Decision:
        name, now = self._name(key, cost), self._here()
        held = self._denials.recall(name, cost, now)
        if held is not None:
            return held
        number = next(self._numbers)
        decision = await self._aapply(name, self._check, now, cost)
        return self._noted(name, number, now, cost, decision)

    def check_many(self, keys: Iterable[str], cost: int = 1) -> list[Decision]:
        names, now = self._names(keys, cost), self._here()
        known = [self._denials.recall(name, cost, now) for name in names]
        asked = _unknown(names, known)
        if asked:
            number = next(self._numbers)
            decisions = self.store.apply_many(asked, self._check, now, cost)
            self._merge(known, asked, decisions, number, now, cost)
        return _all(known)

    async def acheck_many(self, keys: Iterable[str], cost: int = 1) -> list[Decision]:
        names, now = self._names(keys, cost), self._here()
        known = [self._denials.recall(name, cost, now) for name in names]
        asked = _unknown(names, known)
        if asked:
            number = next(self._numbers)
            decisions = await self.store.aapply_many(asked, self._check, now, cost)
            self._merge(known, asked, decisions, number, now, cost)
        return _all(known)

    # The other calls ask the store. If one of them finds units, remembered denials are out of date.

    def peek(self, key: str) -> Decision:
        return self._agreed(key, super().peek(key))

    async def apeek(self, key: str) -> Decision:
        return self._agreed(key, await super().apeek(key))

    def forecast(self, key: str, cost: int = 1) -> Forecast:
        return self._agreed(key, super().forecast(key, cost))

    async def aforecast(self, key: str, cost: int = 1) -> Forecast:
        return self._agreed(key, await super().aforecast(key, cost))

    def reserve(self, key: str, cost: int = 1, *, max_wait_ms: int = 0) -> Charge:
        return self._agreed(key, super().reserve(key, cost, max_wait_ms=max_wait_ms))

    async def areserve(self, key: str, cost: int = 1, *, max_wait_ms: int = 0) -> Charge:
        return self._agreed(key, await super().areserve(key, cost, max_wait_ms=max_wait_ms))

    def refunded(self, key: str) -> None:
        self._denials.forget(self._lead + key)

    def _agreed(self, key: str, answer: Answer) -> Answer:
        return agreed(self._denials, self._lead + key, answer, partial(self.refunded, key))

    def _merge(
        self,
        known: list[Decision | None],
        asked: list[str],
        decisions: list[Decision],
        number: int,
        asked_at: int,
        cost: int,
    ) -> None:
        """Fill the gaps in `known` with the decisions of the store, in order."""
        answers = iter(zip(asked, decisions, strict=True))
        for place, decision in enumerate(known):
            if decision is None:
                name, answer = next(answers)
                known[place] = self._noted(name, number, asked_at, cost, answer)

    def _noted(
        self, name: str, number: int, asked_at: int, cost: int, decision: Decision
    ) -> Decision:
        if not decision.allowed:
            self._denials.remember(name, number, asked_at, cost, decision)
        return decision


def agreed(denials: Denials, name: str, answer: Answer, refunded: Callable[[], object]) -> Answer:
    """An answer of the store, by which remembered denials are checked. A charge calls `refunded`
    when it is settled or cancelled."""
    if isinstance(answer, Charge):
        answer.on_change = refunded
    admits = answer.spendable_now if isinstance(answer, Forecast) else answer.allowed
    if admits:
        denials.contradict(name)
    return answer


def _unknown(names: list[str], known: list[Decision | None]) -> list[str]:
    return [name for name, decision in zip(names, known, strict=True) if decision is None]


def _all(known: list[Decision | None]) -> list[Decision]:
    return [decision for decision in known if decision is not None]


Mode = Literal["strict", "cached-deny", "leased"]
MODES: tuple[Mode, ...] = get_args(Mode)

# Transforms for at most this many different costs are kept.
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
    max_stale_ms: int = MAX_STALE_MS,
) -> Limiter:
    """A limiter on the shared store `l2` that decides on the node where it can.

    `mode` is "strict", "cached-deny" or "leased". In mode "leased", `batch` credits are taken at
    once. With a `low_water`, the next batch is taken ahead of need when a key has that many credits
    left, at a cost of one round trip per `batch - 1 - low_water` requests. `window_coupled` makes
    credits void at the end of their window; by default, if the strategy has a window.
    `return_idle_after_ms` drops credits that have not been spent for that long.

    In the modes "cached-deny" and "leased", a denial is answered from memory for at most
    `max_stale_ms`: so long it may take until a refund, a reset or a raised limit of another node is
    seen. Those of this limiter are seen at once.

    `max_keys` bounds the keys that the node remembers. `clock` is used if the store has no clock of
    its own.
    """
    require_choice("mode", mode, MODES)
    require_int("max_keys", max_keys, high=2**31 - 1)
    require_int("max_stale_ms", max_stale_ms, high=MAX_SPAN_MS)
    require_batch(batch, low_water)
    if return_idle_after_ms is not None:
        require_int("return_idle_after_ms", return_idle_after_ms)
    chosen = strategy_of_rate(strategy) if isinstance(strategy, str) else strategy
    require_strategy(chosen)
    require_store(l2)
    term = term_of(chosen, window_coupled)
    limiter: Limiter
    if mode == "strict":
        for_store, _ = clocks_for(l2, clock)
        limiter = rate_limit(chosen, store=l2, clock=for_store, prefix=prefix)
    elif mode == "cached-deny":
        limiter = CachedDenyLimiter(
            chosen,
            l2,
            clock=clock,
            prefix=prefix,
            max_keys=max_keys,
            max_stale_ms=max_stale_ms,
        )
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
            max_stale_ms=max_stale_ms,
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
        max_stale_ms=max_stale_ms,
    )
    return limiter


def require_batch(batch: int | AdaptiveBatch, low_water: int) -> None:
    """Validate a batch, and a low-water mark, which must be below it."""
    require_int("low_water", low_water, low=0)
    most = batch.most if isinstance(batch, AdaptiveBatch) else require_int("batch", batch)
    if low_water and low_water >= most:
        reject(
            f"low_water must be less than the batch of {most}, not {low_water}: a lease ahead of "
            "need takes the difference"
        )


class TwoTierLimiter(Refilling, Limiter):
    """Spends leased credits on the node, and leases more from the store. Made by `two_tier`."""

    decides_in_store: bool = False

    @property
    def answers_at_once(self) -> bool:
        """Always False: a call may have to wait for a lease, which would block an event loop."""
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
        max_stale_ms: int,
    ) -> None:
        for_store, here = clocks_for(store, clock)
        Limiter.__init__(self, strategy, store, clock=for_store, prefix=prefix)
        near = NearTier(
            limit=strategy.limit,
            batch=batch,
            term=term,
            idle_ms=idle_ms,
            max_keys=max_keys,
            max_stale_ms=max_stale_ms,
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

    # All local credits are spent at one instant, before leases are taken for the misses. The order
    # is right for a key that is given twice, too: if it misses the first time, it misses again.

    def check_many(self, keys: Iterable[str], cost: int = 1) -> list[Decision]:
        """As one `check` per key, in order."""
        named, now = _valid(keys, cost), self._near.now()
        local = self._near.spend_many(named, cost, now)
        return [
            found if self._settles(found) else self._settle(key, cost, found, now)
            for key, found in zip(named, local, strict=True)
        ]

    async def acheck_many(self, keys: Iterable[str], cost: int = 1) -> list[Decision]:
        """The awaitable twin of `check_many`; leases of several keys run concurrently."""
        return [_unless_failed(found) for found in await self.acheck_each(keys, cost)]

    async def acheck_each(self, keys: Iterable[str], cost: int = 1) -> list[Decision | Exception]:
        """As `acheck_many`, but if a key fails, its exception takes the place of its decision, and
        the decisions on the other keys are returned."""
        # Before a credit is spent: without a loop the call fails as a whole.
        running_loop()
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
        """Whether a local decision is final."""
        return decision.allowed and decision.remaining > self._level

    # `check` admits a cost that the credits or else the store cover. The other calls agree.

    def peek(self, key: str) -> Decision:
        """A peek at the local credits if there are any, else at the store."""
        held = self._near.local.peek(key)
        return held if held.allowed else self._agreed(key, super().peek(key))

    async def apeek(self, key: str) -> Decision:
        held = self._near.local.peek(key)
        return held if held.allowed else self._agreed(key, await super().apeek(key))

    def forecast(self, key: str, cost: int = 1) -> Forecast:
        """The store's forecast plus the local credits."""
        held = self._near.local.forecast(key, cost)
        return _with_credits(self._agreed(key, super().forecast(key, cost)), held)

    async def aforecast(self, key: str, cost: int = 1) -> Forecast:
        held = self._near.local.forecast(key, cost)
        return _with_credits(self._agreed(key, await super().aforecast(key, cost)), held)

    def reserve(self, key: str, cost: int = 1, *, max_wait_ms: int = 0) -> Charge:
        """Reserve units of the store, where they can be refunded to the whole fleet. If the store
        denies or is away, credits of this node are reserved. They come back to this node, unless it
        has leased again since: then they are lost to the fleet, as those of a node that dies."""
        parts, wait, answer = self._terms(key, cost, max_wait_ms)
        return drive(
            self._reserving(key, cost, wait),
            lambda ahead: reserved(self.store, self._now, parts, ahead, answer),
        )

    async def areserve(self, key: str, cost: int = 1, *, max_wait_ms: int = 0) -> Charge:
        """The awaitable twin of `reserve`."""
        parts, wait, answer = self._terms(key, cost, max_wait_ms)
        return await adrive(
            self._reserving(key, cost, wait),
            lambda ahead: areserved(self.store, self._now, parts, ahead, answer),
        )

    def _reserving(self, key: str, cost: int, max_wait_ms: int) -> Flow[int, Charge]:
        """Yields how far ahead to book in the store, and is sent the charge."""
        try:
            charge: Charge = yield 0
        except StoreUnavailableError:
            held = self._credit_charge(key, cost)
            if held is None:
                raise
            return held
        if not charge.allowed:
            held = self._credit_charge(key, cost)
            if held is not None:
                return held
            if max_wait_ms:
                charge = yield max_wait_ms
        return self._agreed(key, charge)

    def _credit_charge(self, key: str, cost: int) -> Charge | None:
        """A charge of credits on this node; None if they do not suffice."""
        decision, receipt = self._near.take(key, cost)
        return None if receipt is None else _CreditCharge(self, key, cost, decision, receipt)

    def refunded(self, key: str) -> None:
        self._near.denials.forget(key)

    def dropped(self, key: str) -> None:
        self._near.forget(key)

    def _agreed(self, key: str, answer: Answer) -> Answer:
        return agreed(self._near.denials, key, answer, partial(self.refunded, key))

    # In the queue, after a lease in flight. If this thread must not wait for it, the credits of
    # that lease are void when they arrive.

    def reset(self, key: str) -> None:
        """Forget the key in the store and on this node; credits on other nodes remain."""
        place = self._place(require_key(key), sys._getframe())
        with place or nullcontext():
            super().reset(key)

    async def areset(self, key: str) -> None:
        place = TaskPlace.of_task(self._near.queues, require_key(key), running_loop())
        assert place is not None
        async with place:
            await super().areset(key)

    def pause(self, key: str, until_ms: int) -> None:
        """Admit nothing for this key before the instant `until_ms`. Credits on this node are
        dropped at once; each other node may still spend those that it holds, less than a batch."""
        require_until(until_ms)
        self._near.forget(require_key(key))
        place = self._place(key, sys._getframe())
        with place or nullcontext():
            super().pause(key, until_ms)

    async def apause(self, key: str, until_ms: int) -> None:
        """The awaitable twin of `pause`."""
        require_until(until_ms)
        self._near.forget(require_key(key))
        place = TaskPlace.of_task(self._near.queues, key, running_loop())
        assert place is not None
        async with place:
            await super().apause(key, until_ms)

    @property
    def near_store(self) -> Store:
        """The store in which this node keeps its credits."""
        return self._near.store

    def close(self) -> None:
        self._finish()
        self._near.close()
        super().close()

    async def aclose(self) -> None:
        await self._afinish()
        self._near.close()
        await super().aclose()

    # A store that uses the caller's clock gets the instant of the request, from which the near tier
    # counts as well, on the same clock.

    def _fetch(self, request: LeaseRequest) -> Grant:
        key, want, need, now, _ = request
        return self._apply(self._lead + key, self._lease_of(need), now, want)

    async def _afetch(self, request: LeaseRequest) -> Grant:
        key, want, need, now, _ = request
        return await self._aapply(self._lead + key, self._lease_of(need), now, want)

    def _lease_of(self, need: int) -> Transform[Grant]:
        """The transform for a need. It is nearly always the same one, so it is kept."""
        transform = self._leases.get(need)
        if transform is None:
            transform = leasing(self.strategy, need)
            if len(self._leases) < _KEPT:
                self._leases[need] = transform
        return transform


class _CreditCharge(Charge):
    """Credits of this node that were reserved. A refund goes back to the node; what was used beyond
    the reserved cost is charged to the store."""

    def __init__(
        self, limiter: TwoTierLimiter, key: str, cost: int, decision: Decision, receipt: Receipt
    ) -> None:
        now = limiter._now
        super().__init__(
            limiter.store, now, limiter._parts(key, cost), decision, (now(),), delays_ms=(0,)
        )
        self._near = limiter._near
        self._key = key
        self._receipt = receipt
        self.on_change = partial(limiter.refunded, key)

    # What is left is known to the node, not to the store.
    settle_and_look = Settling.settle_and_look
    asettle_and_look = Settling.asettle_and_look

    # Of one limit, so of one step: either refunded here, or charged to the store.

    def _apply(self, steps: Sequence[Step]) -> Sequence[Any]:
        rest = self._returned(steps)
        return super()._apply(rest) if rest else (0,)

    async def _aapply(self, steps: Sequence[Step]) -> Sequence[Any]:
        rest = self._returned(steps)
        return await super()._aapply(rest) if rest else (0,)

    def _returned(self, steps: Sequence[Step]) -> list[Step]:
        """Give refunds back to the node. Returns the steps for the store."""
        for step in steps:
            if step.transform.role == "refund":
                self._near.give_back(self._key, step.cost, self._receipt)
        return [step for step in steps if step.transform.role != "refund"]


def _valid(keys: Iterable[str], cost: int) -> list[str]:
    """Validate all keys before any of them is charged."""
    require_cost(cost)
    return [require_key(key) for key in require_keys(keys)]


def _unless_failed(found: Decision | Exception) -> Decision:
    if isinstance(found, Exception):
        raise found
    return found


def _with_credits(far: Forecast, near: Forecast) -> Forecast:
    return Forecast(far.spendable_now + near.spendable_now, far.next_replenish_at, far.full_at)
