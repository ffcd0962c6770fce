"""Scripted timelines with answers worked out by hand: what each strategy does, number by number.

A script is a list of (ms since NOW, cost, then allowed, remaining, reset_at - NOW, retry_after_ms).
"""

from __future__ import annotations

import pytest

from penstock import (
    Strategy,
    fixed_window,
    gcra,
    sliding_window,
    sliding_window_log,
    token_bucket,
    unlimited,
)
from tests.support.helpers import NOW, Reference

Row = tuple[int, int, bool, int, int, int]

SCRIPTS: dict[str, tuple[Strategy, list[Row]]] = {
    "gcra: a cold burst, a denial, one unit per interval": (
        gcra(5, 1_000),
        [
            (0, 1, True, 4, 200, 0),
            (0, 1, True, 3, 400, 0),
            (0, 3, True, 0, 1_000, 0),
            (0, 1, False, 0, 1_000, 200),
            (199, 1, False, 0, 1_000, 1),
            (200, 1, True, 0, 1_200, 0),
            (400, 2, False, 1, 1_200, 200),
            (600, 2, True, 0, 1_600, 0),
            (10_000, 5, True, 0, 11_000, 0),
        ],
    ),
    "gcra: an interval that is no whole number of ms": (
        gcra(3, 1_000),
        [
            (0, 1, True, 2, 334, 0),
            (0, 1, True, 1, 667, 0),
            (0, 1, True, 0, 1_000, 0),
            (0, 1, False, 0, 1_000, 334),
            (333, 1, False, 0, 1_000, 1),
            (334, 1, True, 0, 1_334, 0),
            (667, 1, True, 0, 1_667, 0),
        ],
    ),
    "gcra: a burst apart from the rate": (
        gcra(10, 1_000, burst=2),
        [
            (0, 3, False, 2, 0, 100),
            (0, 2, True, 0, 200, 0),
            (100, 1, True, 0, 300, 0),
            (100, 2, False, 0, 300, 200),
            (300, 2, True, 0, 500, 0),
        ],
    ),
    "gcra: the clock jumps back": (
        gcra(5, 1_000),
        [
            (0, 5, True, 0, 1_000, 0),
            (-500, 1, False, 0, 1_000, 700),
            (200, 1, True, 0, 1_200, 0),
            (-10_000, 1, False, 0, 1_200, 10_400),
        ],
    ),
    "token bucket: a cold burst, a denial, steady refill": (
        token_bucket(10, 5),
        [
            (0, 1, True, 9, 200, 0),
            (0, 9, True, 0, 2_000, 0),
            (0, 1, False, 0, 2_000, 200),
            (100, 1, False, 0, 2_000, 100),
            (200, 1, True, 0, 2_200, 0),
            (1_000, 3, True, 1, 2_800, 0),
            (1_000, 2, False, 1, 2_800, 200),
            (60_000, 11, False, 10, 60_000, 200),
        ],
    ),
    "token bucket: fractions of tokens add up": (
        token_bucket(2, 0.5),
        [
            (0, 2, True, 0, 4_000, 0),
            (1_000, 1, False, 0, 4_000, 1_000),
            (2_000, 1, True, 0, 6_000, 0),
            (3_000, 1, False, 0, 6_000, 1_000),
        ],
    ),
    "token bucket: a backward jump buys no second refill": (
        token_bucket(10, 10),
        [
            (0, 10, True, 0, 1_000, 0),
            (500, 5, True, 0, 1_500, 0),
            (0, 1, False, 0, 1_500, 600),
            (500, 1, False, 0, 1_500, 100),
            (600, 1, True, 0, 1_600, 0),
        ],
    ),
    "fixed window: aligned to the epoch, full again at the boundary": (
        fixed_window(3, 1_000),
        [
            (900, 2, True, 1, 1_000, 0),
            (900, 2, False, 1, 1_000, 100),
            (999, 1, True, 0, 1_000, 0),
            (999, 1, False, 0, 1_000, 1),
            (1_000, 3, True, 0, 2_000, 0),
            (1_000, 1, False, 0, 2_000, 1_000),
        ],
    ),
    "fixed window: anchored at the first request": (
        fixed_window(3, 1_000, anchor="first"),
        [
            (900, 3, True, 0, 1_900, 0),
            (1_000, 1, False, 0, 1_900, 900),
            (1_899, 1, False, 0, 1_900, 1),
            (1_900, 1, True, 2, 2_900, 0),
            (5_500, 1, True, 2, 6_500, 0),
        ],
    ),
    "fixed window: the later window stands after a backward jump": (
        fixed_window(2, 1_000),
        [
            (0, 2, True, 0, 1_000, 0),
            (1_500, 1, True, 1, 2_000, 0),
            (500, 1, True, 0, 2_000, 0),
            (500, 1, False, 0, 2_000, 1_500),
            (1_999, 1, False, 0, 2_000, 1),
            (2_000, 1, True, 1, 3_000, 0),
        ],
    ),
    "fixed window, first: the later window stands after a backward jump": (
        fixed_window(2, 1_000, anchor="first"),
        [
            (0, 2, True, 0, 1_000, 0),
            (-5_000, 1, False, 0, 1_000, 6_000),
            (999, 1, False, 0, 1_000, 1),
            (1_000, 2, True, 0, 2_000, 0),
            (500, 1, False, 0, 2_000, 1_500),
        ],
    ),
    "sliding window: two windows, weighed": (
        sliding_window(10, 1_000, buckets=1),
        [
            (0, 10, True, 0, 2_000, 0),
            (500, 1, False, 0, 2_000, 500),
            (1_000, 1, False, 0, 3_000, 100),
            (1_100, 1, True, 0, 3_000, 0),
            (1_500, 5, False, 4, 3_000, 100),
            (1_500, 4, True, 0, 3_000, 0),
            (2_000, 6, False, 5, 4_000, 200),
            (3_000, 10, True, 0, 5_000, 0),
        ],
    ),
    "sliding window: ten ticks": (
        sliding_window(10, 1_000),
        [
            (0, 6, True, 4, 1_100, 0),
            (250, 4, True, 0, 1_300, 0),
            (250, 1, False, 0, 1_300, 50),
            (1_000, 1, False, 0, 2_100, 17),
            (1_017, 1, True, 0, 2_100, 0),
            (1_050, 2, True, 0, 2_100, 0),
        ],
    ),
    "sliding window: a backward jump stays in the newest tick": (
        sliding_window(4, 1_000),
        [
            (500, 3, True, 1, 1_600, 0),
            (100, 1, True, 0, 1_600, 0),
            (100, 1, False, 0, 1_600, 500),
            (550, 1, False, 0, 1_600, 50),
            (1_600, 4, True, 0, 2_700, 0),
        ],
    ),
    "sliding window log: to the millisecond": (
        sliding_window_log(3, 1_000),
        [
            (0, 1, True, 2, 1_000, 0),
            (400, 2, True, 0, 1_000, 0),
            (400, 1, False, 0, 1_000, 600),
            (999, 1, False, 0, 1_000, 1),
            (1_000, 1, True, 0, 1_400, 0),
            (1_000, 2, False, 0, 1_400, 400),
            (1_400, 2, True, 0, 2_000, 0),
        ],
    ),
    "sliding window log: costs above the limit": (
        sliding_window_log(3, 1_000),
        [
            (0, 4, False, 3, 1_000, 1_000),
            (0, 2, True, 1, 1_000, 0),
            (100, 1, True, 0, 1_000, 0),
            (200, 4, False, 0, 1_000, 900),
        ],
    ),
    "sliding window log: stamps never go back": (
        sliding_window_log(2, 1_000),
        [
            (500, 1, True, 1, 1_500, 0),
            (0, 1, True, 0, 1_500, 0),
            (0, 1, False, 0, 1_500, 1_500),
            (1_499, 1, False, 0, 1_500, 1),
            (1_500, 2, True, 0, 2_500, 0),
        ],
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_answered_to_the_number(name: str) -> None:
    """Every field of every decision, at 13-digit instants."""
    strategy, rows = SCRIPTS[name]
    key = Reference(strategy)
    for after, cost, allowed, remaining, reset_after, retry in rows:
        seen = key.check(NOW + after, cost)
        answer = (seen.allowed, seen.remaining, seen.reset_at - NOW, seen.retry_after_ms)
        assert answer == (allowed, remaining, reset_after, retry), (after, cost)
        assert seen.limit == strategy.limit


def test_now_is_on_a_boundary_that_the_scripts_rely_on() -> None:
    """The scripts count windows from NOW, which must therefore start one."""
    assert NOW % 1_000 == 0
    assert len(str(NOW)) == 13


def test_a_fixed_window_admits_twice_its_limit_across_a_boundary() -> None:
    """The known weakness of epoch windows, shown so that nobody has to find out."""
    key = Reference(fixed_window(100, 60_000))
    boundary = NOW // 60_000 * 60_000 + 60_000
    assert key.check(boundary - 1, 100).allowed
    assert key.check(boundary, 100).allowed


def test_gcra_rounds_its_interval_down_to_a_grid_on_which_sums_are_exact() -> None:
    """1000 / 7 ms is no multiple of 1/2048: the interval is, and the burst comes out whole."""
    strategy = gcra(7, 1_000)
    assert strategy.interval_ms == 292_571 / 2048
    key = Reference(strategy)
    assert [bool(key.check(NOW, 1)) for _ in range(8)] == [True] * 7 + [False]
    assert key.check(NOW, 1).retry_after_ms == 143
    assert key.check(NOW + 1_000, 7).allowed


@pytest.mark.parametrize("cost", [1, 2**53 - 1])
def test_unlimited_allows_everything_and_keeps_nothing(cost: int) -> None:
    """The kill switch has no state to outlive it."""
    strategy = unlimited()
    outcome = strategy.check(None, NOW, cost)
    assert outcome.result.allowed
    assert (outcome.state, outcome.persist, outcome.result.retry_after_ms) == (None, False, 0)
    assert strategy.peek(None, NOW) == outcome.result
    assert strategy.forecast(None, NOW, cost).spendable_now == (2**53 - 1) // cost


def test_a_smaller_limit_reads_the_state_of_a_larger_one() -> None:
    """After a limit was lowered, old states deny; nothing goes negative."""
    for make in (
        lambda limit: gcra(limit, 1_000),
        lambda limit: token_bucket(limit, 10),
        lambda limit: fixed_window(limit, 1_000),
        lambda limit: sliding_window(limit, 1_000),
        lambda limit: sliding_window_log(limit, 1_000),
    ):
        old, new = make(100), make(5)
        state = old.check(None, NOW, 50).state
        decision = new.check(state, NOW, 6).result
        assert not decision.allowed
        assert 0 <= decision.remaining <= 100
        assert decision.retry_after_ms > 0
