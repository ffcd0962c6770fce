"""Refunds, charges without condition, bookings and pauses: the laws that every strategy keeps."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, inf, nextafter
from typing import Any

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

NOW = 1_700_000_000_000

STRATEGIES: list[Strategy] = [
    gcra(7, 1_000),
    gcra(10, 60_000, burst=3),
    token_bucket(5, 3.3),
    token_bucket(10, 0.01),
    fixed_window(4, 1_000),
    fixed_window(4, 1_000, anchor="first"),
    calendar_quota(4, "hour"),
    calendar_quota(4, "month", "Europe/Berlin", starts_on=31),
    sliding_window(6, 1_000, buckets=1),
    sliding_window(6, 1_000),
    sliding_window_log(5, 1_000),
]
PACED = [strategy for strategy in STRATEGIES if strategy.window_kind is None]
each = pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
paced = pytest.mark.parametrize("strategy", PACED, ids=repr)

costs = st.integers(1, 4)
gaps = st.lists(st.tuples(st.integers(0, 700), costs), max_size=12)


class Key:
    """A key of a store, driven by hand."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.state: Any = None
        self.expires = 0

    def at(self, now: int) -> Any:
        return self.state if now < self.expires else None

    def run(self, name: str, now: int, *arguments: int) -> Any:
        outcome = getattr(self.strategy, name)(self.at(now), now, *arguments)
        if outcome.persist:
            self.state, self.expires = outcome.state, now + outcome.ttl_ms
        return outcome.result


def _aged(strategy: Strategy, timeline: list[tuple[int, int]]) -> tuple[Key, int]:
    key, now = Key(strategy), NOW
    for gap, cost in timeline:
        now += gap
        key.run("check", now, cost)
    return key, now


def _future(key: Key, now: int) -> list[Any]:
    """Everything that the state says about the times to come."""
    later = [now + step for step in (0, 1, 40, 130, 333, 700, 999, 1_400, 5_000, 60_000)]
    return [(key.strategy.peek(key.at(at), at).allowed, _left(key, at)) for at in later]


def _left(key: Key, now: int) -> int:
    return key.strategy.forecast(key.at(now), now, 1).spendable_now


@each
@given(timeline=gaps, cost=costs)
def test_a_refund_at_the_same_instant_undoes_a_charge(
    strategy: Strategy, timeline: list[tuple[int, int]], cost: int
) -> None:
    """It restores what the state means, now and at any time to come."""
    key, now = _aged(strategy, timeline)
    cost = min(cost, strategy.limit)
    while retry := strategy.check(key.at(now), now, cost).result.retry_after_ms:
        now += retry
    before = _future(key, now)
    assert key.run("check", now, cost).allowed

    assert key.run("refund", now, cost, now) == cost
    assert _future(key, now) == before


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
        key.run("charge", now, cost)
        if later is None:
            without.run("charge", now, cost)
            continue
        charged_at, now = now, now + later
        assert 0 <= key.run("refund", now, cost, charged_at) <= cost
        for at in (now, now + 1, now + 150, now + 1_000):
            assert 0 <= _left(key, at) <= _left(without, at) <= strategy.limit


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
        assert 0 <= _left(key, now) <= strategy.limit


@each
@given(timeline=gaps, cost=costs)
def test_an_unconditional_charge_is_a_check_where_that_allows(
    strategy: Strategy, timeline: list[tuple[int, int]], cost: int
) -> None:
    key, now = _aged(strategy, timeline)
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
    key, now = _aged(strategy, timeline)
    left = _left(key, now)
    decision = key.run("charge", now, cost)

    assert decision.remaining >= 0
    assert _left(key, now) == max(0, left - cost)
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
    timeline=gaps,
    ahead=st.integers(1, 5_000),
    asked=st.lists(st.integers(-500, 4_999), min_size=1, max_size=8),
)
def test_nothing_is_admitted_before_a_pause_ends(
    strategy: Strategy, timeline: list[tuple[int, int]], ahead: int, asked: list[int]
) -> None:
    """Not even when the clock goes back meanwhile."""
    key, now = _aged(strategy, timeline)
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
    key, now = _aged(strategy, timeline)
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
    key, now = _aged(strategy, timeline)
    key.run("pause", now, now + ahead)
    now += ahead + after
    cost = min(cost, strategy.limit)
    while retry := strategy.check(key.at(now), now, cost).result.retry_after_ms:
        now += retry
    before = _future(key, now)
    charged = key.run("check", now, cost)
    charged_at = strategy.counted_at(charged, now)

    assert key.run("refund", now, cost, charged_at) == cost
    assert _future(key, now) == before
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
    key, now = _aged(strategy, timeline)
    before = [_left(key, now + step) for step in (0, 100, 900, 2_500)]
    key.run("pause", now, now + ahead)
    after = [_left(key, now + step) for step in (0, 100, 900, 2_500)]

    assert all(late <= early for late, early in zip(after, before, strict=True))


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
    key, now = _aged(strategy, timeline)
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
        assert _left(key, later) == 1


def test_a_log_gives_back_units_that_bear_a_later_stamp_than_their_charge() -> None:
    """Of two callers at once, the one that read the clock first may be counted second."""
    key = Key(sliding_window_log(5, 1_000))
    key.run("check", NOW + 1, 1)
    key.run("check", NOW, 2)
    assert _left(key, NOW + 1) == 2
    assert key.run("refund", NOW + 1, 2, NOW) == 2
    assert _left(key, NOW + 1) == 4


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
        assert _left(with_it, at) <= _left(without, at)


def test_a_sliding_window_gives_back_units_that_are_in_a_later_tick_than_their_charge() -> None:
    """Of two callers at the edge of a tick, the one that read the clock first may be counted
    second."""
    key = Key(sliding_window(5, 1_000))
    key.run("check", NOW + 100, 1)
    key.run("check", NOW + 99, 2)
    assert _left(key, NOW + 100) == 2
    assert key.run("refund", NOW + 100, 2, NOW + 99) == 2
    assert _left(key, NOW + 100) == 4


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
        assert _left(with_it, at) <= _left(without, at)


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
    before = _left(key, now)
    charged = key.run("check", now, cost)
    if charged.allowed and now + later < charged.reset_at:
        assert key.run("refund", now + later, cost, strategy.counted_at(charged, now)) == cost
        assert _left(key, now) == before


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
    before = _left(key, NOW + 900)
    assert key.run("refund", NOW + 1_400, 1, NOW + 900) == 1
    assert _left(key, NOW + 900) == before + 1


def test_a_debt_is_paid_off_first() -> None:
    bucket = Key(token_bucket(10, 10))
    bucket.run("charge", NOW, 25)
    assert bucket.run("check", NOW + 1_500, 1).retry_after_ms == 100
    assert bucket.run("check", NOW + 1_600, 1).allowed

    cell = Key(gcra(10, 1_000))
    cell.run("charge", NOW, 25)
    wait = cell.run("check", NOW, 1).retry_after_ms
    assert wait == ceil(16 * cell.strategy.values["period_ms"] / 10)


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
    assert Fraction(charged.state[0]) <= Fraction(tokens) - cost
