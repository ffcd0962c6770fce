"""Smaller scenarios that break the same law: delta debugging over calls, then over their fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from .scenarios import Call, Scenario

MOST_RUNS = 600


def shrink(scenario: Scenario, breaks: Callable[[Scenario], bool]) -> Scenario:
    """The smallest scenario found for which `breaks` is still true."""
    runs = 0

    def fails(candidate: Scenario) -> bool:
        nonlocal runs
        runs += 1
        return runs <= MOST_RUNS and breaks(candidate)

    size = max(1, len(scenario.calls) // 2)
    while size:
        scenario = _without_calls(scenario, size, fails)
        size //= 2
    for smaller in (_without_limits, _with_plainer_calls):
        scenario = smaller(scenario, fails)
    return _without_calls(scenario, 1, fails)


def _without_calls(scenario: Scenario, size: int, fails: Callable[[Scenario], bool]) -> Scenario:
    """Leave out runs of `size` calls, from the end, as far as it still fails. Their gaps stay."""
    place = len(scenario.calls)
    while place > 0:
        start = max(0, place - size)
        gap = sum(call.gap_ms for call in scenario.calls[start:place])
        rest = list(scenario.calls[place:])
        shifted = [replace(rest[0], gap_ms=rest[0].gap_ms + gap), *rest[1:]] if rest else []
        for tail in (rest, shifted):
            candidate = scenario.with_calls([*scenario.calls[:start], *tail])
            if fails(candidate):
                scenario = candidate
                break
        place = start
    return scenario


def _without_limits(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    for place in reversed(range(len(scenario.limits))):
        if len(scenario.limits) == 1:
            break
        limits = (*scenario.limits[:place], *scenario.limits[place + 1 :])

        def trimmed(call: Call, place: int = place) -> Call:
            costs = call.costs
            if costs is None:
                return call
            return replace(call, costs=(*costs[:place], *costs[place + 1 :]))

        candidate = replace(scenario, limits=limits, calls=tuple(map(trimmed, scenario.calls)))
        if fails(candidate):
            scenario = candidate
    return scenario


def _with_plainer_calls(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    for place in range(len(scenario.calls)):
        for call in _plainer(scenario.calls[place]):
            calls = (*scenario.calls[:place], call, *scenario.calls[place + 1 :])
            if fails(scenario.with_calls(calls)):
                scenario = scenario.with_calls(calls)
    return scenario


def _plainer(call: Call) -> Iterator[Call]:
    """The same call with all fields at their defaults, then with one of them."""
    defaults: dict[str, Any] = {field.name: field.default for field in fields(Call)}
    defaults.pop("verb")
    yield Call(call.verb)
    for name, default in defaults.items():
        if getattr(call, name) != default:
            changed: Call = replace(call, **{name: default})
            yield changed
