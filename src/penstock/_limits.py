"""`Limits`: several limits, one decision.

A request names a key for each limit. It is admitted if all of them admit it, and a denied request
is charged nowhere: the store runs all steps as one (`Store.apply_all`), or, where it cannot write
several keys at once, gives back what it charged. `atomic` says which of the two.

Everything that can be settled at construction is: the lead of each limit's keys, its transforms,
the order of its steps. A call puts the keys behind the leads and hands the steps to the store.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from .accel._limits import gate_of
from .core._charges import (
    Charge,
    Part,
    Tickets,
    areserved,
    aspent,
    new_id,
    pauses,
    require_until,
    require_wait,
    reserved,
    spent,
)
from .core._clock import Clock, SystemClock, require_clock
from .core._decision import Decision, Forecast
from .core._errors import PenstockError, UnsupportedError
from .core._limiter import OnStore, claim, clock_reader, refuse_check
from .core._store import MadeBy, Store, require_store
from .core._strategy import Strategy
from .core._transform import Step, Transform, checking, forecasting, looking
from .core._validation import (
    MAX_SAFE,
    key_lead,
    plain_key,
    reject,
    require_int,
    require_key,
    shown,
)
from .core._verdict import Verdict
from .core._waiting import KeyQueues, aacquire, acquire, timeout_in_ms, waiting_clock
from .stores._opening import open_for_limiter
from .strategies._rates import strategy_of_rate

__all__ = ["Limit", "Limits"]

# No colon: it parts the name from the key.
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"

Cost = int | Mapping[str, int]
"""Of every limit, or by name; a name that is left out costs 1, and 0 only looks."""


# The interpreter keeps one object for this integer, and True is another.
_ONE = 1
# A named tuple's own constructor takes twice as long.
_new_step: Callable[[tuple[Any, ...]], Step] = partial(tuple.__new__, Step)


class Limit:
    """One of several limits, where a bare strategy does not say enough.

    `strategy` may be a rate such as `"100/minute"`. A `shadow` never denies a request: it counts
    what it would have admitted, and the verdict tells when it would have denied. An `optional`
    limit is left out of a call that has no key for it, where others make that an error. A
    `keyless` one is for everybody and takes no key.
    """

    __slots__ = ("keyless", "optional", "shadow", "strategy")

    def __init__(
        self,
        strategy: Strategy | str,
        *,
        shadow: bool = False,
        optional: bool = False,
        keyless: bool = False,
    ) -> None:
        chosen = strategy_of_rate(strategy) if isinstance(strategy, str) else strategy
        if not isinstance(chosen, Strategy):
            reject(
                "a limit must be a rate such as '100/minute', a strategy such as "
                f"fixed_window(100, 60_000), or a Limit of one, not {shown(strategy)}"
            )
        for name, value in (("shadow", shadow), ("optional", optional), ("keyless", keyless)):
            if not isinstance(value, bool):
                reject(f"{name} must be True or False, not {shown(value)}")
        if optional and keyless:
            reject("a keyless limit is part of every call, so it cannot be optional")
        self.strategy: Strategy = chosen
        self.shadow: bool = shadow
        self.optional: bool = optional
        self.keyless: bool = keyless

    def __repr__(self) -> str:
        flags = [
            f"{name}=True" for name in ("shadow", "optional", "keyless") if getattr(self, name)
        ]
        return f"Limit({', '.join([repr(self.strategy), *flags])})"


class _Part:
    """A limit with what was settled for it."""

    __slots__ = ("check", "forecast", "lead", "limit", "look", "name", "shadow", "step")

    def __init__(self, name: str, limit: Limit, lead: str) -> None:
        self.name = name
        self.limit = limit
        self.shadow = limit.shadow
        self.lead = lead if limit.keyless else f"{lead}:"
        self.check: Transform[Decision] = checking(limit.strategy)
        self.look: Transform[Decision] = looking(limit.strategy)
        self.forecast: Transform[Forecast] = forecasting(limit.strategy)
        # A check of one unit, where that is the same in every call.
        self.step = Step(self.lead, self.check, 1, limit.shadow) if limit.keyless else None


class Limits(OnStore):
    """Checks requests against several limits at once, all or nothing. Safe to share between
    threads.

    `limits` maps names to strategies, rates or `Limit`s; their order is that of the steps. `store`,
    `clock`, `prefix` and `max_waiters` are as for `rate_limit`. `require_atomic` refuses a store
    that can only charge in order and give back.
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
        declared = _declared(limits)
        if max_waiters is not None:
            require_int("max_waiters", max_waiters, low=0)
        home, self._owns_store = open_for_limiter(store, clock)
        try:
            require_store(home).require_clock(clock)
            self.clock: Clock = SystemClock() if clock is None else require_clock(clock)
            self.store: Store = home
            self.prefix: str = prefix
            self.atomic: bool = home.is_atomic(lead)
            """Whether nobody gets in between; else what was charged is given back."""
            if require_atomic and not self.atomic:
                _refuse_store(home, prefix)
            self._parts = [
                _Part(name, limit, self._lead_of(lead, name, limit))
                for name, limit in declared.items()
            ]
            self._claims = [claim(home, part.lead, part.limit.strategy) for part in self._parts]
        except BaseException:
            if self._owns_store:
                home.close()
            raise
        self._by_name = {part.name: part for part in self._parts}
        self._names = tuple(self._by_name)
        self._keyed = sum(not part.limit.keyless for part in self._parts)
        self._shadows = tuple([part.limit.shadow for part in self._parts])
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
        self._holds = any(part.limit.strategy.is_held for part in self._parts)
        gate = gate_of(self, [(p.name, p.limit, p.lead, p.check) for p in self._parts])
        if gate is not None:
            self.check = gate.check  # type: ignore[method-assign]

    @property
    def limits(self) -> Mapping[str, Limit]:
        """What was declared, by name, in order."""
        return {part.name: part.limit for part in self._parts}

    @property
    def answers_at_once(self) -> bool:
        """Whether no call but `acquire` ever waits, so that an event loop may call `check`."""
        return self.store.answers_at_once

    def check(self, keys: Mapping[str, str], cost: Cost = 1) -> Verdict:
        """Decide a request and, if all limits admit it, spend its cost on each of them."""
        if self._holds:
            refuse_check("check")
        parts, steps = self._steps(keys, cost)
        return self._verdict(parts, self.store.apply_all(steps, self._now()))

    async def acheck(self, keys: Mapping[str, str], cost: Cost = 1) -> Verdict:
        """The awaitable twin of `check`."""
        if self._holds:
            refuse_check("acheck")
        if self.store.answers_at_once:
            return self.check(keys, cost)
        parts, steps = self._steps(keys, cost)
        return self._verdict(parts, await self.store.aapply_all(steps, self._now()))

    def peek(self, keys: Mapping[str, str]) -> Verdict:
        """What `check` would answer to a cost of 1, with `remaining` as it stands. Spends nothing
        and writes nothing."""
        parts, steps = self._steps(keys, 0)
        return self._verdict(parts, self.store.apply_all(steps, self._now()))

    async def apeek(self, keys: Mapping[str, str]) -> Verdict:
        """The awaitable twin of `peek`."""
        parts, steps = self._steps(keys, 0)
        return self._verdict(parts, await self.store.aapply_all(steps, self._now()))

    def forecast(self, keys: Mapping[str, str], cost: Cost = 1) -> Forecast:
        """How many requests of `cost` fit into all limits now, and when there is more. Shadows do
        not count. Spends nothing."""
        now = self._now()
        steps = self._forecasts(keys, cost)
        return _combined(
            [self.store.apply(key, part, now, units) for key, part, units in steps], now
        )

    async def aforecast(self, keys: Mapping[str, str], cost: Cost = 1) -> Forecast:
        """The awaitable twin of `forecast`."""
        now = self._now()
        steps = self._forecasts(keys, cost)
        return _combined(
            [await self.store.aapply(key, part, now, units) for key, part, units in steps], now
        )

    def reset(self, keys: Mapping[str, str | None]) -> None:
        """Forget what the keys that are named have spent, and no others. A keyless limit is named
        with None."""
        for key in self._named(keys):
            self.store.reset(key)
        self._queues.reset_all()

    async def areset(self, keys: Mapping[str, str | None]) -> None:
        """The awaitable twin of `reset`."""
        for key in self._named(keys):
            await self.store.areset(key)
        self._queues.reset_all()

    def reserve(self, keys: Mapping[str, str], cost: Cost = 1, *, max_wait_ms: int = 0) -> Charge:
        """Spend the cost as `check` does, and hold it as a `Charge` that can be settled when the
        true cost is known, or cancelled. A denial is a charge that is not `allowed`.

        With a `max_wait_ms` the limits that have a pace may be booked ahead; the others must admit
        now. `charge.starts_at` is the latest of what was booked. That takes a limit with a pace,
        such as gcra.
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
        """A `Charge` for what a `check` of these keys and costs has spent, which answered `verdict`
        and was asked at the instant `asked_at` of `clock`: to give it back after all. For whoever
        asks much more often than that; else `reserve`."""
        return spent(self.store, self._now, self._charges(keys, cost)[1], verdict, asked_at)

    async def acharge_for(
        self, keys: Mapping[str, str], cost: Cost, verdict: Verdict, asked_at: int
    ) -> Charge:
        """The awaitable twin of `charge_for`."""
        return await aspent(self.store, self._now, self._charges(keys, cost)[1], verdict, asked_at)

    def _terms(
        self, keys: Mapping[str, str], cost: Cost, max_wait_ms: int
    ) -> tuple[list[Part], int, Callable[[Sequence[Decision]], Verdict]]:
        """What `reserve` asks for: the parts, how long ahead, and what to make of the answers."""
        parts, charged = self._charges(keys, cost)
        return charged, self._wait(max_wait_ms), lambda told: self._verdict(parts, told)

    def pause(self, keys: Mapping[str, str | None], until_ms: int) -> None:
        """Let none of the keys that are named admit anything before the instant `until_ms`, on
        every node that shares the store. A keyless limit is named with None; `reset` lifts it."""
        self.store.apply_all(self._pauses(keys, until_ms), self._now())

    async def apause(self, keys: Mapping[str, str | None], until_ms: int) -> None:
        """The awaitable twin of `pause`."""
        await self.store.aapply_all(self._pauses(keys, until_ms), self._now())

    def acquire(
        self, keys: Mapping[str, str], cost: Cost = 1, timeout: float | None = None
    ) -> Verdict | Charge:
        """Wait until all limits admit the request, in turn with the others that wait for the same
        keys. Nothing is charged meanwhile. With slots among the limits, the answer is the `Charge`
        that holds them; for a slot, those of other processes that share the store wait in turn,
        too.

        Past `timeout` seconds, or as soon as it is plain that it would be past them, raises
        `rate_limit_exceeded` with the decision of the limit that binds.
        """
        if self._holds:
            return self._acquire_held(keys, cost, timeout)
        verdict: Verdict = acquire(
            self._queues,
            self._admissible(keys, cost),
            self._waiting_clock,
            timeout_in_ms(timeout),
            lambda: self.check(keys, cost),
            lambda: self.peek(keys),
        )
        return verdict

    def _acquire_held(self, keys: Mapping[str, str], cost: Cost, timeout: float | None) -> Charge:
        queue = self._admissible(keys, cost)
        parts, wait, answer = self._terms(keys, cost, 0)
        waiter_id = new_id(parts)
        tickets = Tickets(parts, waiter_id)

        def ask() -> Charge:
            charge = reserved(self.store, self._now, parts, wait, answer, waiter_id)
            if steps := tickets.after(charge):
                self.store.apply_all(steps, self._now())
            return charge

        charge: Any = None
        try:
            charge = acquire(
                self._queues,
                queue,
                self._waiting_clock,
                timeout_in_ms(timeout),
                ask,
                lambda: self.peek(keys),
            )
        finally:
            if charge is None and (steps := tickets.leaving()):
                with suppress(PenstockError):
                    self.store.apply_all(steps, self._now())
        held: Charge = charge
        return held

    async def aacquire(
        self, keys: Mapping[str, str], cost: Cost = 1, timeout: float | None = None
    ) -> Verdict | Charge:
        """The awaitable twin of `acquire`. Cancelling it leaves the queue."""
        if self._holds:
            return await self._aacquire_held(keys, cost, timeout)
        verdict: Verdict = await aacquire(
            self._queues,
            self._admissible(keys, cost),
            self._waiting_clock,
            timeout_in_ms(timeout),
            lambda: self.acheck(keys, cost),
            lambda: self.apeek(keys),
        )
        return verdict

    async def _aacquire_held(
        self, keys: Mapping[str, str], cost: Cost, timeout: float | None
    ) -> Charge:
        queue = self._admissible(keys, cost)
        parts, wait, answer = self._terms(keys, cost, 0)
        waiter_id = new_id(parts)
        tickets = Tickets(parts, waiter_id)

        async def ask() -> Charge:
            charge = await areserved(self.store, self._now, parts, wait, answer, waiter_id)
            if steps := tickets.after(charge):
                await self.store.aapply_all(steps, self._now())
            return charge

        try:
            held: Charge = await aacquire(
                self._queues,
                queue,
                self._waiting_clock,
                timeout_in_ms(timeout),
                ask,
                lambda: self.apeek(keys),
            )
        except Exception:
            if steps := tickets.leaving():
                with suppress(PenstockError):
                    await self.store.aapply_all(steps, self._now())
            raise
        return held

    def __repr__(self) -> str:
        declared = ", ".join(f"{part.name}: {part.limit.strategy!r}" for part in self._parts)
        return f"<Limits {{{declared}}} on {self.store!r}, prefix={self.prefix!r}>"

    def _lead_of(self, lead: str, name: str, limit: Limit) -> str:
        """What the keys of a limit begin with, but for the colon before the key."""
        return lead + name

    def _steps(self, keys: Mapping[str, str], cost: Cost) -> tuple[list[_Part], list[Step]]:
        """The limits that are asked, and what the store is asked of each."""
        if cost is _ONE and type(keys) is dict and len(keys) == self._keyed:
            # The common case, in which nothing is left out and each costs one unit.
            try:
                return self._parts, [
                    part.step
                    or _new_step(
                        (part.lead + plain_key(keys[part.name]), part.check, 1, part.shadow)
                    )
                    for part in self._parts
                ]
            except KeyError:
                pass  # which is said below
        parts = self._asked(keys)
        costs = self._costs(parts, cost)
        steps = []
        for part, units in zip(parts, costs, strict=True):
            key = part.lead if part.limit.keyless else part.lead + require_key(keys[part.name])
            transform = part.check if units else part.look
            steps.append(Step(key, transform, units or 1, part.limit.shadow))
        return parts, steps

    def _asked(self, keys: Mapping[str, str]) -> list[_Part]:
        if not isinstance(keys, Mapping):
            reject(f"keys must be a mapping such as {self._example()}, not {shown(keys)}")
        for name in keys:
            self._require_keyed(name)
        parts = []
        for part in self._parts:
            if part.limit.keyless or part.name in keys:
                parts.append(part)
            elif not part.limit.optional:
                reject(
                    f"the limit {part.name!r} has no key in this call; pass one, as in "
                    f"{self._example()}, or make it Limit(..., optional=True)"
                )
        return parts

    def _require_keyed(self, name: Any) -> None:
        part = self._by_name.get(name)
        if part is None:
            reject(f"there is no limit {shown(name)}; there are {', '.join(self._names)}")
        if part.limit.keyless:
            reject(f"the limit {name!r} is for everybody and takes no key; leave it out")

    def _example(self) -> str:
        named = [f"{part.name!r}: 'alice'" for part in self._parts if not part.limit.keyless]
        return "{" + ", ".join(named) + "}"

    def _costs(self, parts: list[_Part], cost: Cost) -> list[int]:
        if not isinstance(cost, Mapping):
            return [require_int("cost", cost, 0)] * len(parts)
        asked = {part.name for part in parts}
        for name in cost:
            if name not in asked:
                there = "has no key in this call" if name in self._by_name else "is not there"
                reject(f"cost names the limit {shown(name)}, which {there}")
            require_int(f"the cost of {name!r}", cost[name], 0)
        return [cost.get(part.name, 1) for part in parts]

    def _verdict(self, parts: list[_Part], results: Sequence[Decision]) -> Verdict:
        if len(parts) == len(self._parts):
            return Verdict(self._names, tuple(results), self._shadows)
        names = tuple([part.name for part in parts])
        return Verdict(names, tuple(results), tuple([part.limit.shadow for part in parts]))

    def _forecasts(
        self, keys: Mapping[str, str], cost: Cost
    ) -> list[tuple[str, Transform[Forecast], int]]:
        parts, steps = self._steps(keys, cost)
        costs = self._costs(parts, cost)
        if 0 in costs:
            reject("the cost of a forecast must be at least 1")
        pairs = zip(parts, steps, strict=True)
        return [(s.key, p.forecast, s.cost) for p, s in pairs if not p.limit.shadow]

    def _charges(self, keys: Mapping[str, str], cost: Cost) -> tuple[list[_Part], list[Part]]:
        parts, steps = self._steps(keys, cost)
        costs = self._costs(parts, cost)
        return parts, [
            Part(part.name, step.key, part.limit.strategy, units, part.limit.shadow)
            for part, step, units in zip(parts, steps, costs, strict=True)
        ]

    def _wait(self, max_wait_ms: int) -> int:
        wait = require_wait(max_wait_ms)
        if wait and not any(part.limit.strategy.books_ahead for part in self._parts):
            raise UnsupportedError(
                "none of these limits has a pace, so nothing can be booked ahead; make one of them "
                "gcra(...), or reserve without max_wait_ms"
            )
        return wait

    def _pauses(self, keys: Mapping[str, str | None], until_ms: int) -> list[Step]:
        named = zip(keys, self._named(keys), strict=True)
        parts = [Part(name, key, self._by_name[name].limit.strategy, 1) for name, key in named]
        return pauses(parts, require_until(until_ms))

    def _named(self, keys: Mapping[str, str | None]) -> list[str]:
        """What is named, as it is called in the store."""
        if not isinstance(keys, Mapping) or not keys:
            reject(f"keys must name something, as in {self._example()}, not {shown(keys)}")
        names = []
        for name, key in keys.items():
            part = self._by_name.get(name)
            if part is not None and part.limit.keyless and key is None:
                names.append(part.lead)
                continue
            self._require_keyed(name)
            names.append(self._by_name[name].lead + require_key(key))
        return names

    def _admissible(self, keys: Mapping[str, str], cost: Cost) -> str:
        """Refuse what no wait could ever admit. Returns what the callers for these keys queue
        under."""
        parts, steps = self._steps(keys, cost)
        for part, step in zip(parts, steps, strict=True):
            strategy = part.limit.strategy
            if 0 < strategy.limit < step.cost and not part.limit.shadow:
                reject(
                    f"a cost of {step.cost} can never be admitted by {part.name!r}, {strategy!r}: "
                    f"ask for at most {strategy.limit} at once"
                )
        return ", ".join([step.key for step in steps])


def _declared(limits: Any) -> dict[str, Limit]:
    if not isinstance(limits, Mapping) or not limits:
        reject(
            "limits must be a mapping of names to limits, such as {'user': '100/minute'}, not "
            f"{shown(limits)}"
        )
    for name in limits:
        if not isinstance(name, str) or not re.fullmatch(_NAME, name):
            reject(
                "the name of a limit consists of letters, digits, '_', '.' and '-', at most 64, "
                f"not {shown(name)}"
            )
    return {
        name: limit if isinstance(limit, Limit) else Limit(limit) for name, limit in limits.items()
    }


def _refuse_store(store: Store, prefix: str) -> None:
    reject(
        f"{store!r} cannot decide all keys under the prefix {prefix!r} in one step; leave "
        "require_atomic out and what is charged is given back when a later limit denies, use "
        "another store, or in a Redis Cluster a prefix with a hash tag, such as '{api}'"
    )


def _combined(forecasts: list[Forecast], now: int) -> Forecast:
    """What fits into all of them: as much as into the tightest."""
    if not forecasts:
        return Forecast(MAX_SAFE, now, now)
    fits = min(forecast.spendable_now for forecast in forecasts)
    tightest = [forecast for forecast in forecasts if forecast.spendable_now == fits]
    return Forecast(
        fits,
        max(forecast.next_replenish_at for forecast in tightest),
        max(forecast.full_at for forecast in forecasts),
    )
