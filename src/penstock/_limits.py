"""`Limits`: several limits, one decision.

A request has a key for each limit. It is admitted if all of them admit it, and a denied request is
charged to none: the store applies all steps as one (`Store.apply_all`), or, if it cannot write
several keys at once, refunds what it charged. `atomic` says which of the two.

The constructor prepares what is the same in every call: the text that each limit's keys begin with
(its lead), its transforms and the order of the steps. A call adds the keys (`_declared.py`) and
hands the steps to the store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ._declared import Cost, Declaration, DeclaredLimit, Limit, combined, declared
from .accel._gates import limits_gate
from .core._charges import Charge, Part
from .core._claims import OnStore, claim
from .core._clock import Clock, SystemClock, require_clock
from .core._decision import Decision, Forecast
from .core._limiter import clock_reader, refuse_check
from .core._reserving import aacquired, acquired, areserved, aspent, reserved, spent
from .core._store import MadeBy, Store, require_store
from .core._strategy import Strategy
from .core._validation import key_lead, reject, require_flag, require_int
from .core._verdict import Verdict
from .core._waiting import KeyQueues, Pools, Wait, aacquire, acquire, timeout_in_ms, waiting_clock
from .stores._opening import open_for_limiter

__all__ = ["Limit", "Limits"]


class Limits(OnStore):
    """Checks requests against several limits at once, all or nothing. Safe to share between
    threads.

    `limits` maps names to strategies, rates or `Limit` objects, which are asked in that order.
    `store`, `clock`, `prefix` and `max_waiters` are as for `rate_limit`. `require_atomic` rejects a
    store that cannot charge several keys in one step, and would have to refund.
    """

    def __init__(
        self,
        limits: Mapping[str, Strategy | str | Limit],
        *,
        store: Store | str | None = None,
        clock: Clock | None = None,
        prefix: str = "",
        max_waiters: int | None = None,
        require_atomic: bool = False,
    ) -> None:
        lead = key_lead(prefix)
        by_name = declared(limits)
        if max_waiters is not None:
            require_int("max_waiters", max_waiters, low=0)
        home, self._owns_store = open_for_limiter(store, clock)
        try:
            require_store(home).require_clock(clock)
            self.clock: Clock = SystemClock() if clock is None else require_clock(clock)
            self.store: Store = home
            self.prefix: str = prefix
            self.atomic: bool = home.is_atomic(lead)
            """Whether all limits are charged in one step of the store; if not, a limit that denies
            has the charges before it refunded."""
            if require_flag("require_atomic", require_atomic) and not self.atomic:
                _refuse_store(home, prefix)
            parts = [
                DeclaredLimit(name, limit, self._lead_of(lead, name, limit))
                for name, limit in by_name.items()
            ]
            self._claims = [claim(home, part.lead, part.limit.strategy) for part in parts]
        except BaseException:
            if self._owns_store:
                home.close()
            raise
        self._declared = Declaration(parts)
        self._holds = self._declared.holds
        self._now = clock_reader(self.clock)
        self._queues = KeyQueues(max_waiters)
        self._waiting_clock = waiting_clock(self.clock)
        self.made_by: MadeBy | None = MadeBy(
            Limits,
            limits,
            store=store,
            clock=clock,
            prefix=prefix,
            max_waiters=max_waiters,
            require_atomic=require_atomic,
        )
        self._gate = limits_gate(self, [(p.name, p.limit, p.lead, p.check) for p in parts])
        if self._gate is not None:
            self.check = self._gate.check  # type: ignore[method-assign]

    @property
    def limits(self) -> Mapping[str, Limit]:
        """The declared limits by name, in order."""
        return {part.name: part.limit for part in self._declared.parts}

    @property
    def answers_at_once(self) -> bool:
        """Whether calls other than `acquire` never block, so that `check` may be called in an
        event loop."""
        return self.store.answers_at_once

    def check(self, keys: Mapping[str, str], cost: Cost = 1) -> Verdict:
        """Decide a request and, if all limits admit it, charge its cost to each of them."""
        if self._holds:
            refuse_check("check")
        parts, steps = self._declared.steps(keys, cost)
        now = self._now()
        return self._declared.verdict(parts, self.store.apply_all(steps, now), now)

    async def acheck(self, keys: Mapping[str, str], cost: Cost = 1) -> Verdict:
        """The awaitable twin of `check`."""
        if self._holds:
            refuse_check("acheck")
        if self.store.answers_at_once:
            return self.check(keys, cost)
        parts, steps = self._declared.steps(keys, cost)
        now = self._now()
        return self._declared.verdict(parts, await self.store.aapply_all(steps, now), now)

    def peek(self, keys: Mapping[str, str]) -> Verdict:
        """What `check` would answer to a cost of 1, with `remaining` as it stands. Spends nothing
        and writes nothing."""
        parts, steps = self._declared.peeks(keys)
        now = self._now()
        return self._declared.verdict(parts, self.store.apply_all(steps, now), now)

    async def apeek(self, keys: Mapping[str, str]) -> Verdict:
        """The awaitable twin of `peek`."""
        parts, steps = self._declared.peeks(keys)
        now = self._now()
        return self._declared.verdict(parts, await self.store.aapply_all(steps, now), now)

    def forecast(self, keys: Mapping[str, str], cost: Cost = 1) -> Forecast:
        """How many requests of `cost` fit into all limits now, and when there is more. Shadows do
        not count. Spends nothing."""
        now = self._now()
        steps = self._declared.forecasts(keys, cost)
        return combined(
            [self.store.apply(key, part, now, units) for key, part, units in steps], now
        )

    async def aforecast(self, keys: Mapping[str, str], cost: Cost = 1) -> Forecast:
        """The awaitable twin of `forecast`."""
        now = self._now()
        steps = self._declared.forecasts(keys, cost)
        return combined(
            [await self.store.aapply(key, part, now, units) for key, part, units in steps], now
        )

    def reset(self, keys: Mapping[str, str | None]) -> None:
        """Forget what has been spent under the given keys. The key of a keyless limit is None."""
        for key in self._declared.named(keys):
            try:
                self.store.reset(key)
            finally:
                self.store.resets.add(key, self._now())
        self._queues.reset_all()

    async def areset(self, keys: Mapping[str, str | None]) -> None:
        """The awaitable twin of `reset`."""
        for key in self._declared.named(keys):
            try:
                await self.store.areset(key)
            finally:
                self.store.resets.add(key, self._now())
        self._queues.reset_all()

    def has_state(self, keys: Mapping[str, str | None]) -> bool:
        """Whether the store has a state for one of the given keys. A key without a state was never
        used, was reset, or has been replenished since. Writes nothing."""
        now = self._now()
        finds = self._declared.finds(keys)
        return any(self.store.apply(key, find, now, 1) for key, find in finds)

    async def ahas_state(self, keys: Mapping[str, str | None]) -> bool:
        """The awaitable twin of `has_state`."""
        now, found = self._now(), False
        for key, find in self._declared.finds(keys):
            found = await self.store.aapply(key, find, now, 1) or found
        return found

    def reserve(self, keys: Mapping[str, str], cost: Cost = 1, *, max_wait_ms: int = 0) -> Charge:
        """Spend the cost as `check` does, and return a `Charge` that can be settled when the true
        cost is known, or cancelled. A denial is a charge that is not `allowed`.

        With a `max_wait_ms`, `gcra` and `token_bucket` may book units that they will have within
        that time; the other limits must admit now. `charge.starts_at` is the latest instant that
        was booked. At least one limit has to support booking.
        """
        charged, wait, answer = self._terms(keys, cost, max_wait_ms)
        return reserved(self.store, self._now, charged, wait, answer)

    async def areserve(
        self, keys: Mapping[str, str], cost: Cost = 1, *, max_wait_ms: int = 0
    ) -> Charge:
        """The awaitable twin of `reserve`."""
        charged, wait, answer = self._terms(keys, cost, max_wait_ms)
        return await areserved(self.store, self._now, charged, wait, answer)

    def charge_for(
        self, keys: Mapping[str, str], cost: Cost, verdict: Verdict, asked_at: int
    ) -> Charge:
        """A `Charge` for what an earlier `check` of these keys and costs has spent, so that it can
        be refunded. `verdict` is what the check returned, `asked_at` the instant of `clock` before
        it. For callers that refund rarely; those that often do use `reserve`."""
        charged = self._declared.spent(keys, cost, verdict, asked_at)
        return spent(self.store, self._now, charged, verdict, asked_at)

    async def acharge_for(
        self, keys: Mapping[str, str], cost: Cost, verdict: Verdict, asked_at: int
    ) -> Charge:
        """The awaitable twin of `charge_for`."""
        charged = self._declared.spent(keys, cost, verdict, asked_at)
        return await aspent(self.store, self._now, charged, verdict, asked_at)

    def _terms(
        self, keys: Mapping[str, str], cost: Cost, max_wait_ms: int
    ) -> tuple[list[Part], int, Callable[[Sequence[Decision]], Verdict]]:
        """What `reserve` needs: the parts, how far ahead, and how to make a verdict of the
        decisions."""
        parts, charged = self._declared.charges(keys, cost)
        return (
            charged,
            self._declared.require_wait(max_wait_ms),
            lambda told: self._declared.verdict(parts, told, self._now()),
        )

    def pause(self, keys: Mapping[str, str | None], until_ms: int) -> None:
        """Admit nothing under the given keys before the instant `until_ms`, on every node that
        shares the store. The key of a keyless limit is None. `reset` lifts a pause."""
        self.store.apply_all(self._declared.pauses(keys, until_ms), self._now())

    async def apause(self, keys: Mapping[str, str | None], until_ms: int) -> None:
        """The awaitable twin of `pause`."""
        await self.store.aapply_all(self._declared.pauses(keys, until_ms), self._now())

    def acquire(
        self, keys: Mapping[str, str], cost: Cost = 1, timeout: float | None = None
    ) -> Verdict | Charge:
        """Wait until all limits admit the request. Callers with the same keys are served in the
        order in which they came, and nothing is charged while they wait. If there are slots among
        the limits, returns the `Charge` that holds them; the queue for a slot is shared by all
        processes that share the store.

        Raises `rate_limit_exceeded`, with the decision of the binding limit, after `timeout`
        seconds or as soon as it is known that the wait would be longer.
        """
        if self._holds:
            return self._acquire_held(keys, cost, timeout)
        verdict: Verdict = acquire(
            self._wait(keys, cost, timeout),
            lambda _leads: self.check(keys, cost),
            lambda: self.peek(keys),
        )
        return verdict

    def _acquire_held(self, keys: Mapping[str, str], cost: Cost, timeout: float | None) -> Charge:
        wait = self._wait(keys, cost, timeout)
        parts, _, answer = self._terms(keys, cost, 0)
        return acquired(self.store, self._now, parts, answer, wait, lambda: self.peek(keys))

    async def aacquire(
        self, keys: Mapping[str, str], cost: Cost = 1, timeout: float | None = None
    ) -> Verdict | Charge:
        """The awaitable twin of `acquire`. Cancelling it leaves the queue."""
        if self._holds:
            return await self._aacquire_held(keys, cost, timeout)
        verdict: Verdict = await aacquire(
            self._wait(keys, cost, timeout),
            lambda _leads: self.acheck(keys, cost),
            lambda: self.apeek(keys),
        )
        return verdict

    async def _aacquire_held(
        self, keys: Mapping[str, str], cost: Cost, timeout: float | None
    ) -> Charge:
        wait = self._wait(keys, cost, timeout)
        parts, _, answer = self._terms(keys, cost, 0)
        return await aacquired(self.store, self._now, parts, answer, wait, lambda: self.apeek(keys))

    def _wait(self, keys: Mapping[str, str], cost: Cost, timeout: float | None) -> Wait:
        """What a caller of `acquire` waits for."""
        return Wait(
            self._queues,
            self._declared.admissible_queue(keys, cost),
            self._waiting_clock,
            timeout_in_ms(timeout),
            cost,
            self.answers_at_once,
        )

    def pools(self, keys: Mapping[str, str]) -> Pools | None:
        """The slots among the limits that take part in a call with these keys."""
        if not self._holds:
            return None
        _, charged = self._declared.charges(keys, 1)
        return Pools(self.store, tuple([p.key for p in charged if p.strategy.is_held]))

    def __repr__(self) -> str:
        declared = ", ".join(
            f"{part.name}: {part.limit.strategy!r}" for part in self._declared.parts
        )
        return f"<Limits {{{declared}}} on {self.store!r}, prefix={self.prefix!r}>"

    def _lead_of(self, lead: str, name: str, limit: Limit) -> str:
        """What the keys of a limit begin with, without the colon before the key."""
        return lead + name


def _refuse_store(store: Store, prefix: str) -> None:
    reject(
        f"{store!r} cannot decide all keys under the prefix {prefix!r} in one step; use another "
        "store, on a Redis Cluster a prefix with a hash tag such as '{api}', or leave "
        "require_atomic out: then charges are refunded when a later limit denies"
    )
