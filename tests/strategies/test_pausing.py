"""Pauses: nothing is admitted before they end, whatever comes back meanwhile."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import (
    Strategy,
    gcra,
    token_bucket,
)
from tests.strategies.keys import (
    NOW,
    Key,
    aged,
    costs,
    each,
    future,
    gaps,
    left_of,
    paced,
)


@each
@given(
    timeline=gaps,
    ahead=st.integers(1, 5_000),
    asked=st.lists(st.integers(-500, 4_999), min_size=1, max_size=8),
)
def test_nothing_is_admitted_before_a_pause_ends(
    strategy: Strategy, timeline: list[tuple[int, int]], ahead: int, asked: list[int]
) -> None:
    """Not even when the clock goes back meanwhile."""
    key, now = aged(strategy, timeline)
    until = now + ahead
    key.run("pause", now, until)

    for step in asked:
        at = min(now + step, until - 1)
        assert not key.run("check", at, 1).allowed


@each
@given(
    timeline=st.lists(st.tuples(st.integers(0, 150), costs, st.booleans()), max_size=10),
    ahead=st.integers(1, 5_000),
    again=st.none() | st.integers(1, 5_000),
    waits=st.lists(st.integers(0, 600), min_size=1, max_size=10),
)
def test_what_comes_back_during_a_pause_does_not_end_it(
    strategy: Strategy,
    timeline: list[tuple[int, int, bool]],
    ahead: int,
    again: int | None,
    waits: list[int],
) -> None:
    """Whatever was charged before it, and given back at whatever instant of it."""
    key, now, held = Key(strategy), NOW, []
    for gap, cost, gives_back in timeline:
        now += gap
        decision = key.run("check", now, cost)
        if decision.allowed and gives_back:
            held.append((cost, strategy.counted_at(decision, now)))
    until = now + ahead
    key.run("pause", now, until)
    if again is not None:
        key.run("pause", now, now + again)
        until = max(until, now + again)
    for wait, (cost, charged_at) in zip(waits, held, strict=False):
        now = min(now + wait, until - 1)
        assert 0 <= key.run("refund", now, cost, charged_at) <= cost
        assert not key.run("check", now, 1).allowed
    for at in (now, (now + until) // 2, until - 1):
        assert not key.run("check", at, 1).allowed


@paced
@given(
    bookings=st.lists(st.tuples(st.integers(0, 300), costs), min_size=1, max_size=6),
    again=st.booleans(),
    ahead=st.integers(1, 20_000),
    later=st.lists(costs, max_size=3),
)
def test_a_booking_that_is_cancelled_during_a_pause_does_not_end_it(
    strategy: Strategy,
    bookings: list[tuple[int, int]],
    again: bool,
    ahead: int,
    later: list[int],
) -> None:
    """Be it from before; those from during the pause come back, the last one first. Behind a
    booking from during it, `gcra` no longer knows of the pause."""
    key, now, booked = Key(strategy), NOW, []
    if again:
        key.run("pause", now, now + 5)
    for gap, cost in bookings:
        now += gap
        taken = key.run("book", now, cost, 10_000_000)
        booked.append((cost, now + taken.delay_ms))
    until = now + ahead
    key.run("pause", now, until)
    during = [(cost, now + key.run("book", now, cost, 10_000_000).delay_ms) for cost in later]

    assert all(starts_at >= until for _, starts_at in during)
    for cost, starts_at in reversed(during):
        # A bucket counts what it rounds down as missing.
        assert cost - 1 <= key.run("refund", now, cost, starts_at) <= cost
    for cost, starts_at in reversed([] if during else booked):
        key.run("refund", now, cost, starts_at)
    for at in range(now, until, max(1, ahead // 20)):
        assert not key.run("check", at, 1).allowed
    assert not key.run("check", until - 1, 1).allowed


@paced
def test_a_clock_that_goes_back_does_not_end_a_pause(strategy: Strategy) -> None:
    key = Key(strategy)
    assert key.run("check", NOW, 3).allowed
    key.run("pause", NOW, NOW + 3_000)
    key.run("refund", NOW - 1, 3, NOW)
    assert not key.run("check", NOW, 1).allowed
    assert not key.run("check", NOW + 2_999, 1).allowed


@each
def test_after_a_pause_service_goes_on(strategy: Strategy) -> None:
    """Within a window, or the time that one unit takes."""
    key = Key(strategy)
    key.run("pause", NOW, NOW + 3_000)
    denied = key.run("check", NOW + 10, 1)
    window_ms = strategy.window_ms or 1

    # A sliding window only ever looks to the end of its tick.
    least = 1 if strategy.name == "sliding_window" else 2_990
    assert least <= denied.retry_after_ms <= 2_990 + window_ms
    assert key.run("check", NOW + 3_000 + window_ms, 1).allowed


@paced
@given(timeline=gaps, owed=st.integers(0, 10), ahead=st.integers(1, 200_000))
def test_a_pause_holds_no_longer_than_it_has_to(
    strategy: Strategy, timeline: list[tuple[int, int]], owed: int, ahead: int
) -> None:
    """What is spent or owed before it is earned back during it, as without one."""
    key, now = aged(strategy, timeline)
    if owed:
        key.run("charge", now, owed)
    until = now + ahead
    free_at = max(until, now + strategy.peek(key.at(now), now).retry_after_ms)
    key.run("pause", now, until)

    assert not key.run("check", until - 1, 1).allowed
    # A bucket has its first token a millisecond after it.
    assert key.run("check", free_at + 1, 1).allowed


@each
@given(
    timeline=gaps,
    ahead=st.integers(1, 2_000),
    after=st.integers(0, 3_000),
    cost=costs,
    later=st.integers(0, 50),
)
def test_after_a_pause_what_was_charged_comes_back(
    strategy: Strategy,
    timeline: list[tuple[int, int]],
    ahead: int,
    after: int,
    cost: int,
    later: int,
) -> None:
    """As if there had been none."""
    key, now = aged(strategy, timeline)
    key.run("pause", now, now + ahead)
    now += ahead + after
    cost = min(cost, strategy.limit)
    while retry := strategy.check(key.at(now), now, cost).result.retry_after_ms:
        now += retry
    before = future(key, now)
    charged = key.run("check", now, cost)
    charged_at = strategy.counted_at(charged, now)

    assert key.run("refund", now, cost, charged_at) == cost
    assert future(key, now) == before
    assert key.run("check", now, cost).allowed
    if now + later < charged.reset_at and strategy.window_kind:
        assert key.run("refund", now + later, cost, charged_at) == cost


@pytest.mark.parametrize("strategy", [gcra(10, 1_000, burst=1), token_bucket(1, 10)], ids=repr)
def test_after_a_pause_callers_that_queue_get_their_units_back(strategy: Strategy) -> None:
    """A queue of bookings that never ends, each of which uses half of what it booked, makes as many
    requests after a pause as before it."""

    def made(paused: bool) -> int:
        key, now, starts, begun = Key(strategy), NOW, [], 0
        while now < NOW + 30_000:
            if paused and begun == 20:
                key.run("pause", now, now + 100)
                paused = False
            while len(starts) < 5:
                starts.append(now + key.run("book", now, 2, 10_000_000).delay_ms)
            now = max(now, starts[0])
            key.run("refund", now, 1, starts.pop(0))
            begun += 1
        return begun

    assert made(paused=True) >= made(paused=False) - 5


@each
@given(timeline=gaps, ahead=st.integers(-1_000, 2_000))
def test_a_pause_never_makes_a_key_richer(
    strategy: Strategy, timeline: list[tuple[int, int]], ahead: int
) -> None:
    key, now = aged(strategy, timeline)
    before = [left_of(key, now + step) for step in (0, 100, 900, 2_500)]
    key.run("pause", now, now + ahead)
    after = [left_of(key, now + step) for step in (0, 100, 900, 2_500)]

    assert all(late <= early for late, early in zip(after, before, strict=True))
