"""Limits that a request brings along."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from penstock import ConfigInvalidError, Decision, MemoryStore, UnsupportedError
from penstock.service._inline import MAX_POLICIES, MAX_WINDOW_MS, most_units
from penstock.strategies import SlidingWindowLog
from tests.service.worlds import NOW, FragileStore, service_on

STRATEGIES = ("fixed_window", "gcra", "sliding_window", "sliding_window_log", "token_bucket")


@pytest.mark.parametrize("strategy", [*STRATEGIES, "slidingWindowLog", "tokenBucket"])
def test_every_strategy_can_be_brought_along(strategy: str) -> None:
    """So many per window, in both spellings."""
    service, _ = service_on()

    async def main() -> list[bool]:
        checks = [service.check_inline("k", 3, 60_000, 1, strategy) for _ in range(4)]
        return [bool(await check) for check in checks]

    assert asyncio.run(main()) == [True, True, True, False]


def test_the_window_opens_with_the_first_request() -> None:
    """As that of the default policy."""
    service, clock = service_on()
    clock.advance(7)
    decision = asyncio.run(service.check_inline("k", 2, 60_000, 2))
    assert decision == Decision(True, 2, 0, NOW + 7 + 60_000, 0)


def test_limits_that_differ_count_apart_and_equal_ones_together() -> None:
    """The limit is part of the name under which it counts."""
    service, _ = service_on()

    async def main() -> None:
        assert await service.check_inline("k", 2, 60_000, 2)
        assert await service.check_inline("k", 3, 60_000, 3)
        assert not await service.check_inline("k", 2, 60_000, 1)

    asyncio.run(main())
    assert service.snapshot().inline_policies == 2


def test_there_is_a_bound_to_how_many_are_kept_and_nothing_counted_is_lost() -> None:
    """What is dropped is the limiter and not its counts."""
    service, _ = service_on()

    async def main() -> None:
        await service.check_inline("k", 1, 60_000)
        for limit in range(2, MAX_POLICIES + 50):
            await service.check_inline("k", limit, 60_000)
        assert service.snapshot().inline_policies == MAX_POLICIES
        assert not await service.check_inline("k", 1, 60_000)

    asyncio.run(main())


def test_made_up_limits_cannot_push_out_named_policies() -> None:
    """They live in a table of their own."""
    service, _ = service_on(config=None, store=MemoryStore(max_keys=10))

    async def main() -> None:
        for _ in range(10):
            await service.check("default", "victim")
        for number in range(100):
            await service.check_inline(f"k{number}", 5, 60_000)
        assert not await service.check("default", "victim")

    asyncio.run(main())


def test_they_can_be_turned_off() -> None:
    """The error says what to do instead."""
    service, _ = service_on(inline=False)
    with pytest.raises(UnsupportedError, match="name a policy"):
        asyncio.run(service.check_inline("k", 1, 1))


def test_they_are_counted_together() -> None:
    """Under one name, since their number is not ours to choose."""
    service, _ = service_on(FragileStore())
    asyncio.run(service.check_inline("k", 1, 1_000))
    asyncio.run(service.check_inline("k", 2, 1_000))
    assert service.snapshot().policies["inline"]["allowed"] == 2


@pytest.mark.parametrize(
    ("limit", "window_ms", "strategy"),
    [
        (0, 1, "fixed_window"),
        (True, 1, "fixed_window"),
        (1.0, 1, "fixed_window"),
        (1, 0, "token_bucket"),
        (1, "1", "token_bucket"),
        ([1], 1, "gcra"),
        (1, 1, "nope"),
        (1, 1, None),
        (1, 1, ["gcra"]),
        (most_units(SlidingWindowLog) + 1, 1, "sliding_window_log"),
        (1, MAX_WINDOW_MS + 1, "fixed_window"),
        (1, MAX_WINDOW_MS + 1, "token_bucket"),
        (2**60, 1, "gcra"),
    ],
)
def test_impossible_limits_are_refused_and_not_kept(
    limit: Any, window_ms: Any, strategy: Any
) -> None:
    """Even where they equal a possible one, as True equals 1."""
    service, _ = service_on()
    asyncio.run(service.check_inline("k", 1, 1))
    with pytest.raises(ConfigInvalidError):
        asyncio.run(service.check_inline("k", limit, window_ms, 1, strategy))
    assert service.snapshot().inline_policies == 1


def test_what_a_request_may_leave_in_a_store_is_bounded_in_size_and_time() -> None:
    """The refusal says what to use instead; what is just within the bounds is decided."""
    service, _ = service_on()

    async def main() -> None:
        with pytest.raises(ConfigInvalidError, match=r"30 days.*policy file"):
            await service.check_inline("k", 5, 2**42)
        with pytest.raises(ConfigInvalidError, match=r"at most 20 .*use sliding_window"):
            await service.check_inline("k", 1_000, 60_000, 1_000, "sliding_window_log")
        assert await service.check_inline("k", 5, MAX_WINDOW_MS)
        log = (
            "k",
            most_units(SlidingWindowLog),
            MAX_WINDOW_MS,
            most_units(SlidingWindowLog),
            "sliding_window_log",
        )
        assert await service.check_inline(*log)

    asyncio.run(main())


MANY_FIGURES = """
import asyncio
from penstock import ManualClock
from penstock.config import parse_policies
from penstock.service import build_service

FILE = '''
version: 1
limiters:
  api:
    plans: {by: plan, free: {}, pro: {user: {limit: 1000, burst: 5000}}}
    limits:
      user: {by: user, strategy: gcra, limit: 10, period: 1m}
'''

async def main():
    clock = ManualClock(1_700_000_000_000)
    service = build_service(clock=clock)
    for limit in range(1, 33_500):
        service.inline(limit, 3_600_000 + limit, "gcra").decide("k", 1)
    service = build_service(parse_policies(FILE, "test"), clock=clock)
    await service.pause("api", clock.now() + 100_000, attributes={"user": "u", "plan": "free"})
    for told in ({"user": "u", "plan": "free"}, {"user": "u", "plan": "pro"}):
        assert not (await service.peek_all("api", told)).verdict, told

asyncio.run(main())
"""


def test_invented_limits_do_not_use_up_the_numbers_of_figures() -> None:
    """Of which the compiled table has a bounded count: a pause would not hold under a plan."""
    done = subprocess.run(
        [sys.executable, "-c", MANY_FIGURES], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
