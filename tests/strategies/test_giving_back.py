"""Refunds, unconditional charges and bookings: the laws that every strategy keeps."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, inf, nextafter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import (
    Strategy,
    UnsupportedError,
    calendar_quota,
    fixed_window,
    gcra,
    sliding_window,
    sliding_window_log,
    token_bucket,
    unlimited,
)
from tests.strategies.keys import (
    NOW,
    PACED,
    STRATEGIES,
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
@given(timeline=gaps, cost=costs)
def test_a_refund_at_the_same_instant_undoes_a_charge(
    strategy: Strategy, timeline: list[tuple[int, int]], cost: int
) -> None:
    """It restores what the state means, now and at any time to come."""
    key, now = aged(strategy, timeline)
    cost = min(cost, strategy.limit)
    while retry := strategy.check(key.at(now), now, cost).result.retry_after_ms:
        now += retry
    before = future(key, now)
    assert key.run("check", now, cost).allowed

    assert key.run("refund", now, cost, now) == cost
    assert future(key, now) == before


# How long after the one before, how much, and whether and how much later it is given back.
charges = st.lists(
    st.tuples(st.integers(0, 700), costs, st.none() | st.integers(0, 900)), max_size=12
)


@each
@given(timeline=charges)
def test_what_was_given_back_is_worth_no_more_than_what_was_never_charged(
    strategy: Strategy, timeline: list[tuple[int, int, int | None]]
) -> None:
    """Whatever is given back, and whenever: a key is never richer than one without these charges,
    nor than a cold one."""
    key, without, now = Key(strategy), Key(strategy), NOW
    for gap, cost, later in timeline:
        now += gap
        units = cost - strategy.excess(key.at(now), now, cost)
        key.run("charge", now, cost)
        if later is None:
            without.run("charge", now, cost)
            continue
        charged_at, now = now, now + later
        assert 0 <= key.run("refund", now, units, charged_at) <= units
        for at in (now, now + 1, now + 150, now + 1_000):
            assert 0 <= left_of(key, at) <= left_of(without, at) <= strategy.limit


@each
@given(
    timeline=st.lists(st.tuples(st.integers(-300, 700), costs, st.booleans()), max_size=20),
    charged=st.integers(0, 19),
)
def test_no_refund_makes_a_key_richer_than_a_cold_one(
    strategy: Strategy, timeline: list[tuple[int, int, bool]], charged: int
) -> None:
    """Not even one of what was never charged, by a clock that goes back."""
    key, now, instants = Key(strategy), NOW, [NOW]
    for gap, cost, gives_back in timeline:
        now += gap
        if gives_back:
            key.run("refund", now, cost, instants[charged % len(instants)])
        else:
            key.run("charge", now, cost)
            instants.append(now)
        assert 0 <= left_of(key, now) <= strategy.limit


@each
@given(timeline=gaps, cost=costs)
def test_an_unconditional_charge_is_a_check_where_that_allows(
    strategy: Strategy, timeline: list[tuple[int, int]], cost: int
) -> None:
    key, now = aged(strategy, timeline)
    checked = strategy.check(key.at(now), now, cost)
    charged = strategy.charge(key.at(now), now, cost)

    assert charged.persist
    assert charged.result.allowed
    if checked.result.allowed:
        assert charged == checked


@each
@given(timeline=gaps, cost=st.integers(1, 40))
def test_an_unconditional_charge_takes_what_is_not_there(
    strategy: Strategy, timeline: list[tuple[int, int]], cost: int
) -> None:
    """Nothing is reported below zero, and a key in debt admits nothing."""
    key, now = aged(strategy, timeline)
    left = left_of(key, now)
    decision = key.run("charge", now, cost)

    assert decision.remaining >= 0
    assert left_of(key, now) == max(0, left - cost)
    if cost >= left:
        assert not key.run("check", now, 1).allowed


@each
@pytest.mark.parametrize("cost", [2**53 - 1, 10**12])
def test_even_a_huge_charge_leaves_a_state_that_can_be_kept(strategy: Strategy, cost: int) -> None:
    key = Key(strategy)
    for now in (NOW, NOW + 50, NOW + 400):
        key.run("charge", now, cost)
        strategy.restore(key.state)
        denied = key.run("check", now, 1)
        assert not denied.allowed
        assert 0 < denied.retry_after_ms < 2**53


@each
@given(
    timeline=st.lists(st.tuples(st.integers(-300, 700), st.integers(1, 60)), max_size=12),
    cost=st.integers(1, 2**53 - 1),
)
def test_a_key_never_owes_more_than_one_whole_limit(
    strategy: Strategy, timeline: list[tuple[int, int]], cost: int
) -> None:
    """However often it is charged, and by whatever clock."""
    key, now, latest = Key(strategy), NOW, NOW
    for gap, units in (*timeline, (0, cost)):
        now += gap
        latest = max(latest, now)
        excess = strategy.excess(key.at(now), now, units)
        left = left_of(key, now)
        key.run("charge", now, units)

        assert 0 <= excess <= units
        assert excess == 0 or left == 0 or units > strategy.limit
        # Then one limit is replenished, and a unit more.
        again = strategy.check(key.at(now), now, 1).result.retry_after_ms
        assert again <= latest - now + strategy.ttl_ms * (1 + 1 / strategy.limit) + 2


@each
def test_one_whole_limit_can_be_owed(strategy: Strategy) -> None:
    key = Key(strategy)
    assert strategy.excess(key.at(NOW), NOW, strategy.limit) == 0
    key.run("charge", NOW, strategy.limit)
    assert strategy.excess(key.at(NOW), NOW, strategy.limit) == 0
    key.run("charge", NOW, strategy.limit)
    assert strategy.excess(key.at(NOW), NOW, 5) == 5


@paced
@given(
    timeline=gaps,
    bookings=st.lists(st.tuples(st.integers(0, 300), costs), min_size=1, max_size=10),
)
def test_bookings_queue_at_the_pace(
    strategy: Strategy, timeline: list[tuple[int, int]], bookings: list[tuple[int, int]]
) -> None:
    """Each begins when its units have come in, after all that were booked before it; a check that
    had waited until then would have been admitted, and one a moment earlier not."""
    key, now = aged(strategy, timeline)
    last = 0
    for gap, cost in bookings:
        now += gap
        check = strategy.check(key.at(now), now, cost).result
        booked = key.run("book", now, cost, 10_000_000)

        assert booked.decision.allowed
        assert booked.decision.remaining >= 0
        assert check.allowed is (booked.delay_ms == 0)
        if cost <= strategy.limit and not check.allowed:
            assert booked.delay_ms == check.retry_after_ms
        assert now + booked.delay_ms >= last or booked.delay_ms == 0
        last = now + booked.delay_ms


@paced
def test_what_lies_too_far_ahead_is_not_booked(strategy: Strategy) -> None:
    key = Key(strategy)
    while (booked := key.run("book", NOW, 1, 0)).decision.allowed:
        assert booked.delay_ms == 0
    before = key.state
    denied = key.run("book", NOW, 1, booked.delay_ms - 1)

    assert not denied.decision.allowed
    assert denied.decision.retry_after_ms == denied.delay_ms == booked.delay_ms
    assert key.state == before
    assert key.run("book", NOW, 1, booked.delay_ms).decision.allowed


@paced
def test_only_the_last_booking_comes_back(strategy: Strategy) -> None:
    """Were an earlier one given back, two would begin at one instant."""
    key = Key(strategy)
    key.run("charge", NOW, strategy.limit)
    first = NOW + key.run("book", NOW, 1, 10_000_000).delay_ms
    second = NOW + key.run("book", NOW, 1, 10_000_000).delay_ms

    assert key.run("refund", NOW, 1, first) == 0
    assert key.run("refund", NOW, 1, second) == 1
    assert key.run("book", NOW, 1, 10_000_000).delay_ms == second - NOW
    assert key.run("refund", NOW, 1, second) == 1
    assert key.run("refund", NOW, 1, first) == 1


@pytest.mark.parametrize(
    "strategy", [*PACED, token_bucket(2, 1.0), token_bucket(2, 20.0), token_bucket(1, 900.0)]
)
def test_the_last_booking_comes_back_while_time_goes_by(strategy: Strategy) -> None:
    """A bucket that was filled in many steps is rounded; that is nobody who stands behind."""
    for step in range(60):
        key, now = Key(strategy), NOW
        for _ in range(strategy.limit + 3):
            starts_at = now + key.run("book", now, 1, 10_000_000).delay_ms
            now += step
        if starts_at > now:
            assert key.run("refund", now, 1, starts_at) == 1
            assert abs(now + key.run("book", now, 1, 10_000_000).delay_ms - starts_at) <= 1


@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if s.window_kind], ids=repr)
def test_windows_cannot_be_booked(strategy: Strategy) -> None:
    with pytest.raises(UnsupportedError, match="gcra"):
        strategy.book(None, NOW, 1, 1_000)


def test_what_left_the_window_does_not_come_back() -> None:
    for strategy in (
        fixed_window(4, 1_000),
        sliding_window(4, 1_000),
        sliding_window_log(4, 1_000),
    ):
        key = Key(strategy)
        key.run("check", NOW, 4)
        later = NOW + 2_100
        assert key.run("check", later, 3).allowed
        assert key.run("refund", later, 4, NOW) == 0
        assert left_of(key, later) == 1


def test_a_log_gives_back_units_that_bear_a_later_stamp_than_their_charge() -> None:
    """Of two callers at once, the one that read the clock first may be counted second."""
    key = Key(sliding_window_log(5, 1_000))
    key.run("check", NOW + 1, 1)
    key.run("check", NOW, 2)
    assert left_of(key, NOW + 1) == 2
    assert key.run("refund", NOW + 1, 2, NOW) == 2
    assert left_of(key, NOW + 1) == 4


@given(gaps=gaps, back=st.integers(0, 30), cost=costs)
def test_a_log_that_was_given_back_to_admits_no_sooner(
    gaps: list[tuple[int, int]], back: int, cost: int
) -> None:
    """All comes back, and no sooner than if the request had never been made, whatever the clock of
    its caller shows."""
    with_it, without = Key(sliding_window_log(5, 1_000)), Key(sliding_window_log(5, 1_000))
    now = NOW
    for gap, units in gaps:
        now += gap // 30
        with_it.run("check", now, units)
        without.run("check", now, units)
    late = now - back
    if with_it.run("check", late, cost).allowed:
        assert with_it.run("refund", now, cost, late) == cost
    for at in range(now, now + 2_000, 97):
        assert left_of(with_it, at) <= left_of(without, at)


def test_a_sliding_window_gives_back_units_that_are_in_a_later_tick_than_their_charge() -> None:
    """Of two callers at the edge of a tick, the one that read the clock first may be counted
    second."""
    key = Key(sliding_window(5, 1_000))
    key.run("check", NOW + 100, 1)
    key.run("check", NOW + 99, 2)
    assert left_of(key, NOW + 100) == 2
    assert key.run("refund", NOW + 100, 2, NOW + 99) == 2
    assert left_of(key, NOW + 100) == 4


@pytest.mark.parametrize("buckets", [1, 3, 10])
@given(gaps=gaps, back=st.integers(0, 400), cost=costs)
def test_a_sliding_window_that_was_given_back_to_admits_no_sooner(
    buckets: int, gaps: list[tuple[int, int]], back: int, cost: int
) -> None:
    """All comes back, and no sooner than if the request had never been made, whatever the clock of
    its caller shows."""
    strategy = sliding_window(5, 1_000, buckets)
    with_it, without = Key(strategy), Key(strategy)
    now = NOW
    for gap, units in gaps:
        now += gap // 4
        with_it.run("check", now, units)
        without.run("check", now, units)
    late = now - back
    charged = with_it.run("check", late, cost)
    if charged.allowed:
        assert with_it.run("refund", now, cost, strategy.counted_at(charged, late)) == cost
    for at in range(now, now + 2_200, 97):
        assert left_of(with_it, at) <= left_of(without, at)


WINDOWS = [strategy for strategy in STRATEGIES if strategy.window_kind]


@pytest.mark.parametrize("strategy", WINDOWS, ids=repr)
@given(
    ahead=st.integers(1, 90_000_000),
    back=st.integers(0, 90_000_000),
    later=st.integers(0, 500),
    cost=costs,
)
def test_what_a_clock_that_went_back_had_counted_comes_back(
    strategy: Strategy, ahead: int, back: int, later: int, cost: int
) -> None:
    """The decision says in which window that was, if it was a later one than the clock shows."""
    key = Key(strategy)
    key.run("check", NOW + ahead, 1)
    now = NOW + ahead - min(ahead, back)
    before = left_of(key, now)
    charged = key.run("check", now, cost)
    if charged.allowed and now + later < charged.reset_at:
        assert key.run("refund", now + later, cost, strategy.counted_at(charged, now)) == cost
        assert left_of(key, now) == before


def test_a_charge_is_not_given_back_by_a_later_window() -> None:
    """Whatever was charged there by others."""
    for strategy in (fixed_window(4, 1_000), calendar_quota(4, "hour")):
        key = Key(strategy)
        charged = key.run("check", NOW, 3)
        later = charged.reset_at
        assert key.run("check", later, 3).allowed
        for now in (later, later - 1):
            assert key.run("refund", now, 3, strategy.counted_at(charged, NOW)) == 0


def test_an_emptied_tick_ahead_of_the_clock_still_stands() -> None:
    """A clock that went back does not find what was dropped when it was ahead."""
    strategy = sliding_window(5, 1_000)
    key = Key(strategy)
    key.run("check", NOW, 5)
    key.run("check", NOW + 1_200, 2)
    assert key.run("refund", NOW + 100, 2, NOW + 1_200) == 2
    assert key.state is not None
    assert key.run("check", NOW + 100, 5).allowed
    assert not key.run("check", NOW + 100, 1).allowed


def test_a_refund_keeps_what_a_clock_that_goes_back_finds_again() -> None:
    """The units of another tick had left the window at the instant of the refund, and at no other
    that the state tells of."""
    key = Key(sliding_window(5, 900, buckets=2))
    key.run("check", NOW, 2)
    key.run("check", NOW + 900, 1)
    before = left_of(key, NOW + 900)
    assert key.run("refund", NOW + 1_400, 1, NOW + 900) == 1
    assert left_of(key, NOW + 900) == before + 1


def test_a_debt_is_paid_off_first() -> None:
    bucket = Key(token_bucket(10, 10))
    bucket.run("charge", NOW, 18)
    assert bucket.run("check", NOW + 800, 1).retry_after_ms == 100
    assert bucket.run("check", NOW + 900, 1).allowed

    cell = Key(gcra(10, 1_000))
    cell.run("charge", NOW, 18)
    wait = cell.run("check", NOW, 1).retry_after_ms
    assert wait == ceil(9 * cell.strategy.values["period_ms"] / 10)


def test_no_limit_takes_and_gives_anything() -> None:
    key = Key(unlimited())
    assert key.run("refund", NOW, 3, NOW) == 3
    assert key.run("charge", NOW, 3).allowed
    assert key.run("book", NOW, 3, 5).delay_ms == 0


# Where sums are rounded: next to a whole number, and anywhere.
levels = st.builds(
    nextafter, st.integers(-9, 9).map(float), st.sampled_from([-inf, inf])
) | st.floats(-9, 9)


@given(tokens=levels, cost=st.integers(1, 9), ahead=st.integers(0, 2_000))
def test_a_bucket_moves_by_no_more_than_its_units_to_the_last_bit(
    tokens: float, cost: int, ahead: int
) -> None:
    """What is given back or taken: rounding never makes a token of what is none."""
    bucket = token_bucket(9, 3.3)
    state = (tokens, NOW + ahead)

    refunded = bucket.refund(state, NOW, cost, NOW)
    charged = bucket.charge(state, NOW, cost)

    if refunded.persist:
        assert Fraction(refunded.state[0]) <= Fraction(tokens) + cost
    assert Fraction(charged.state[0]) <= Fraction(tokens) - (cost - bucket.excess(state, NOW, cost))
