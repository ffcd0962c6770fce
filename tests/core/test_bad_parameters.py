"""Parameters and rates that could not keep their word are refused at construction."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock import (
    Decision,
    fixed_window,
    gcra,
    rate_limit,
    sliding_window,
    sliding_window_log,
    slots,
    token_bucket,
)
from penstock.budget import token_budget
from penstock.core._durations import parse_duration_ms, parse_rate
from tests.support.helpers import HUGE, NOW

from .refusals import assert_refused

NAN, INF, SUBNORMAL = float("nan"), float("inf"), 5e-324
BAD_INTEGERS: list[Any] = [0, -1, 1.5, 1.0, True, None, NAN, INF, SUBNORMAL, "5", 2**53, 10**5_000]
BAD_SPANS: list[Any] = [*BAD_INTEGERS, 2**42 + 1]
BAD_RATES: list[Any] = [0, 0.0, -1, True, None, NAN, INF, -INF, SUBNORMAL, 1e-309, "5", 1e300]


@pytest.mark.parametrize("value", BAD_INTEGERS, ids=lambda value: type(value).__name__)
def test_a_bad_limit_is_refused_at_construction(value: Any) -> None:
    """Whatever the strategy calls its limit."""
    for make, name in (
        (lambda: gcra(value, 1_000), "limit"),
        (lambda: token_bucket(value, 1), "capacity"),
        (lambda: fixed_window(value, 1_000), "limit"),
        (lambda: sliding_window(value, 1_000), "limit"),
        (lambda: sliding_window_log(value, 1_000), "limit"),
        (lambda: sliding_window(5, 1_000, value), "buckets"),
    ):
        assert_refused(make, f"^{name} must be an integer from 1 to ")
    if value is not None:
        assert_refused(lambda: gcra(5, 1_000, value), "^burst must be an integer")


@pytest.mark.parametrize("value", BAD_SPANS, ids=lambda value: type(value).__name__)
def test_a_bad_span_is_refused_at_construction(value: Any) -> None:
    """Periods and windows reach from 1 ms to 139 years."""
    assert_refused(lambda: gcra(5, value), "^period_ms must be an integer from 1 to ")
    for make in (fixed_window, sliding_window, sliding_window_log):
        assert_refused(lambda make=make: make(5, value), "^window_ms must be an integer from 1 to ")


@pytest.mark.parametrize("value", BAD_RATES, ids=lambda value: type(value).__name__)
def test_a_bad_rate_is_refused_at_construction(value: Any) -> None:
    """Zero, negative, infinite, subnormal and astronomical refills alike."""
    assert_refused(lambda: token_bucket(5, value), "refill_per_sec must be a finite|takes over")


@pytest.mark.parametrize("anchor", ["Epoch", "", "last", None, 0, ["epoch"]])
def test_an_unknown_anchor_is_refused(anchor: Any) -> None:
    """The text lists the ones there are."""
    assert_refused(lambda: fixed_window(5, 1_000, anchor), "^anchor must be 'epoch' or 'first'")


def test_parameters_that_could_not_keep_their_word_are_refused_together() -> None:
    """Each is in range by itself; the combination is not."""
    assert_refused(lambda: gcra(HUGE, 1), "too fine for its grid of 1/2048 ms.*token_bucket")
    assert_refused(lambda: gcra(1, 2**42, burst=2), "lower it")
    assert_refused(lambda: token_bucket(HUGE, 1), "lower the capacity or raise the refill")
    assert_refused(lambda: token_bucket(1, 1e-300), "lower the capacity or raise the refill")
    assert_refused(lambda: sliding_window(5, 1, 100_000), "use fewer buckets")
    assert_refused(lambda: sliding_window(5, 10**6, 100_001), "^buckets must be")
    assert_refused(lambda: sliding_window_log(5_001, 1_000), "to 5000, not 5001.*sliding_window")
    assert_refused(lambda: slots(10_001), "^limit must be")


def test_the_extremes_that_construct_decide_soundly() -> None:
    """Whatever the constructor lets pass emits finite decisions in range, to the last instant."""
    for strategy in (
        gcra(1, 2**42),
        gcra(10, 1, burst=1),
        gcra(1, 1, burst=2**42),
        token_bucket(HUGE, HUGE),
        token_bucket(1, 2.0**-32 * 1.0),
        fixed_window(HUGE, 2**42),
        fixed_window(HUGE, 1, anchor="first"),
        sliding_window(HUGE, 2**42, 100_000),
        sliding_window(HUGE, 782, 100_000),
        sliding_window_log(5_000, 2**42),
    ):
        for now in (0, 1, NOW, 2**46):
            state = None
            for cost in (1, strategy.limit, HUGE, 1):
                outcome = strategy.check(state, now, cost)
                state = outcome.state if outcome.persist else state
                decision: Decision = outcome.result
                assert 0 <= decision.remaining <= strategy.limit
                assert 0 <= decision.retry_after_ms <= HUGE
                assert 0 <= decision.reset_at <= HUGE
                assert strategy.forecast(state, now, 1).full_at <= HUGE


BAD_RATE_STRINGS: list[Any] = [
    "",
    "100",
    "/",
    "/minute",
    "100/",
    "100/fortnight",
    "100 per minute",
    "-5/s",
    "1.5/s",
    "0/s",
    "5/0s",
    "1e3/s",
    "٣/s",
    "5/s/s",
    "99999999999999999/s",
    "5/9999999999999d",
    "5\n/",
]


@pytest.mark.parametrize("text", BAD_RATE_STRINGS, ids=repr)
def test_a_nonsense_rate_is_refused(text: str) -> None:
    """With an example of one that makes sense."""
    assert_refused(lambda: rate_limit(text), "such as|must lie between|must be an integer")


@pytest.mark.parametrize("thing", [None, 5, b"5/s", ["5/s"], object(), gcra])
def test_what_is_neither_a_rate_nor_a_strategy_is_refused(thing: Any) -> None:
    """The factory itself instead of what it makes, for one."""
    assert_refused(lambda: rate_limit(thing), "strategy must be a rate such as")
    assert_refused(lambda: parse_rate(thing), "such as '100/minute'")
    assert_refused(lambda: parse_duration_ms(thing), "such as '500ms'")


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100/minute", (100, 60_000)),
        ("5/30s", (5, 30_000)),
        (" 5 / 30 s ", (5, 30_000)),
        ("1/h", (1, 3_600_000)),
        ("7/2days", (7, 172_800_000)),
        ("10/500ms", (10, 500)),
        ("3/SECOND", (3, 1_000)),
        ("1000/week", (1_000, 604_800_000)),
        ("2/2w", (2, 1_209_600_000)),
    ],
)
def test_rates_are_read_as_people_write_them(text: str, rate: tuple[int, int]) -> None:
    """A count, a slash, and a duration or a bare unit."""
    assert parse_rate(text) == rate
    limiter = rate_limit(text)
    assert repr(limiter.strategy) == repr(gcra(*rate))


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("100/minuet", "not 'minuet'; did you mean 'minute'\\?"),
        ("100/secnd", "did you mean 'second'\\?"),
        ("100/hours ago", "such as"),
        ("5/2wks", "did you mean 'weeks'\\?"),
        ("100/fortnight", "the units are ms, second, minute, hour, day, week"),
        ("5/month", "a month has no fixed length, so say it in days"),
        ("5/2years", "a year has no fixed length"),
        ("100 per minute", "did you mean '100/minute'\\?"),
        ("5 an hour", "did you mean '5/hour'\\?"),
        ("5 per fortnight", "the units are ms, second, minute, hour, day, week"),
        ("5 per month", "a month has no fixed length"),
        ("0.5/second", "half a request a second is '1/2s'"),
    ],
)
def test_a_near_miss_is_told_what_was_probably_meant(text: str, hint: str) -> None:
    """A slip of the keys, another way to say it, or a unit that has no length."""
    assert_refused(lambda: rate_limit(text), hint)


def test_a_timedelta_does_where_a_period_is_meant() -> None:
    """It is the same strategy, down to its name in messages and policies."""
    minute = timedelta(minutes=1)
    for make in (gcra, fixed_window, sliding_window, sliding_window_log, token_budget):
        assert repr(make(5, minute)) == repr(make(5, 60_000))
        now, cost = NOW, 3
        assert make(5, minute).check(None, now, cost) == make(5, 60_000).check(None, now, cost)
    assert gcra(5, timedelta(weeks=1)).period_ms == 604_800_000


@pytest.mark.parametrize(
    ("span", "problem"),
    [
        (timedelta(0), "from 1 to"),
        (timedelta(seconds=-1), "from 1 to"),
        (timedelta(microseconds=1_500), "whole milliseconds"),
        (timedelta(days=60_000), "from 1 to"),
        ("1m", "durations as text are for rate_limit"),
    ],
)
def test_a_timedelta_that_is_no_period_is_refused(span: Any, problem: str) -> None:
    """None at all, backwards, between two milliseconds, and longer than a century and a half."""
    assert_refused(lambda: gcra(5, span), f"^period_ms must be .*{problem}")
    for make in (fixed_window, sliding_window, sliding_window_log, token_budget):
        assert_refused(lambda make=make: make(5, span), f"^window_ms must be .*{problem}")
