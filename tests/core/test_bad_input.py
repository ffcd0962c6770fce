"""What could never be right is refused by name, with the remedy, before anything is touched."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    Decision,
    Limiter,
    ManualClock,
    Outcome,
    PenstockError,
    Store,
    Strategy,
    fixed_window,
    gcra,
    rate_limit,
    sliding_window,
    sliding_window_log,
    token_bucket,
)
from penstock.budget import token_budget
from penstock.core._validation import parse_duration_ms, parse_rate
from tests.support.helpers import HUGE, NOW, PATHS, CountingClock, Quota, make_limiter, make_store


class One(enum.IntEnum):
    """An int by inheritance only."""

    ONE = 1


BAD_COSTS = [
    0,
    -1,
    1.5,
    1.0,
    True,
    False,
    None,
    float("nan"),
    float("inf"),
    "1",
    b"1",
    2**53,
    2**64,
    10**5_000,
    -(2**70),
    [1],
    1j,
    One.ONE,
]
BAD_KEYS = [
    "",
    None,
    7,
    b"bytes",
    ("a",),
    "x" * 4_097,
    "x" * 5_000,
    "é" * 2_049,
    "鍵" * 1_366,
    "\ud800",
    "ok\udfff",
    "x" * 4_095 + "é",
]

both_paths = pytest.mark.parametrize("path", PATHS)


class Recording(Store):
    """Notes every call that reaches it."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def apply(self, key: str, transform: Any, now: int, cost: int) -> Any:
        self.calls.append(key)
        return transform.run(None, now, cost).result

    async def aapply(self, key: str, transform: Any, now: int, cost: int) -> Any:
        return self.apply(key, transform, now, cost)


def calls_with_cost(limiter: Limiter, cost: Any) -> list[Callable[[], Any]]:
    return [
        lambda: limiter.check("k", cost),
        lambda: limiter.check("k", cost=cost),
        lambda: limiter.check_many(["k"], cost),
        lambda: limiter.forecast("k", cost),
        lambda: limiter.acquire("k", cost),
        lambda: asyncio.run(_await(limiter.acheck, "k", cost)),
        lambda: asyncio.run(_await(limiter.acheck_many, ["k"], cost)),
        lambda: asyncio.run(_await(limiter.aforecast, "k", cost)),
        lambda: asyncio.run(_await(limiter.aacquire, "k", cost)),
    ]


def calls_with_key(limiter: Limiter, key: Any) -> list[Callable[[], Any]]:
    return [
        lambda: limiter.check(key),
        lambda: limiter.check_many(["fine", key]),
        lambda: limiter.peek(key),
        lambda: limiter.forecast(key),
        lambda: limiter.reset(key),
        lambda: limiter.acquire(key),
        lambda: asyncio.run(_await(limiter.acheck, key)),
        lambda: asyncio.run(_await(limiter.acheck_many, ["fine", key])),
        lambda: asyncio.run(_await(limiter.apeek, key)),
        lambda: asyncio.run(_await(limiter.aforecast, key)),
        lambda: asyncio.run(_await(limiter.areset, key)),
        lambda: asyncio.run(_await(limiter.aacquire, key)),
    ]


async def _await(call: Any, *arguments: Any) -> Any:
    return await call(*arguments)


def assert_refused(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(ConfigInvalidError, match=says) as caught:
        call()
    assert caught.value.code == "config_invalid"
    assert isinstance(caught.value, (PenstockError, ValueError))
    assert len(str(caught.value)) < 400


@both_paths
@pytest.mark.parametrize("cost", BAD_COSTS, ids=lambda cost: type(cost).__name__)
def test_a_bad_cost_is_refused_by_every_call(path: str, cost: Any) -> None:
    """In sync and async; the key's state stays as it was and the clock is not even read."""
    for strategy in (gcra(5, 1_000), sliding_window_log(5, 1_000), Quota(5)):
        store, clock = make_store(path), CountingClock()
        limiter = make_limiter(path, strategy, clock, store)
        for call in calls_with_cost(limiter, cost)[: None if strategy.name == "gcra" else 3]:
            assert_refused(call, r"^cost must be an integer from 1 to 9007199254740991, not ")
        assert clock.reads == 0
        assert len(store) == 0


@both_paths
@pytest.mark.parametrize("key", BAD_KEYS, ids=lambda key: f"{type(key).__name__}-{str(key)[:3]!a}")
def test_a_bad_key_is_refused_by_every_call(path: str, key: Any) -> None:
    """In sync and async, and in a batch before its good keys are charged."""
    store, clock = make_store(path), CountingClock()
    limiter = make_limiter(path, gcra(5, 1_000), clock, store)
    for call in calls_with_key(limiter, key):
        assert_refused(call, "^key must ")
    assert clock.reads == 0
    assert len(store) == 0


@both_paths
def test_the_text_says_what_would_be_right(path: str) -> None:
    """Each refusal names the fix."""
    limiter = make_limiter(path, gcra(5, 1_000), ManualClock(NOW))
    assert_refused(lambda: limiter.check(""), "use a constant such as 'all'")
    assert_refused(lambda: limiter.check(7), r"as in str\(user_id\)")  # type: ignore[arg-type]
    assert_refused(lambda: limiter.check("x" * 5_000), "at most 4096 bytes in UTF-8, not 5000")
    assert_refused(lambda: limiter.check("\ud800"), "lone surrogate")
    assert_refused(lambda: limiter.check_many("abc"), "list of keys, not 'abc'")
    assert_refused(lambda: limiter.check_many(b"abc"), "list of keys")  # type: ignore[arg-type]


@both_paths
def test_the_largest_cost_and_the_longest_key_are_fine(path: str) -> None:
    """The bounds themselves belong to what is allowed."""
    limiter = make_limiter(path, fixed_window(HUGE, 1_000), ManualClock(NOW))
    for key in ("x" * 4_096, "é" * 2_048, "鍵" * 1_365 + "k"):
        assert limiter.check(key, HUGE).allowed
        assert not limiter.check(key).allowed


def test_nothing_reaches_a_custom_store() -> None:
    """A backend need not defend itself."""
    store = Recording()
    limiter = Limiter(gcra(5, 1_000), store, clock=ManualClock(NOW))
    for cost in BAD_COSTS:
        for call in calls_with_cost(limiter, cost):
            assert_refused(call, "^cost must be")
    for key in BAD_KEYS:
        for call in calls_with_key(limiter, key):
            assert_refused(call, "^key must ")
    assert store.calls == []


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
    assert_refused(lambda: sliding_window_log(1_000_001, 1_000), "^limit must be")


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
        sliding_window_log(1_000_000, 2**42),
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
    assert_refused(lambda: rate_limit(thing), "strategy must be a penstock.Strategy")
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
        ("1m", "durations in words are for rate_limit"),
    ],
)
def test_a_timedelta_that_is_no_period_is_refused(span: Any, problem: str) -> None:
    """None at all, backwards, between two milliseconds, and longer than a century and a half."""
    assert_refused(lambda: gcra(5, span), f"^period_ms must be .*{problem}")
    for make in (fixed_window, sliding_window, sliding_window_log, token_budget):
        assert_refused(lambda make=make: make(5, span), f"^window_ms must be .*{problem}")


