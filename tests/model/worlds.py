"""Worlds: the real API, asked by the calls of a scenario.

A world makes each call and returns an `Answer`: whatever it was asked by, the result in the same
fields. A limiter of one limit has a single decision, under the empty name. Around every call that
may change something the world also peeks, before it and after it, at the same instant (`look`):
peeks never write, so they change nothing, and many laws need only compare the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from penstock import (
    Charge,
    Decision,
    Forecast,
    Limits,
    ManualClock,
    PenstockError,
    Store,
    Verdict,
    leasing,
    rate_limit,
)
from penstock import Limit as RealLimit

from .drawing import pausable
from .scenarios import Call, Limit, Scenario


@cache
def loop() -> asyncio.AbstractEventLoop:
    """The event loop of all scenarios: stores keep their connections on it."""
    return asyncio.new_event_loop()


@dataclass(frozen=True)
class Answer:
    """The result of a call. Fields that it does not have are None or empty."""

    allowed: bool | None = None
    limits: Mapping[str, Decision] = field(default_factory=dict)
    decision: Decision | None = None
    """That of the binding limit."""
    binding: str = ""
    violated: tuple[str, ...] = ()
    shadowed: tuple[str, ...] = ()
    starts_at: int | None = None
    done: bool | None = None
    """What settle, cancel and renew returned."""
    forecast: Forecast | None = None
    charge: int | None = None
    """The number of the charge that was made, or that the call is about."""
    error: str = ""
    """The code and the text of an error."""
    each: tuple[Decision, ...] = ()
    """The decisions of `check_many`."""


@dataclass
class Event:
    """A call, when it was made, what it returned, and what peeks showed around it."""

    call: Call
    now: int
    answer: Answer
    before: Mapping[str, Decision]
    after: Mapping[str, Decision]
    base: int = 0
    """The plan whose figures were the policy's own."""
    plans: Mapping[int, Mapping[str, Decision]] = field(default_factory=dict)
    """What peeks show under each plan, after the call."""
    ahead: Mapping[int, Mapping[str, Decision]] = field(default_factory=dict)
    """What peeks show at the instants that a forecast names, and just before them."""


Transcript = list[Event]

SHOWN = (
    "check",
    "many",
    "forecast",
    "reserve",
    "settle",
    "cancel",
    "renew",
    "pause",
    "reset",
    "reload",
)


def of_verdict(verdict: Verdict, **more: Any) -> Answer:
    return Answer(
        allowed=verdict.allowed,
        limits=verdict.limits,
        decision=verdict.decision,
        binding=verdict.binding,
        violated=verdict.violated,
        shadowed=verdict.shadowed,
        **more,
    )


def of_decision(decision: Decision, **more: Any) -> Answer:
    denied = ("",) if not decision.allowed else ()
    return Answer(
        allowed=decision.allowed,
        limits={"": decision},
        decision=decision,
        violated=denied,
        **more,
    )


