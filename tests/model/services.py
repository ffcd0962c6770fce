"""Worlds of the service: a policy with plans and overrides, by the core of the service.

The limits of a scenario become one policy. Those that are optional are counted by the attribute
`other`, so that a call can leave them out; the others by `user`. The figures of the second plan and
those after it are plans of the policy, those of the first are its own, until a reload puts those of
another plan there.
"""

from __future__ import annotations

import json
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from penstock import Decision
from penstock.config import PolicyFile, parse_policies
from penstock.service import build_service
from penstock.service._judging import Judgement

from .drawing import pausable
from .scenarios import Call, Limit, Scenario
from .worlds import Answer, Event, World, loop, of_verdict

R = TypeVar("R")


def policy_text(scenario: Scenario, base: int, prefix: str) -> str:
    """The policy file, while the figures of plan `base` are the policy's own."""
    limits: dict[str, Any] = {}
    for limit in scenario.limits:
        told = dict(limit.own(base).policy())
        if not limit.keyless:
            told["by"] = "other" if limit.optional else "user"
        told |= {name: True for name in ("shadow", "optional") if getattr(limit, name)}
        limits[limit.name] = told
    plans: dict[str, Any] = {"by": "plan"}
    for plan in range(1, scenario.plans):
        plans[f"p{plan}"] = {limit.name: _plan(limit, plan) for limit in scenario.limits}
    policy: dict[str, Any] = {"limits": limits, "plans": plans}
    if scenario.override is not None:
        overridden = {
            limit.name: {"k1": _plan(limit, scenario.override)}
            for limit in scenario.limits
            if not limit.keyless
        }
        policy |= {"overrides": overridden} if overridden else {}
    file = {"version": 1, "defaults": {"prefix": prefix}, "limiters": {"p": policy}}
    return json.dumps(file)  # which is YAML, too


def _plan(limit: Limit, plan: int) -> Any:
    figures = limit.figures(plan)
    return "unlimited" if figures is None else figures.plan()


class ServiceWorld(World):
    """The core of the service, called as its servers call it."""

    def build(self) -> None:
        file = self.file()
        self.nodes = [
            build_service(file, store=self.store, clock=self.clock)
            for _ in range(self.scenario.nodes)
        ]

    def of(self, call: Call) -> Any:
        """The node that is asked."""
        return self.nodes[call.node % len(self.nodes)]

    def file(self) -> PolicyFile:
        return parse_policies(policy_text(self.scenario, self.base, self.prefix), "p.yaml")

    def wait(self, call: Coroutine[Any, Any, R]) -> R:
        return loop().run_until_complete(call)

    def at_once(self, call: Coroutine[Any, Any, R]) -> R:
        """As `wait`; on a store in process nothing is awaited, and no event loop is needed."""
        if not self.store.answers_at_once:
            return self.wait(call)
        try:
            call.send(None)
        except StopIteration as ended:
            result: R = ended.value
            return result
        raise AssertionError("a call on a store in process has waited")

    def attributes(self, call: Call) -> dict[str, Any]:
        told = {}
        key = f"k{call.key % 2}"
        if any(not limit.keyless and not limit.optional for limit in self.scenario.limits):
            told["user"] = key
        if not call.absent and any(limit.optional for limit in self.scenario.limits):
            told["other"] = key
        if call.plan:
            told["plan"] = f"p{call.plan}"
        return told

    def costs(self, call: Call) -> dict[str, Any]:
        """The arguments that say what a request costs."""
        if call.costs is None:
            return {"cost": call.cost}
        costs = {}
        for limit, cost in zip(self.scenario.limits, call.costs, strict=True):
            if not (limit.optional and call.absent):
                costs[limit.name] = cost
        return {"costs": costs}

    def event(self, call: Call) -> Event | None:
        event = super().event(call)
        if event is not None and event.before:
            event.plans = self.plans(event.call)
        return event

    def plans(self, call: Call) -> dict[int, Mapping[str, Decision]]:
        """Peeks under each plan."""
        if self.scenario.override is not None and call.key == 1:
            return {}
        each = range(1, self.scenario.plans)
        return {plan: self.look(replace(call, plan=plan)) for plan in each}

    def look(self, call: Call) -> Mapping[str, Decision]:
        return self.peek(call).limits

    def peek(self, call: Call) -> Answer:
        judgement = self.at_once(self.of(call).peek_all("p", self.attributes(call)))
        return of_verdict(judgement.verdict)

    def check(self, call: Call) -> Answer:
        asked = self.of(call).judge("p", self.attributes(call), **self.costs(call))
        judgement = asked if isinstance(asked, Judgement) else self.wait(asked())
        return of_verdict(judgement.verdict)

    many = check

    def forecast(self, call: Call) -> Answer:
        told = self.wait(self.of(call).forecast_all("p", self.attributes(call), call.cost))
        return Answer(forecast=told)

    def reserve(self, call: Call) -> Answer:
        made = self.wait(
            self.of(call).reserve(
                "p",
                attributes=self.attributes(call),
                max_wait_ms=call.wait_ms,
                **self.costs(call),
            )
        )
        number = self.keep(made.charge_id, call)
        return of_verdict(made.answer.verdict, starts_at=made.starts_at, charge=number)

    def settle(self, call: Call) -> Answer:
        number, charge_id = self._charged(call)
        return Answer(done=self.wait(self.of(call).settle(charge_id, call.amount)), charge=number)

    def cancel(self, call: Call) -> Answer:
        number, charge_id = self._charged(call)
        return Answer(done=self.wait(self.of(call).cancel(charge_id)), charge=number)

    def renew(self, call: Call) -> Answer:
        number, charge_id = self._charged(call)
        return Answer(done=self.wait(self.of(call).renew(charge_id)), charge=number)

    def pause(self, call: Call) -> Answer:
        until = self.clock.now() + call.amount
        self.wait(
            self.of(call).pause(
                "p", until, attributes=self.attributes(call), limits=self.named(held=False)
            )
        )
        return Answer()

    def reset(self, call: Call) -> Answer:
        attributes = self.attributes(call)
        self.wait(self.of(call).reset("p", attributes=attributes, limits=self.named(held=True)))
        return Answer()

    def named(self, *, held: bool) -> list[str]:
        """All limits by name, keyless ones included; without `held`, those that can be paused."""
        return [limit.name for limit in self.scenario.limits if held or pausable(limit)]

    def _look(self, call: Call) -> Mapping[str, Decision]:
        # A reload changes the figures of requests without a plan.
        return super()._look(replace(call, plan=0) if call.verb == "reload" else call)

    def reload(self, call: Call) -> Answer:
        self.base = call.plan
        file = self.file()
        for node in self.nodes:
            node.apply(file)
        return Answer()
