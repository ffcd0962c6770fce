"""The tester finds faults: each of these breaks a law within a short run."""

from __future__ import annotations

import pytest

from .drawing import limiter
from .mutants import MUTANTS, Mutant
from .reference import Broken
from .scenarios import Call, Scenario
from .shrinking import shrink
from .trying import find, tried

SCENARIOS = 400


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_deliberate_fault_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        mutant.apply(patched)
        found = find(lambda seed, _store: mutant.draw(seed), "", range(SCENARIOS))
    assert found is not None
    tried(mutant.draw(found[0]))  # without the fault, every law holds


def test_a_failing_scenario_is_shrunk_to_the_calls_that_break_the_law(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A charge that settles twice takes a reservation and two settlements."""
    mutant = next(each for each in MUTANTS if each.name == "a charge settles twice")
    mutant.apply(monkeypatch)
    found = find(lambda seed, _store: mutant.draw(seed), "", range(SCENARIOS))
    assert found is not None
    seed, broken = found

    def breaks(candidate: Scenario) -> bool:
        try:
            tried(candidate)
        except Broken as other:
            return other.law == broken.law
        return False

    small = shrink(mutant.draw(seed), breaks)
    assert len(small.calls) == 3
    assert small.calls[0].verb == "reserve"


def test_a_scenario_prints_as_the_python_that_makes_it() -> None:
    from . import figures, scenarios

    scenario = limiter(5)
    names = {**vars(figures), **vars(scenarios)}
    assert eval(scenario.script(), names) == scenario
    assert repr(Call("check", cost=2)) == "Call(verb='check', cost=2)"