class World:
    """Makes the calls of a scenario on a store."""

    def __init__(self, scenario: Scenario, store: Store, prefix: str) -> None:
        self.scenario = scenario
        self.store = store
        self.prefix = prefix
        self.clock = ManualClock(scenario.start)
        self.base = 0
        self.charges: list[Any] = []
        self.denied: Event | None = None
        """The last denial, which `obey` waits for."""
        self.build()

    def build(self) -> None:
        """Make the limiters."""
        raise NotImplementedError

    def close(self) -> None: ...

    def run(self) -> Transcript:
        events: Transcript = []
        for call in self.scenario.calls:
            event = self.event(call)
            if event is not None:
                events.append(event)
        return events

    def event(self, call: Call) -> Event | None:
        """Make one call; None if it has no meaning here, such as to settle where nothing was
        reserved."""
        self.clock.set(max(1, self.clock.now() + call.gap_ms))
        if call.verb == "obey":
            if self.denied is None:
                return None
            call = self._obeyed(self.denied)
        if call.verb in ("settle", "cancel", "renew") and not self.charges:
            return None
        shown = call.verb in SHOWN
        now, base = self.clock.now(), self.base
        before = self._look(call) if shown else {}
        try:
            answer = getattr(self, call.verb)(call)
        except PenstockError as error:
            answer = Answer(error=f"{error.code}: {error}")
        after = self._look(call) if shown else {}
        event = Event(call, now, answer, before, after, base)
        if answer.forecast is not None and self.scenario.mode != "leased":
            event.ahead = self._ahead(call, answer.forecast)
        if answer.allowed is False:
            self.denied = event
        return event

    def _obeyed(self, denied: Event) -> Call:
        """The same request, after the wait that its denial asked for."""
        decision = denied.answer.decision
        assert decision is not None
        retry_at = denied.now + decision.retry_after_ms
        if retry_at - self.clock.now() < 10**9:
            self.clock.set(max(self.clock.now(), retry_at))
        return replace(denied.call, gap_ms=0)

    def _look(self, call: Call) -> Mapping[str, Decision]:
        about = call
        if call.verb in ("settle", "cancel", "renew"):
            about = self.charges[self._number(call)][1]
        try:
            return self.look(
                replace(about, absent=False) if call.verb in ("pause", "reset") else about
            )
        except PenstockError as error:
            return {"error": Decision(False, 0, 0, 0, hash(str(error)) % 1000)}

    def _ahead(self, call: Call, told: Forecast) -> Mapping[int, Mapping[str, Decision]]:
        """Peeks at later instants. They write nothing, so the clock may go back afterwards."""
        now, shown = self.clock.now(), {}
        for at in (told.next_replenish_at - 1, told.next_replenish_at, told.full_at):
            if now <= at < now + 10**10:
                self.clock.set(at)
                shown[at] = self._look(call)
        self.clock.set(now)
        return shown

    def _number(self, call: Call) -> int:
        return max(0, len(self.charges) - 1 - call.charge)

    def _charged(self, call: Call) -> tuple[int, Any]:
        number = self._number(call)
        return number, self.charges[number][0]

    def keep(self, charge: Any, call: Call) -> int | None:
        """Number a charge that was allowed."""
        if not charge:
            return None
        self.charges.append((charge, call))
        return len(self.charges) - 1

    def look(self, call: Call) -> Mapping[str, Decision]:
        """What `peek` shows for the keys of a call."""
        raise NotImplementedError

    def ask(self, owner: Any, name: str, call: Call, *args: Any, **named: Any) -> Any:
        """Call a method, or its awaitable twin if the call says so and the store has async
        calls."""
        if call.awaits and type(self.store).aapply is not Store.aapply:
            return loop().run_until_complete(getattr(owner, f"a{name}")(*args, **named))
        return getattr(owner, name)(*args, **named)

    # The calls on charges are the same on every limiter of the library.

    def settle(self, call: Call) -> Answer:
        number, charge = self._charged(call)
        return Answer(done=self.ask(charge, "settle", call, call.amount), charge=number)

    def cancel(self, call: Call) -> Answer:
        number, charge = self._charged(call)
        return Answer(done=self.ask(charge, "cancel", call), charge=number)

    def renew(self, call: Call) -> Answer:
        number, charge = self._charged(call)
        return Answer(done=self.ask(charge, "renew", call), charge=number)

    def of_charge(self, charge: Charge, call: Call) -> Answer:
        more = {"starts_at": charge.starts_at, "charge": self.keep(charge, call)}
        if charge.verdict is not None:
            return of_verdict(charge.verdict, **more)
        return of_decision(charge.decision, **more)


class LimiterWorld(World):
    """`rate_limit`: one limit. A reload closes the limiter and makes one with other figures."""

    limiter: Any = None

    def build(self) -> None:
        if self.limiter is not None:
            self.limiter.close()
        figures = self.scenario.limits[0].figures(self.base)
        assert figures is not None
        self.limiter = self.make(figures.strategy())

    def make(self, strategy: Any) -> Any:
        return rate_limit(strategy, store=self.store, clock=self.clock, prefix=self.prefix)

    def of(self, call: Call) -> Any:
        return self.limiter

    def look(self, call: Call) -> Mapping[str, Decision]:
        return {"": self.of(call).peek(_key(call))}

    def asked(self, name: str, call: Call, *args: Any, **named: Any) -> Any:
        return self.ask(self.of(call), name, call, *args, **named)

    def check(self, call: Call) -> Answer:
        return of_decision(self.asked("check", call, _key(call), call.cost))

    def many(self, call: Call) -> Answer:
        keys = [_key(call), _key(replace(call, key=call.key + 1)), _key(call)]
        return Answer(each=tuple(self.asked("check_many", call, keys, call.cost)))

    def peek(self, call: Call) -> Answer:
        return of_decision(self.asked("peek", call, _key(call)))

    def forecast(self, call: Call) -> Answer:
        return Answer(forecast=self.asked("forecast", call, _key(call), call.cost))

    def reserve(self, call: Call) -> Answer:
        wait = call.wait_ms
        charge = self.asked("reserve", call, _key(call), call.cost, max_wait_ms=wait)
        return self.of_charge(charge, call)

    def pause(self, call: Call) -> Answer:
        self.asked("pause", call, _key(call), self.clock.now() + call.amount)
        return Answer()

    def reset(self, call: Call) -> Answer:
        self.asked("reset", call, _key(call))
        return Answer()

    def reload(self, call: Call) -> Answer:
        self.base = call.plan
        self.build()
        return Answer()


