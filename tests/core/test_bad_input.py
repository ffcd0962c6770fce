"""What could never be right is refused by name, with the remedy, before anything is touched."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    Decision,
    Limiter,
    ManualClock,
    Outcome,
    Store,
    Strategy,
    fixed_window,
    gcra,
    rate_limit,
    sliding_window_log,
)
from penstock.core._durations import wait_in_words
from tests.support.helpers import (
    HUGE,
    NOW,
    CountingClock,
    Quota,
    awaited,
    both_paths,
    make_limiter,
    make_store,
)

from .refusals import assert_refused


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
        lambda: asyncio.run(awaited(limiter.acheck, "k", cost)),
        lambda: asyncio.run(awaited(limiter.acheck_many, ["k"], cost)),
        lambda: asyncio.run(awaited(limiter.aforecast, "k", cost)),
        lambda: asyncio.run(awaited(limiter.aacquire, "k", cost)),
    ]


def calls_with_key(limiter: Limiter, key: Any) -> list[Callable[[], Any]]:
    return [
        lambda: limiter.check(key),
        lambda: limiter.check_many(["fine", key]),
        lambda: limiter.peek(key),
        lambda: limiter.forecast(key),
        lambda: limiter.reset(key),
        lambda: limiter.acquire(key),
        lambda: asyncio.run(awaited(limiter.acheck, key)),
        lambda: asyncio.run(awaited(limiter.acheck_many, ["fine", key])),
        lambda: asyncio.run(awaited(limiter.apeek, key)),
        lambda: asyncio.run(awaited(limiter.aforecast, key)),
        lambda: asyncio.run(awaited(limiter.areset, key)),
        lambda: asyncio.run(awaited(limiter.aacquire, key)),
    ]


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


def test_options_of_a_limiter_are_checked_when_it_is_made() -> None:
    """Store, clock, prefix and max_waiters: the mistake shows where it was made."""
    assert_refused(lambda: rate_limit("5/s", store={}), "store must be a penstock.Store")  # type: ignore[arg-type]
    assert_refused(lambda: rate_limit("5/s", clock=5), "clock must be an object with a now")  # type: ignore[arg-type]
    assert_refused(lambda: rate_limit("5/s", prefix=5), "prefix must be a string")  # type: ignore[arg-type]
    assert_refused(lambda: rate_limit("5/s", prefix="x" * 4_097), "prefix must be at most")
    assert_refused(lambda: rate_limit("5/s", prefix="\ud800"), "lone surrogate")
    for bad in (-1, 1.5, True, "3"):
        assert_refused(lambda bad=bad: rate_limit("5/s", max_waiters=bad), "^max_waiters must be")


def test_a_clock_beside_a_store_that_has_its_own_is_refused() -> None:
    """It would be ignored, and nobody would notice."""

    class Server(Recording):
        reads_own_clock = True

    assert_refused(
        lambda: rate_limit("5/s", store=Server(), clock=ManualClock(NOW)), "of its server"
    )
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
    assert_refused(
        lambda: limiter.acquire("k", timeout=timeout), "^timeout must be None or a number"
    )
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


@pytest.mark.parametrize("text", ["2/minute;5/hour", "2/minute, 5/hour", "2/minute and 5/hour"])
def test_several_rates_in_one_text_are_refused_with_the_way_to_write_them(text: str) -> None:
    """As one `Limits`, or as several limits of an integration."""
    with pytest.raises(ConfigInvalidError, match="several limits are several rules") as refused:
        rate_limit(text)
    assert "Limits({'a': '2/minute', 'b': '5/hour'})" in str(refused.value)


def test_long_waits_are_told_in_days() -> None:
    """Rounded up, in the unit that people would use."""
    waits = {1: "1 s", 90_000: "90 s", 180_001: "4 minutes", 7_200_000: "2 hours"}
    waits |= {172_800_000: "2 days", 1_080_529_000: "13 days"}
    assert {ms: wait_in_words(ms) for ms in waits} == waits
    assert wait_in_words(9_999, exact=True) == "9999 ms"
    assert wait_in_words(10_000, exact=True) == "10 s"
