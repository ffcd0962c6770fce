"""The limiter: one strategy on one store, asked by key.

The constructor prepares what is the same in every call: the text that its keys begin with (the
lead), the transforms, the clock's method. A call validates its arguments, reads the clock once and
hands the transform to the store. Every sync call has an async twin that makes the same decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from ._charges import Charge, Part
from ._claims import OnStore, claim
from ._clock import Clock, ManualClock, SystemClock, require_clock
from ._decision import Decision, Forecast
from ._errors import UnsupportedError
from ._reserving import (
    aacquired,
    acquired,
    areserved,
    pauses,
    require_until,
    require_wait,
    reserved,
)
from ._steps import Step
from ._store import Store, require_store
from ._strategy import Strategy
from ._transform import asking, checking, forecasting, peeking
from ._validation import (
    MAX_KEY_BYTES,
    key_lead,
    plain_key,
    reject,
    require_cost,
    require_instant,
    require_int,
    require_key,
    require_keys,
    shown,
)
from ._waiting import KeyQueues, Wait, aacquire, acquire, timeout_in_ms, waiting_clock

__all__ = ["Limiter", "SlotLimiter", "clock_reader", "refuse_check", "require_strategy"]


# The interpreter keeps one object for each of these integers, and True and False are others.
_ZERO, _ONE = 0, 1


class Limiter(OnStore):
    """Checks keys against one strategy. Made by `rate_limit`; safe to share between threads."""

    decides_in_store: bool = True
    """Whether every check is one step of the store, so that it can be combined with other steps in
    one call."""

    @property
    def answers_at_once(self) -> bool:
        """Whether calls other than `acquire` never block, so that `check` may be called in an
        event loop."""
        return self.store.answers_at_once

    def __init__(
        self,
        strategy: Strategy,
        store: Store,
        *,
        clock: Clock | None = None,
        prefix: str = "",
        owns_store: bool = False,
        max_waiters: int | None = None,
    ) -> None:
        require_strategy(strategy)
        require_store(store).require_clock(clock)
        if max_waiters is not None:
            require_int("max_waiters", max_waiters, low=0)
        self.strategy = strategy
        self.prefix = prefix
        self.clock: Clock = SystemClock() if clock is None else require_clock(clock)
        self._owns_store = owns_store
        self._lead = key_lead(prefix)
        self._now = clock_reader(self.clock)
        self._check = checking(strategy)
        self._peek = peeking(strategy)
        self._forecast = forecasting(strategy)
        self._queues = KeyQueues(max_waiters)
        self._waiting_clock = waiting_clock(self.clock)
        self._settle_on(store)

    def _settle_on(self, store: Store) -> None:
        """Keep states in this store from now on."""
        self._claims = (claim(store, self._lead, self.strategy),)
        self.store = store
        self._apply = store.apply
        self._aapply = store.aapply

    def check(self, key: str, cost: int = 1) -> Decision:
        """Decide a request of `cost` and, if it is allowed, spend it."""
        # The common cases of both validations, inline.
        if cost is not _ONE:
            require_cost(cost)
        if type(key) is not str or not key or len(key) > MAX_KEY_BYTES or not key.isascii():
            key = require_key(key)
        return self._apply(self._lead + key, self._check, self._now(), cost)

    async def acheck(self, key: str, cost: int = 1) -> Decision:
        """The awaitable twin of `check`."""
        if cost is not _ONE:
            require_cost(cost)
        if type(key) is not str or not key or len(key) > MAX_KEY_BYTES or not key.isascii():
            key = require_key(key)
        return await self._aapply(self._lead + key, self._check, self._now(), cost)

    def check_many(self, keys: Iterable[str], cost: int = 1) -> list[Decision]:
        """As one `check` per key, in order, all at the same instant."""
        names = self._names(keys, cost)
        return self.store.apply_many(names, self._check, self._now(), cost)

    async def acheck_many(self, keys: Iterable[str], cost: int = 1) -> list[Decision]:
        """The awaitable twin of `check_many`."""
        names = self._names(keys, cost)
        return await self.store.aapply_many(names, self._check, self._now(), cost)

    def peek(self, key: str) -> Decision:
        """What `check` would answer for a cost of 1, with `remaining` as it stands. Spends
        nothing and writes nothing."""
        return self._apply(self._name(key), self._peek, self._now(), 1)

    async def apeek(self, key: str) -> Decision:
        """The awaitable twin of `peek`."""
        return await self._aapply(self._name(key), self._peek, self._now(), 1)

    def forecast(self, key: str, cost: int = 1) -> Forecast:
        """How many requests of `cost` fit now, and when there is more. Spends nothing."""
        return self._apply(self._name(key, cost), self._forecast, self._now(), cost)

    async def aforecast(self, key: str, cost: int = 1) -> Forecast:
        """The awaitable twin of `forecast`."""
        name = self._name(key, cost)
        return await self._aapply(name, self._forecast, self._now(), cost)

    def reset(self, key: str) -> None:
        """Forget what the key has spent. Waiters in `acquire` of this limiter ask again at once."""
        name = self._name(key)
        try:
            self.store.reset(name)
        finally:
            self.store.resets.add(name, self._now())
            self.dropped(key)
        self._queues.reset(key)

    async def areset(self, key: str) -> None:
        """The awaitable twin of `reset`."""
        name = self._name(key)
        try:
            await self.store.areset(name)
        finally:
            self.store.resets.add(name, self._now())
            self.dropped(key)
        self._queues.reset(key)

    def refunded(self, key: str) -> None:
        """Called after units of the key may have been refunded in this process. A limiter that
        remembers answers of the store forgets them."""

    def dropped(self, key: str) -> None:
        """Called after the key may have been reset or paused in this process. A limiter that holds
        units of the store gives them up."""
        self.refunded(key)

    def reserve(self, key: str, cost: int = 1, *, max_wait_ms: int = 0) -> Charge:
        """Spend `cost` as `check` does, and return a `Charge` that can be settled when the true
        cost is known, or cancelled. A denial is a charge that is not `allowed`.

        With a `max_wait_ms`, units may be booked that become available within that time:
        `charge.starts_at` is when. Bookings are first come, first served, among all processes that
        share the store. Only `gcra` and `token_bucket` support booking.
        """
        parts, wait, answer = self._terms(key, cost, max_wait_ms)
        return reserved(self.store, self._now, parts, wait, answer)

    async def areserve(self, key: str, cost: int = 1, *, max_wait_ms: int = 0) -> Charge:
        """The awaitable twin of `reserve`."""
        parts, wait, answer = self._terms(key, cost, max_wait_ms)
        return await areserved(self.store, self._now, parts, wait, answer)

    def _terms(
        self, key: str, cost: int, max_wait_ms: int
    ) -> tuple[list[Part], int, Callable[[Sequence[Decision]], Decision]]:
        """What `reserve` needs: the part, how far ahead, and how to pick the decision."""
        if max_wait_ms is not _ZERO and require_wait(max_wait_ms) and not self.strategy.books_ahead:
            # Raises the error that says why.
            self.strategy.book(None, 0, 1, max_wait_ms)
        return self._parts(key, cost), max_wait_ms, _the_one

    def pause(self, key: str, until_ms: int) -> None:
        """Admit nothing for this key before the instant `until_ms`, on every node that shares the
        store; a window may hold until its own end. `reset` lifts it."""
        (step,) = pauses(self._parts(key, 1), require_until(until_ms))
        try:
            self._apply(step.key, step.transform, self._now(), 1)
        finally:
            self.dropped(key)

    async def apause(self, key: str, until_ms: int) -> None:
        """The awaitable twin of `pause`."""
        (step,) = pauses(self._parts(key, 1), require_until(until_ms))
        try:
            await self._aapply(step.key, step.transform, self._now(), 1)
        finally:
            self.dropped(key)

    def acquire(self, key: str, cost: int = 1, timeout: float | None = None) -> Decision:
        """Wait until the request is admitted. Callers for the same key are served in the order in
        which they came; `check` does not queue.

        Raises `rate_limit_exceeded`, with the decision, after `timeout` seconds or as soon as it is
        known that the wait would be longer.
        """
        decision: Decision = acquire(
            self._wait(key, cost, timeout),
            lambda _leads: self.check(key, cost),
            lambda: self.peek(key),
        )
        return decision

    async def aacquire(self, key: str, cost: int = 1, timeout: float | None = None) -> Decision:
        """The awaitable twin of `acquire`. Cancelling it leaves the queue."""
        decision: Decision = await aacquire(
            self._wait(key, cost, timeout),
            lambda _leads: self.acheck(key, cost),
            lambda: self.apeek(key),
        )
        return decision

    def __repr__(self) -> str:
        return f"<Limiter {self.strategy!r} on {self.store!r}, prefix={self.prefix!r}>"

    def step(self, key: str, cost: int = 1, *, spends: bool = True) -> Step:
        """The step of a `check`, for `Store.apply_all`. Without `spends`, a step that only asks
        whether the cost would be admitted."""
        transform = self._check if spends else asking(self.strategy)
        return Step(self._lead + plain_key(key), transform, cost)

    def _parts(self, key: str, cost: int) -> list[Part]:
        if cost is not _ONE:
            require_cost(cost)
        return [Part("", self._lead + plain_key(key), self.strategy, cost)]

    def _name(self, key: str, cost: int = 1) -> str:
        require_cost(cost)
        return self._lead + require_key(key)

    def _names(self, keys: Iterable[str], cost: int) -> list[str]:
        require_cost(cost)
        return [self._lead + require_key(key) for key in require_keys(keys)]

    def _wait(self, key: str, cost: int, timeout: float | None) -> Wait:
        """What a caller of `acquire` waits for. Rejects a cost that could never be admitted."""
        self._name(key, cost)
        if 0 < self.strategy.limit < cost:
            reject(
                f"a cost of {cost} can never be admitted by {self.strategy!r}: "
                f"ask for at most {self.strategy.limit} at once"
            )
        timeout_ms = timeout_in_ms(timeout)
        at_once = self.answers_at_once
        return Wait(self._queues, key, self._waiting_clock, timeout_ms, cost, at_once)


class SlotLimiter(Limiter):
    """A limiter of slots: `reserve` and `acquire` return the `Charge` that holds one. Made by
    `rate_limit(slots(...))`."""

    def check(self, key: str, cost: int = 1) -> NoReturn:
        """Not supported: a slot taken by a check could not be given back. Use `reserve`."""
        refuse_check("check")

    async def acheck(self, key: str, cost: int = 1) -> NoReturn:
        """Refused, as `check`."""
        refuse_check("acheck")

    def check_many(self, keys: Iterable[str], cost: int = 1) -> NoReturn:
        """Refused, as `check`."""
        refuse_check("check_many")

    async def acheck_many(self, keys: Iterable[str], cost: int = 1) -> NoReturn:
        """Refused, as `check`."""
        refuse_check("acheck_many")

    def acquire(  # type: ignore[override]
        self, key: str, cost: int = 1, timeout: float | None = None
    ) -> Charge:
        """Wait for a slot. Callers for the same key are served first come, first served, in this
        process and among all processes that share the store."""
        parts, wait = self._parts(key, cost), self._wait(key, cost, timeout)
        return acquired(self.store, self._now, parts, _the_one, wait, lambda: self.peek(key))

    async def aacquire(  # type: ignore[override]
        self, key: str, cost: int = 1, timeout: float | None = None
    ) -> Charge:
        """The awaitable twin of `acquire`. Cancelling it leaves the queue."""
        parts, wait = self._parts(key, cost), self._wait(key, cost, timeout)
        return await aacquired(
            self.store, self._now, parts, _the_one, wait, lambda: self.apeek(key)
        )


def require_strategy(strategy: Any) -> Strategy:
    """The strategy, or `config_invalid` for anything else."""
    if not isinstance(strategy, Strategy):
        reject(
            "strategy must be a rate such as '100/minute' or a strategy such as "
            f"gcra(100, 60_000), not {shown(strategy)}"
        )
    return strategy


def refuse_check(name: str, *_arguments: Any, **_named: Any) -> NoReturn:
    """Raises the error of a `check` of slots."""
    raise UnsupportedError(
        f"{name}() cannot be used with slots, because a slot has to be given back; use reserve() "
        "or acquire(), which return the Charge that holds it"
    )


def _the_one(decisions: Sequence[Decision]) -> Decision:
    return decisions[0]


def clock_reader(clock: Clock) -> Callable[[], int]:
    """The clock's `now`. That of a user's clock is validated, so that no state ever holds an
    invalid instant."""
    if type(clock) in (SystemClock, ManualClock):
        return clock.now
    return lambda: require_instant(clock.now())
