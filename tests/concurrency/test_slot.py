"""A slot as a context manager."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from penstock import ManualClock, RateLimitExceededError
from penstock.concurrency import Aimd, ConcurrencyLimiter
from tests.support.helpers import NOW


def limiter_of(limit: int, clock: ManualClock | None = None) -> ConcurrencyLimiter:
    law = Aimd(1, 100, initial_limit=limit, backoff=0.5, timeout_ms=1_000)
    return ConcurrencyLimiter(law, clock=clock or ManualClock(NOW))


def test_a_slot_is_held_while_the_block_runs() -> None:
    """And has no deadline: its holder cannot die alone."""
    clock = ManualClock(NOW)
    limiter = limiter_of(1, clock)
    with limiter.slot():
        clock.advance(3_600_000)
        with pytest.raises(RateLimitExceededError, match="no slot is free"), limiter.slot():
            pass
        assert limiter.in_flight == 1
    assert limiter.in_flight == 0


def test_tasks_hold_slots_the_same_way() -> None:
    """With `async with`."""
    limiter = limiter_of(2)

    async def work(gate: asyncio.Event) -> None:
        async with limiter.slot():
            await gate.wait()

    async def main() -> None:
        gate = asyncio.Event()
        tasks = [asyncio.create_task(work(gate)) for _ in range(3)]
        await asyncio.sleep(0)
        assert limiter.in_flight == 2
        gate.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(outcome, RateLimitExceededError) for outcome in outcomes) == 1

    asyncio.run(main())
    assert limiter.in_flight == 0


def test_a_cancelled_task_gives_its_slot_back() -> None:
    """Cancellation is one more way to leave the block."""
    limiter = limiter_of(1)

    async def main() -> None:
        async def work() -> None:
            async with limiter.slot():
                await asyncio.sleep(3_600)

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        assert limiter.in_flight == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    assert limiter.in_flight == 0


@pytest.mark.parametrize(
    ("error", "limit"), [(TimeoutError, 5), (asyncio.TimeoutError, 5), (ValueError, 10)]
)
def test_a_timeout_is_a_drop_and_other_errors_say_nothing(
    error: type[Exception], limit: int
) -> None:
    """Only what points at overload contracts the ceiling."""
    limiter = limiter_of(10)
    with pytest.raises(error), limiter.slot():
        raise error
    assert limiter.limit == limit


def test_a_block_that_ends_well_is_a_sample() -> None:
    """Of the time it took."""
    clock = ManualClock(NOW)
    limiter = limiter_of(10, clock)
    with contextlib.ExitStack() as others:
        for _ in range(5):
            others.enter_context(limiter.slot())
        with limiter.slot():
            clock.advance(10)
        assert limiter.limit == 11


def test_a_block_may_say_that_it_was_dropped() -> None:
    """Where the sign of overload is not an exception."""
    limiter = limiter_of(10)
    with limiter.slot() as slot:
        slot.drop()
    assert limiter.limit == 5


def test_a_slot_cannot_be_entered_twice_at_once() -> None:
    """It would lose one of the two."""
    limiter = limiter_of(10)
    slot = limiter.slot()
    with slot, pytest.raises(RuntimeError, match="this Slot is in use"), slot:
        pass
    with slot:
        assert limiter.in_flight == 1
