"""Forecasts and peeks are in range, and true: compared with a walk along the clock."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import (
    Limits,
    ManualClock,
    Strategy,
    fixed_window,
    gcra,
    rate_limit,
    sliding_window,
    sliding_window_log,
    slots,
    token_bucket,
    unlimited,
)
from tests.strategies.keys import NOW, STRATEGIES, Key, costs

# Fast enough to be walked along, a millisecond at a time.
FAST: list[Strategy] = [
    gcra(7, 300),
    gcra(10, 900, burst=3),
    token_bucket(5, 23.0),
    fixed_window(4, 300),
    fixed_window(4, 300, anchor="first"),
    sliding_window(6, 300, buckets=1),
    sliding_window(6, 300, buckets=4),
    sliding_window_log(5, 300),
]
events = st.lists(
    st.tuples(
        st.sampled_from(["check", "check", "charge", "refund", "pause"]),
        st.integers(-90, 210),
        st.integers(1, 9),
    ),
    max_size=9,
)


def lived(strategy: Strategy, timeline: list[tuple[str, int, int]]) -> tuple[Key, int]:
    """A key after checks, settlements, refunds and pauses, by a clock that goes back at times."""
    key, now = Key(strategy), NOW
    charges: list[tuple[int, int]] = []
    for name, gap, number in timeline:
        now += gap
        if name == "pause":
            key.run("pause", now, now + 40 * number)
        elif name == "refund":
            if charges:
                key.run("refund", now, *charges.pop(number % len(charges)))
        else:
            decision = key.run(name, now, number)
            if decision.allowed:
                charges.append((number, strategy.counted_at(decision, now)))
    return key, now


def fitting(key: Key, now: int, cost: int) -> int:
    """How many requests of a cost are admitted in a row at an instant."""
    state, count = key.at(now), 0
    while (outcome := key.strategy.check(state, now, cost)).result.allowed:
        state, count = outcome.state, count + 1
    return count


@pytest.mark.parametrize("strategy", FAST, ids=repr)
@given(timeline=events, cost=costs)
def test_a_forecast_agrees_with_a_walk_along_the_clock(
    strategy: Strategy, timeline: list[tuple[str, int, int]], cost: int
) -> None:
    key, now = lived(strategy, timeline)
    told = strategy.forecast(key.at(now), now, cost)
    units = fitting(key, now, 1)

    assert told.spendable_now == fitting(key, now, cost)
    assert now <= told.next_replenish_at <= told.full_at
    assert fitting(key, told.full_at, 1) == strategy.limit
    if units == strategy.limit:
        return
    at = now + 1
    while fitting(key, at, 1) <= units:
        at += 1
    assert told.next_replenish_at == at


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@given(timeline=events, cost=costs)
def test_peeks_and_forecasts_are_in_range(
    strategy: Strategy, timeline: list[tuple[str, int, int]], cost: int
) -> None:
    key, now = lived(strategy, timeline)
    peeked = strategy.peek(key.at(now), now)
    assert 0 <= peeked.remaining <= peeked.limit == strategy.limit
    assert (peeked.retry_after_ms == 0) == peeked.allowed == (peeked.remaining > 0)
    told = strategy.forecast(key.at(now), now, cost)
    assert 0 <= told.spendable_now <= strategy.limit // cost
    assert now <= told.next_replenish_at <= told.full_at


def test_a_look_at_no_limit_shows_no_more_than_the_limit() -> None:
    limits = Limits({"all": unlimited()}, clock=ManualClock(NOW))
    for decision in (limits.peek({"all": "k"}).decision, rate_limit(unlimited()).peek("k")):
        assert decision.allowed
        assert decision.remaining == decision.limit


def test_a_forecast_of_slots_is_true_where_fewer_are_allowed_than_are_held() -> None:
    wide, narrow = slots(5, 1_000), slots(2, 1_000)
    state: Any = None
    for number in range(5):
        state = wide.take(state, NOW + 10 * number, f"s{number}").state
    told = narrow.forecast(state, NOW + 100, 1)
    assert told.spendable_now == 0
    # Four of them have to expire before one is free.
    assert told.next_replenish_at == NOW + 30 + 1_000
    assert told.full_at == NOW + 40 + 1_000
    assert wide.forecast(state, NOW + 100, 1).next_replenish_at == NOW + 1_000


def test_a_forecast_is_quick_where_the_newest_tick_is_empty() -> None:
    strategy = sliding_window(5, 30 * 86_400_000)
    key = Key(strategy)
    key.run("check", NOW, 3)
    later = NOW + 9 * 86_400_000
    key.run("check", later, 1)
    assert key.run("refund", later, 1, later) == 1
    assert strategy.forecast(key.at(later), later, 1).full_at > later