def test_options_of_a_limiter_are_checked_when_it_is_made() -> None:
    """Store, clock, prefix and max_waiters: the mistake shows where it was made."""
    assert_refused(lambda: rate_limit("5/s", store={}), "store must be a penstock.Store")  # type: ignore[arg-type]
    assert_refused(lambda: rate_limit("5/s", clock=5), "clock must be something with a now")  # type: ignore[arg-type]
    assert_refused(lambda: rate_limit("5/s", prefix=5), "prefix must be a string")  # type: ignore[arg-type]
    assert_refused(lambda: rate_limit("5/s", prefix="x" * 4_097), "prefix must be at most")
    assert_refused(lambda: rate_limit("5/s", prefix="\ud800"), "lone surrogate")
    for bad in (-1, 1.5, True, "3"):
        assert_refused(lambda bad=bad: rate_limit("5/s", max_waiters=bad), "^max_waiters must be")


def test_a_clock_beside_a_store_that_has_its_own_is_refused() -> None:
    """It would be ignored, and nobody would notice."""

    class Server(Recording):
        reads_own_clock = True

    assert_refused(lambda: rate_limit("5/s", store=Server(), clock=ManualClock(NOW)), "server's")
    rate_limit("5/s", store=Server())


@both_paths
@pytest.mark.parametrize("reading", [-1, 1.5, None, "now", True, 2**46 + 1, 1_700_000_000_000_000])
def test_a_clock_that_tells_nonsense_is_caught(path: str, reading: Any) -> None:
    """Microseconds for instance: no state may hold an instant that never comes."""

    class Broken:
        def now(self) -> Any:
            return reading

    store = make_store(path)
    limiter = make_limiter(path, gcra(5, 1_000), Broken(), store)
    for call in (lambda: limiter.check("k"), lambda: limiter.peek("k")):
        assert_refused(call, "now must be epoch milliseconds")
    assert_refused(lambda: limiter.check_many(["k"]), "now must be epoch milliseconds")
    assert len(store) == 0


@pytest.mark.parametrize("timeout", [-1, -0.001, float("nan"), "1", True, None])
def test_a_nonsense_timeout_is_refused(timeout: Any) -> None:
    """None means no timeout; anything else is a number of seconds from 0 up."""
    limiter = rate_limit("5/s", clock=ManualClock(NOW))
    if timeout is None:
        assert limiter.acquire("k", timeout=timeout).allowed
        return
    assert_refused(lambda: limiter.acquire("k", timeout=timeout), "^timeout must be None or secon")
    assert limiter.peek("k").remaining == 5


@pytest.mark.parametrize("value", [-1, 1.5, True, None, "0", 2**46 + 1])
def test_a_manual_clock_refuses_what_is_no_instant(value: Any) -> None:
    """In its constructor, in set and in advance; it stays where it was."""
    clock = ManualClock(NOW)
    assert_refused(lambda: ManualClock(value), "now must be epoch milliseconds")
    assert_refused(lambda: clock.set(value), "now must be epoch milliseconds")
    assert_refused(lambda: clock.advance(value), "must be")
    assert clock.now() == NOW


def test_a_strategy_without_check_cannot_be_made() -> None:
    """The one method is required, and Python says so."""

    class Nothing(Strategy):
        pass

    with pytest.raises(TypeError, match="check"):
        Nothing()  # type: ignore[abstract]


@both_paths
def test_a_custom_strategy_that_fails_changes_nothing(path: str) -> None:
    """Its error arrives as it is and the key goes on."""

    class Moody(Quota):
        def check(self, state: Any, now: int, cost: int) -> Outcome[Decision]:
            if cost == 13:
                raise LookupError("thirteen")
            return super().check(state, now, cost)

    limiter = make_limiter(path, Moody(5), ManualClock(NOW))
    limiter.check("k", 2)
    with pytest.raises(LookupError, match="thirteen"):
        limiter.check("k", 13)
    assert limiter.check("k", 3).remaining == 0
