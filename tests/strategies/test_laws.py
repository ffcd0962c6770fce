"""Laws that hold for every strategy, over seeded random parameters and timelines.

The timelines are drawn at real epoch instants and contain bursts, pauses, expiries, costs from 1
to 2**53 - 1 and jumps of the clock in both directions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Decision, Strategy, gcra, sliding_window, token_bucket
from tests.support.effort import count
from tests.support.helpers import HUGE, KINDS, NOW, Reference, draw_strategy, draw_timeline

every_strategy = pytest.mark.parametrize("kind", KINDS)


def worlds(kind: str, most: int, seed: str, steps: int = 14, **options: Any) -> Iterator[Any]:
    """(strategy, timeline) pairs, the same ones on every run: a quarter of the most, or in a long
    run all of them."""
    rng = random.Random(f"{seed}/{kind}")
    for _ in range(count(most // 4, most)):
        strategy = draw_strategy(kind, rng)
        yield strategy, draw_timeline(strategy, rng, steps, **options)


def assert_sound(decision: Decision, limit: int) -> None:
    assert type(decision.allowed) is bool
    numbers = (
        decision.limit,
        decision.remaining,
        decision.reset_at,
        decision.retry_after_ms,
    )
    assert all(type(number) is int for number in numbers), decision
    assert decision.limit == limit
    assert 0 <= decision.remaining <= limit
    assert 0 <= decision.retry_after_ms <= HUGE
    assert (decision.retry_after_ms == 0) == decision.allowed
    assert bool(decision) is decision.allowed


@every_strategy
def test_decisions_are_sound(kind: str) -> None:
    """Integers only, nothing negative, a retry of 0 exactly when allowed."""
    for strategy, timeline in worlds(kind, 2_000, "sound"):
        key = Reference(strategy)
        for now, cost in timeline:
            assert_sound(strategy.peek(key.at(now), now), strategy.limit)
            assert_sound(key.check(now, cost), strategy.limit)


@every_strategy
def test_a_denial_persists_nothing_and_an_admission_does(kind: str) -> None:
    """The outcome tells the store to write exactly when the request is allowed."""
    for strategy, timeline in worlds(kind, 500, "persist"):
        key, newest = Reference(strategy), 0
        for now, cost in timeline:
            outcome = strategy.check(key.at(now), now, cost)
            assert outcome.persist is outcome.result.allowed
            if outcome.persist:
                newest = max(newest, now)
                assert outcome.state is not None
                assert 1 <= outcome.ttl_ms <= strategy.ttl_ms + (newest - now)
            else:
                assert outcome.state is key.at(now)
            key.check(now, cost)


@every_strategy
def test_check_is_a_pure_function(kind: str) -> None:
    """Asked twice, it answers the same and has not touched the state."""
    for strategy, timeline in worlds(kind, 300, "pure"):
        key = Reference(strategy)
        for now, cost in timeline:
            state = key.at(now)
            frozen = repr(state)
            first, second = (strategy.check(state, now, cost) for _ in range(2))
            assert first == second
            assert repr(state) == frozen
            key.check(now, cost)


@every_strategy
def test_a_clock_that_goes_back_admits_no_more_than_one_that_stood_still(kind: str) -> None:
    """Whatever was admitted is admitted again, to the last unit, when each request is replayed at
    the latest instant at which any was admitted so far: on a clock that never goes back."""
    for strategy, timeline in worlds(kind, 2_500, "jump", steps=20):
        jumping, honest, latest = Reference(strategy), Reference(strategy), 0
        for now, cost in timeline:
            if jumping.check(now, cost):
                latest = max(latest, now)
                assert honest.check(latest, cost), (strategy, now, latest)


@every_strategy
def test_service_resumes_when_time_catches_up(kind: str) -> None:
    """After any jumps, a key is as good as new once its last TTL has passed."""
    for strategy, timeline in worlds(kind, 500, "resume"):
        key = Reference(strategy)
        for now, cost in timeline:
            key.check(now, cost)
        later = max(key.expires, max(now for now, _ in timeline))
        assert key.check(later, 1) == strategy.check(None, later, 1).result


@every_strategy
def test_a_state_past_its_ttl_decides_as_no_state_at_all(kind: str) -> None:
    """Bit for bit, on every field, at the instant of expiry and after it."""
    rng = random.Random(kind)
    for strategy, timeline in worlds(kind, 1_500, "expiry"):
        key = Reference(strategy)
        for now, cost in timeline:
            key.check(now, cost)
            if key.state is None:
                continue
            later = key.expires + rng.choice((0, 0, 1, rng.randrange(10**7)))
            kept, void = (strategy.check(state, later, cost) for state in (key.state, None))
            assert (kept.result, kept.persist) == (void.result, void.persist)
            assert kept.state == void.state or not kept.persist
            assert strategy.peek(key.state, later) == strategy.peek(None, later)
            assert strategy.forecast(key.state, later, 1) == strategy.forecast(None, later, 1)


# How many waits an honest retry may take, where one is not enough. The sliding window often knows
# no more than the end of the current tick, and goes by the current weight even while a clock that
# jumped back makes that stand still. The token bucket's formula may fall one rounding, and so one
# ms, short.
WAITS = {
    "token_bucket": lambda _strategy: 2,
    "sliding_window": lambda strategy: 2 * strategy.buckets + 3,
}


@every_strategy
def test_waiting_as_told_gets_one_in(kind: str) -> None:
    """With nobody else asking, a request that fits the limit is admitted after its retry."""
    honest_clock = kind == "sliding_window"
    most_waits = WAITS.get(kind, lambda _strategy: 1)
    for strategy, timeline in worlds(kind, 1_500, "retry", huge=False, back=not honest_clock):
        if most_waits(strategy) > 1_000:
            continue  # For ever, but for the patience of a test.
        key = Reference(strategy)
        for now, cost in timeline:
            decision, later, waits = key.check(now, cost), now, 0
            while not decision.allowed:
                later += decision.retry_after_ms
                waits += 1
                assert waits <= most_waits(strategy), (strategy, now, cost)
                decision = strategy.check(key.at(later), later, cost).result


def test_a_sliding_window_behind_its_newest_tick_repeats_itself_until_time_catches_up() -> None:
    """After a backward jump a single retry is not enough, but each one is worth making."""
    strategy, now, waits = sliding_window(10, 1_000, buckets=2), NOW - 3_000, 0
    state = ((NOW // 500 - 2, 2), (NOW // 500, 8))
    while not (decision := strategy.check(state, now, 1).result).allowed:
        now += decision.retry_after_ms
        waits += 1
    assert (now, waits) == (NOW + 250, 13)


@pytest.mark.parametrize("kind", ["fixed_window", "sliding_window_log"])
def test_a_millisecond_less_would_not_have_been_enough(kind: str) -> None:
    """Where the arithmetic is whole, the retry is the first instant that admits."""
    for strategy, timeline in worlds(kind, 500, "early", huge=False):
        key = Reference(strategy)
        for now, cost in timeline:
            decision = key.check(now, cost)
            if not decision.allowed:
                early = now + decision.retry_after_ms - 1
                assert not strategy.check(key.at(early), early, cost).result.allowed


@every_strategy
def test_peek_is_what_a_request_of_one_would_get(kind: str) -> None:
    """The same answer as `check` for a cost of 1, but nothing is taken off `remaining`."""
    for strategy, timeline in worlds(kind, 1_000, "peek"):
        key = Reference(strategy)
        for now, cost in timeline:
            peeked = strategy.peek(key.at(now), now)
            asked = strategy.check(key.at(now), now, 1).result
            assert (peeked.allowed, peeked.reset_at, peeked.retry_after_ms) == (
                asked.allowed,
                asked.reset_at,
                asked.retry_after_ms,
            )
            if not asked.allowed:
                assert peeked.remaining == asked.remaining
            else:
                assert peeked.remaining >= asked.remaining
            key.check(now, cost)


def spendable(strategy: Strategy, key: Reference, now: int) -> int:
    return strategy.forecast(key.at(now), now, 1).spendable_now


@every_strategy
def test_what_is_forecast_as_spendable_is_spendable(kind: str) -> None:
    """That many requests fit now, and not one more."""
    for strategy, timeline in worlds(kind, 1_500, "spend"):
        key = Reference(strategy)
        for now, cost in timeline:
            forecast = strategy.forecast(key.at(now), now, cost)
            if forecast.spendable_now <= 40:
                spender = Reference(strategy)
                spender.state, spender.expires = key.state, key.expires
                for _ in range(forecast.spendable_now):
                    assert spender.check(now, cost)
                assert not spender.check(now, cost)
            key.check(now, cost)


@every_strategy
def test_a_forecast_names_the_instants_of_replenishment(kind: str) -> None:
    """`next_replenish_at` is the first instant with one unit more, `full_at` the first with all."""
    for strategy, timeline in worlds(kind, 1_500, "instants"):
        if strategy.limit > 2**50:
            continue  # A unit is lost in the rounding of such an estimate.
        key = Reference(strategy)
        for now, cost in timeline:
            key.check(now, cost)
            forecast = strategy.forecast(key.at(now), now, 1)
            more_at, full_at = forecast.next_replenish_at, forecast.full_at
            held = spendable(strategy, key, now)
            assert now <= more_at <= full_at
            assert spendable(strategy, key, full_at) == strategy.limit
            if full_at == now:
                assert held == strategy.limit
                continue
            assert more_at > now
            assert spendable(strategy, key, more_at) > held
            assert spendable(strategy, key, more_at - 1) == held
            nearly = strategy.forecast(key.at(full_at - 1), full_at - 1, 1)
            assert nearly != strategy.forecast(None, full_at - 1, 1)


def test_a_token_bucket_forecast_is_not_a_rounding_late_or_early() -> None:
    """The closed form is off by a ms for these; the forecast goes by what `check` would find."""
    late = token_bucket(946_801, 0.1)
    assert late.forecast((946_800.0, NOW - 1), NOW, 1).full_at == NOW - 1 + 10_000
    early = token_bucket(2, 1 / 3)
    state = (0.12166666666666659, NOW)
    full_at = early.forecast(state, NOW, 1).full_at
    assert not early.check(state, full_at - 1, 2).result.allowed
    assert early.check(state, full_at, 2).result.allowed


def test_a_sliding_window_forecasts_what_check_would_admit_rounding_included() -> None:
    """The estimate is a hair above 5 here, but five more units still round to the limit."""
    strategy, now = sliding_window(10, 7, buckets=3), 1_700_857_958_528
    key = Reference(strategy)
    key.state, key.expires = ((728_939_125_080, 7), (728_939_125_081, 1)), now + 1
    assert strategy.forecast(key.state, now, 1).spendable_now == 5
    assert [key.check(now, 1).allowed for _ in range(6)] == [True] * 5 + [False]


def test_a_sliding_window_is_full_when_its_last_tick_has_no_weight() -> None:
    """That may be a millisecond before the tick drops out of sight."""
    strategy, now = sliding_window(2, 97_462, buckets=10), 1_700_115_965_062
    state = ((174_438_854, 1),)
    full_at = strategy.forecast(state, now, 1).full_at
    assert full_at == 1_700_116_066_063
    assert strategy.check(state, full_at, 2).result.allowed
    assert not strategy.check(state, full_at - 1, 2).result.allowed


@every_strategy
def test_states_are_made_of_plain_values(kind: str) -> None:
    """Numbers and tuples of them, so that any store can carry a state."""

    def plain(value: Any) -> bool:
        if isinstance(value, tuple):
            return all(map(plain, value))
        return type(value) in (int, float)

    for strategy, timeline in worlds(kind, 200, "plain"):
        key = Reference(strategy)
        for now, cost in timeline:
            key.check(now, cost)
            assert key.state is None or plain(key.state)


@every_strategy
def test_a_state_that_went_through_json_decides_the_same(kind: str) -> None:
    """Tuples come back as lists and that must not matter."""
    import json

    for strategy, timeline in worlds(kind, 300, "json"):
        kept, sent = Reference(strategy), Reference(strategy)
        for now, cost in timeline:
            sent.state = json.loads(json.dumps(sent.state))
            assert kept.check(now, cost) == sent.check(now, cost)
            assert strategy.peek(kept.at(now), now) == strategy.peek(sent.at(now), now)
            assert strategy.forecast(kept.at(now), now, 1) == strategy.forecast(
                sent.at(now), now, 1
            )


@given(
    limit=st.integers(1, 1_000),
    period_ms=st.integers(100, 10**7),
    moves=st.lists(st.tuples(st.integers(-5_000, 10_000), st.integers(1, 50)), max_size=40),
)
def test_gcra_never_admits_more_than_its_curve(
    limit: int, period_ms: int, moves: list[tuple[int, int]]
) -> None:
    """Over any stretch: at most the burst, and one unit per interval of it."""
    strategy = gcra(limit, period_ms)
    key, now, admitted = Reference(strategy), NOW, []
    for move, cost in moves:
        now += move
        if key.check(now, cost):
            admitted.append((max(now, admitted[-1][0] if admitted else 0), cost))
    for first, (start, _) in enumerate(admitted):
        for last in range(first, len(admitted)):
            units = sum(cost for _, cost in admitted[first : last + 1])
            span = admitted[last][0] - start
            assert units <= limit + span / strategy.interval_ms


@given(
    limit=st.integers(1, 50),
    window_ms=st.integers(1, 5_000),
    moves=st.lists(st.tuples(st.integers(-3_000, 6_000), st.integers(1, 8)), max_size=40),
)
def test_a_log_never_holds_more_than_its_limit_in_any_window(
    limit: int, window_ms: int, moves: list[tuple[int, int]]
) -> None:
    """The exact window is exact: counted afterwards, no window has more than the limit."""
    from penstock import sliding_window_log

    key, now = Reference(sliding_window_log(limit, window_ms)), NOW
    admitted: list[tuple[int, int]] = []
    for move, cost in moves:
        now += move
        if key.check(now, cost):
            admitted.append((max(now, admitted[-1][0] if admitted else 0), cost))
    for end, _ in admitted:
        assert sum(cost for at, cost in admitted if end - window_ms < at <= end) <= limit


@given(
    limit=st.integers(1, 50),
    window_ms=st.integers(1, 5_000),
    buckets=st.integers(1, 20),
    moves=st.lists(st.tuples(st.integers(0, 2_000), st.integers(1, 8)), max_size=40),
)
def test_a_sliding_window_is_off_by_at_most_one_tick(
    limit: int, window_ms: int, buckets: int, moves: list[tuple[int, int]]
) -> None:
    """What it admits in any whole window is the limit and at most the oldest tick's count."""
    strategy = sliding_window(limit, window_ms, buckets)
    key, now = Reference(strategy), NOW
    admitted: list[tuple[int, int]] = []
    for move, cost in moves:
        now += move
        if key.check(now, cost):
            admitted.append((now, cost))
    ticks: dict[float, int] = {}
    for at, cost in admitted:
        tick = at // strategy.tick_ms
        ticks[tick] = ticks.get(tick, 0) + cost
    for end, _ in admitted:
        inside = sum(cost for at, cost in admitted if end - window_ms < at <= end)
        assert inside <= limit + max(ticks.values())


@given(
    capacity=st.integers(1, 1_000),
    rate=st.floats(0.01, 1_000),
    moves=st.lists(st.tuples(st.integers(-5_000, 10_000), st.integers(1, 50)), max_size=40),
)
def test_a_token_bucket_never_gives_out_more_than_it_got(
    capacity: int, rate: float, moves: list[tuple[int, int]]
) -> None:
    """In all: the capacity it started with and what ran in since, jumps counted once."""
    key, now, spent, latest = Reference(token_bucket(capacity, rate)), NOW, 0, NOW
    start = None
    for move, cost in moves:
        now += move
        if key.check(now, cost):
            start = now if start is None else start
            latest = max(latest, now)
            spent += cost
            assert spent <= capacity + (latest - start) * rate / 1000 + 1e-6