class LimitsWorld(World):
    """`Limits`: several limits as one decision. `without` leaves out the shadows."""

    def __init__(self, scenario: Scenario, store: Store, prefix: str) -> None:
        self.declared = scenario.limits
        super().__init__(scenario, store, prefix)

    def build(self) -> None:
        made = {limit.name: _real(limit) for limit in self.declared}
        self.limits = Limits(made, store=self.store, clock=self.clock, prefix=self.prefix)

    def keys(self, call: Call, *, named: bool = False) -> dict[str, Any]:
        """The keys of a call; of a pause or reset, with those of keyless limits."""
        keys: dict[str, Any] = {}
        for limit in self.declared:
            if limit.keyless:
                if named:
                    keys[limit.name] = None
            elif not (limit.optional and call.absent):
                keys[limit.name] = _key(call)
        return keys

    def cost(self, call: Call) -> Any:
        if call.costs is None:
            return call.cost
        keys, costs = self.keys(call), {}
        for limit, cost in zip(self.scenario.limits, call.costs, strict=True):
            if limit in self.declared and (limit.keyless or limit.name in keys):
                costs[limit.name] = cost
        return costs

    def look(self, call: Call) -> Mapping[str, Decision]:
        return self.limits.peek(self.keys(call)).limits

    def asked(self, name: str, call: Call, *args: Any, **named: Any) -> Any:
        return self.ask(self.limits, name, call, *args, **named)

    def check(self, call: Call) -> Answer:
        return of_verdict(self.asked("check", call, self.keys(call), self.cost(call)))

    many = check

    def peek(self, call: Call) -> Answer:
        return of_verdict(self.asked("peek", call, self.keys(call)))

    def forecast(self, call: Call) -> Answer:
        return Answer(forecast=self.asked("forecast", call, self.keys(call), call.cost))

    def reserve(self, call: Call) -> Answer:
        keys, cost = self.keys(call), self.cost(call)
        charge = self.asked("reserve", call, keys, cost, max_wait_ms=call.wait_ms)
        return self.of_charge(charge, call)

    def pause(self, call: Call) -> Answer:
        keys = self.keys(call, named=True)
        held = {limit.name for limit in self.declared if not pausable(limit)}
        keys = {name: key for name, key in keys.items() if name not in held}
        self.asked("pause", call, keys, self.clock.now() + call.amount)
        return Answer()

    def reset(self, call: Call) -> Answer:
        self.asked("reset", call, self.keys(call, named=True))
        return Answer()


class TwoTierWorld(LimiterWorld):
    """`two_tier`: several nodes on one store."""

    def build(self) -> None:
        figures = self.scenario.limits[0].figures(0)
        assert figures is not None
        told = self.scenario
        windowed = not figures.paced
        self.nodes = [
            leasing.two_tier(
                figures.strategy(),
                self.store,
                told.mode,  # type: ignore[arg-type]
                told.batch,
                window_coupled=told.coupled and windowed,
                clock=self.clock,
                prefix=self.prefix,
            )
            for _ in range(told.nodes)
        ]

    def of(self, call: Call) -> Any:
        return self.nodes[call.node % len(self.nodes)]

    def close(self) -> None:
        for node in self.nodes:
            node.close()


def _real(limit: Limit) -> RealLimit:
    figures = limit.figures(0)
    assert figures is not None
    return RealLimit(
        figures.strategy(), shadow=limit.shadow, optional=limit.optional, keyless=limit.keyless
    )


def _key(call: Call) -> str:
    return f"k{call.key % 2}"
