"""Several limits in memory: any mixture is decided as the oracle does, on both paths."""

from __future__ import annotations

from penstock import MemoryStore
from tests.stores import mixtures, several
from tests.stores.exactness import TwoLimits, assert_exact_from_tasks, assert_exact_from_threads
from tests.support.variables import figure

SEED = figure("SEED", 1)
REQUESTS = figure("REQUESTS", 1500)


def test_any_mixture_is_decided_as_the_oracle_does() -> None:
    """Of strategies, operations, costs, shadows, keys named twice and clocks that go back."""
    admitted, denied = mixtures.follow(MemoryStore(), mixtures.requests(SEED, REQUESTS))
    assert min(admitted, denied) > REQUESTS / 5


def test_any_steps_on_one_key_are_decided_as_the_oracle_does() -> None:
    mixtures.follow(MemoryStore(), mixtures.requests_of_one_key(SEED, REQUESTS))


def test_pauses_race_as_if_in_turn() -> None:
    several.assert_pauses_race_as_if_in_turn(MemoryStore(), rounds=20)


def test_callers_admit_exactly_the_tightest_limit() -> None:
    store = MemoryStore()
    assert_exact_from_threads(lambda: store, TwoLimits)
    assert_exact_from_tasks(lambda: store, TwoLimits)
