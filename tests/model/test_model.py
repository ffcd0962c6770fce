"""Random scenarios, on every way to ask and on every store; `python -m tests.model` has more."""

from __future__ import annotations

import pytest

from tests.support.effort import count
from tests.support.variables import figure

from .drawing import DRAWN
from .stores import SERVED
from .trying import explain, find

FIRST = figure("SEED", 0)

# How many scenarios, and how many in a long run.
IN_PROCESS = {
    "plain": (250, 20_000),
    "limiter": (300, 20_000),
    "changed": (200, 10_000),
    "two_tier": (200, 10_000),
    "limits": (180, 10_000),
    "service": (50, 3_000),
    "http": (6, 500),
}
ELSEWHERE = {
    "limiter": (12, 1_000),
    "changed": (8, 600),
    "two_tier": (8, 400),
    "limits": (8, 600),
    "service": (4, 300),
}


@pytest.mark.parametrize("kind", IN_PROCESS)
def test_random_scenarios_follow_the_contract(kind: str) -> None:
    """In process, on the compiled path where it is on."""
    holds(kind, "memory", count(*IN_PROCESS[kind]))


@pytest.mark.parametrize("kind", ELSEWHERE)
@pytest.mark.parametrize("store", ["interpreted", "cas", "dict", *SERVED])
def test_random_scenarios_have_the_same_answers_on_every_store(store: str, kind: str) -> None:
    """They follow the contract there, too."""
    if (store, kind) == ("dict", "service"):
        pytest.skip("a service needs a store with async calls")
    if (store, kind) == ("valkey", "changed"):
        pytest.skip("the states of a plain limiter in Redis are raw, and hold no figures")
    holds(kind, store, count(*ELSEWHERE[kind]), twin="memory")


def holds(kind: str, store: str, scenarios: int, twin: str = "") -> None:
    found = find(DRAWN[kind], store, range(FIRST, FIRST + scenarios), twin)
    if found is not None:
        seed, broken = found
        pytest.fail(explain(kind, store, seed, broken, twin), pytrace=False)
