"""Units that time has replenished do not come back by a refund as well."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import ManualClock, MemoryStore, Store, Strategy, gcra, rate_limit, token_bucket
from proofs.refunds import CASES, REFUTED, Case, Explored, explore, table
from tests.conformance.broken_stores import DictStore
from tests.strategies.keys import NOW, PACED, Key, costs, left_of, paced

DOCS = Path(__file__).parents[2] / "proofs" / "README.md"


@pytest.fixture(scope="module")
def explored() -> dict[Case, Explored]:
    return {case: explore(case) for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_the_bound_of_refunds_is_reached_and_never_exceeded(
    case: Case, explored: dict[Case, Explored]
) -> None:
    result = explored[case]
    assert result.holds, (result.most, result.way)


def test_refunds_without_a_limit_exceed_the_bound() -> None:
    result = explore(REFUTED)
    assert result.stopped
    assert "time passes" in result.way


def test_the_documented_bounds_of_refunds_are_those_of_the_run(
    explored: dict[Case, Explored],
) -> None:
    """Run `python -m proofs.refunds` and paste its table when this fails."""
    block = re.search(r"<!-- refunds -->\n(.*?)<!-- end -->", DOCS.read_text(), re.DOTALL)
    assert block is not None
    assert block[1] == table([explored[case] for case in CASES])


@pytest.mark.parametrize("strategy", [gcra(10, 1_000), token_bucket(10, 10.0)], ids=repr)
@pytest.mark.parametrize("store", [MemoryStore(), DictStore()], ids=["memory", "in order"])
def test_old_reservations_that_are_cancelled_together_free_nothing(
    strategy: Strategy, store: Store
) -> None:
    clock = ManualClock(NOW)
    limiter = rate_limit(strategy, store=store, clock=clock, prefix=repr(strategy))
    charges = []
    for _ in range(100):
        charges.append(limiter.reserve("k", 10))
        clock.advance(1_000)
    assert all(charges)

    used = 0
    for charge in charges:
        while limiter.check("k"):
            used += 1
        charge.cancel()
    while limiter.check("k"):
        used += 1
    assert used == 10


@paced
@given(
    timeline=st.lists(st.tuples(st.integers(0, 700), costs), max_size=12),
    cost=costs,
    later=st.integers(0, 2_500),
    others=costs,
)
def test_a_refund_returns_at_most_what_is_replenished_until_the_reset_of_the_charge(
    strategy: Strategy, timeline: list[tuple[int, int]], cost: int, later: int, others: int
) -> None:
    key, now = Key(strategy), NOW
    for gap, units in timeline:
        now += gap
        key.run("check", now, units)
    charged = key.run("check", now, min(cost, strategy.limit))
    if not charged.allowed:
        return
    counted_at = strategy.counted_at(charged, now)
    now += later
    key.run("check", now, others)
    before = left_of(key, now)
    units = key.run("refund", now, cost, counted_at)

    per_ms = strategy.limit / strategy.ttl_ms
    replenished = max(0, charged.reset_at - now) * per_ms
    # Instants are rounded to a millisecond, and a unit that is replenished in part comes back.
    assert units <= replenished + 2 * per_ms + 1
    assert left_of(key, now) - before <= units


@paced
@given(
    timeline=st.lists(st.tuples(st.integers(0, 700), costs), max_size=12),
    cost=costs,
    later=st.integers(0, 2_500),
)
def test_a_charge_that_is_not_yet_replenished_comes_back_whole(
    strategy: Strategy, timeline: list[tuple[int, int]], cost: int, later: int
) -> None:
    """As long as its own units are not being replenished, a key is left as if it had never been
    charged."""
    key, without, now = Key(strategy), Key(strategy), NOW
    for gap, units in timeline:
        now += gap
        key.run("check", now, units)
        without.run("check", now, units)
    cost = min(cost, strategy.limit)
    charged = key.run("check", now, cost)
    if not charged.allowed:
        return
    counted_at = strategy.counted_at(charged, now)
    now += later
    takes = cost * strategy.ttl_ms / strategy.limit
    if charged.reset_at - now >= takes:
        assert key.run("refund", now, cost, counted_at) == cost
        assert left_of(key, now) == left_of(without, now)


@pytest.mark.parametrize("strategy", PACED, ids=repr)
def test_a_key_is_full_again_after_its_only_charge_is_cancelled(strategy: Strategy) -> None:
    for cost in range(1, strategy.limit + 1):
        for later in (0, 1, 40, 300, 1_000):
            key = Key(strategy)
            charged = key.run("check", NOW, cost)
            counted_at = strategy.counted_at(charged, NOW)
            key.run("refund", NOW + later, cost, counted_at)
            assert left_of(key, NOW + later) == strategy.limit
