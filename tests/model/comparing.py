"""Laws that compare two runs: with and without shadows, on one store and on another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock import Decision

from .reference import Broken
from .running import run
from .scenarios import Call, Scenario
from .worlds import Answer, Event, Transcript


def without_shadows(scenario: Scenario) -> Scenario | None:
    """The same scenario with its enforced limits alone; None if there are none, or no shadows."""
    places = [place for place, limit in enumerate(scenario.limits) if not limit.shadow]
    if not places or len(places) == len(scenario.limits):
        return None

    def trimmed(call: Call) -> Call:
        costs = call.costs
        return replace(call, costs=None if costs is None else tuple(costs[p] for p in places))

    limits = tuple(scenario.limits[place] for place in places)
    if not any(each is not None and each.paced for limit in limits for each in limit.plans):
        # The booking would be refused.
        scenario = scenario.with_calls(replace(call, wait_ms=0) for call in scenario.calls)
    return replace(scenario, limits=limits, calls=tuple(map(trimmed, scenario.calls)))


def shadows_change_nothing(scenario: Scenario, events: Transcript) -> None:
    """Without its shadows, a scenario has the same answers."""
    plain = without_shadows(scenario)
    if plain is None or any(event.answer.error for event in events):
        return
    names = {limit.name for limit in plain.limits}
    alone = run(plain)
    for event, other in zip(events, alone, strict=False):
        if (event.answer.charge is None) != (other.answer.charge is None):
            # A charge of shadows alone: from here on, charges have other numbers.
            return
        if other.answer.error:
            # Without its shadows, the request has no limit that can be booked.
            return
        if scenario.kind in ("service", "http") and event.answer.done != other.answer.done:
            # A service keeps a charge as long as the longest of its limits counts.
            return
        mine, theirs = _enforced(event, names), _enforced(other, names)
        if mine != theirs:
            text = f"with    {mine!r}\n  without {theirs!r}"
            raise Broken("a shadow changes no answer", event, text)


def _enforced(event: Event, names: set[str]) -> dict[str, Any]:
    """What of an event must not depend on shadows."""
    answer = event.answer
    told: dict[str, Any] = {
        "now": event.now,
        "allowed": answer.allowed,
        "violated": answer.violated,
        "starts_at": answer.starts_at,
        "forecast": answer.forecast,
        "limits": _only(answer.limits, names),
        "before": _only(event.before, names),
        "after": _only(event.after, names),
    }
    if event.call.verb in ("check", "reserve", "peek") and told["limits"]:
        told |= {"binding": answer.binding, "decision": answer.decision}
    return told


def _only(looks: Mapping[str, Decision], names: set[str]) -> dict[str, Decision]:
    return {name: told for name, told in looks.items() if name in names}


def stores_agree(scenario: Scenario, events: Transcript, other: Transcript, name: str) -> None:
    """Every answer and every peek is the same on both stores."""
    for event, twin in zip(events, other, strict=True):
        mine, theirs = _whole(event), _whole(twin)
        if mine != theirs:
            differ = [field for field in mine if mine[field] != theirs[field]]
            text = "".join(
                f"\n  {field}: {mine[field]!r}\n  on {name}: {theirs[field]!r}" for field in differ
            )
            raise Broken("every store gives the same answers", event, text)


def _whole(event: Event) -> dict[str, Any]:
    answer: Answer = event.answer
    told = {name: value for name, value in vars(answer).items() if name != "error"}
    code = answer.error.partition(":")[0]
    return {"now": event.now, **told, "error": code, "before": event.before, "after": event.after}
