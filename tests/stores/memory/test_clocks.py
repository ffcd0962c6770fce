"""The clocks of limiters on one MemoryStore show the same time, compiled and interpreted."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    Limits,
    ManualClock,
    MemoryStore,
    SystemClock,
    gcra,
    rate_limit,
)
from penstock.concurrency import ConcurrencyLimiter
from penstock.leasing import two_tier

DAY = 86_400_000
START = 1_700_000_000_000


class WallClock:
    """A user's clock, some ms from the system's."""

    def __init__(self, apart_ms: int = 0) -> None:
        self._apart_ms = apart_ms

    def now(self) -> int:
        return SystemClock().now() + self._apart_ms


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ManualClock(START), ManualClock(START + 400 * DAY)),
        (ManualClock(START), None),
        (None, ManualClock(START)),
        (WallClock(), WallClock(DAY)),
        (None, WallClock(-DAY)),
    ],
)
@pytest.mark.parametrize(
    "make",
    [
        lambda store, clock: rate_limit("5/minute", store=store, clock=clock, prefix="other"),
        lambda store, clock: two_tier("5/minute", store, clock=clock, prefix="other"),
        lambda store, clock: Limits({"user": "5/minute"}, store=store, clock=clock),
        lambda store, clock: ConcurrencyLimiter(store=store, clock=clock),
    ],
    ids=["rate_limit", "two_tier", "Limits", "ConcurrencyLimiter"],
)
def test_a_limiter_whose_clock_shows_another_time_is_refused(
    make: Any, one: Any, other: Any
) -> None:
    """The sweep by the later clock would drop what still counts by the earlier one."""
    store = MemoryStore()
    kept = rate_limit("5/minute", store=store, prefix="one", clock=one)
    assert kept.check("k")
    with pytest.raises(ConfigInvalidError, match=r"same clock to both, or give each a MemoryStore"):
        make(store, other)
    assert kept.check("k").remaining == 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (None, None),
        (None, SystemClock()),
        (WallClock(), WallClock(5)),
        (None, WallClock()),
        (ManualClock(START), ManualClock(START)),
    ],
)
def test_clocks_that_show_the_same_time_share_a_store(one: Any, other: Any) -> None:
    """Whichever object they are."""
    store = MemoryStore()
    first = rate_limit("5/minute", store=store, prefix="one", clock=one)
    second = rate_limit("5/minute", store=store, prefix="other", clock=other)
    assert first.check("k")
    assert second.check("k").remaining == 4


def test_a_clock_that_is_no_longer_used_does_not_matter() -> None:
    """A clock that replaces it may have been set back."""
    store = MemoryStore()
    rate_limit("5/minute", store=store, clock=ManualClock(START + DAY))
    gc.collect()
    assert rate_limit("5/minute", store=store, clock=ManualClock(START)).check("k")


def test_stores_of_their_own_keep_clocks_apart() -> None:
    """The fix that the error names: counts by the earlier clock stay, whatever the later one
    sweeps."""
    early, late = ManualClock(START), ManualClock(START + 400 * DAY)
    one = rate_limit(gcra(5, DAY), store=MemoryStore(), clock=early)
    other = rate_limit(gcra(5, DAY), store=MemoryStore(), clock=late)
    for number in range(3_000):
        assert one.check(f"k{number}", 5)
        assert other.check(f"k{number}", 5)
    late.advance(10 * DAY)
    assert other.check("new")
    assert one.peek("k7").retry_after_ms == DAY // 5
    assert one.check("new").remaining == 4
