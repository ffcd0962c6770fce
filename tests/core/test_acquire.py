"""Waiting: in turn, per key, sync and async, for exactly as long as it takes.

Time is a ManualClock's but for the few tests that say otherwise, so the only real waiting is for
threads to get where they are going.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock import (
    Decision,
    ManualClock,
    Outcome,
    RateLimitExceededError,
    Strategy,
    fixed_window,
    gcra,
    sliding_window,
    token_bucket,
)
from tests.support.helpers import NOW, Quota, both_paths, make_limiter, run

from .waiters import QueuedCallers, WatchedClock, auntil, until, waiting


@both_paths
def test_threads_are_served_in_the_order_they_came(path: str, pool: ThreadPoolExecutor) -> None:
    """Each advance of the clock admits the next in the queue and nobody else."""
    clock = ManualClock(NOW)
    limiter = make_limiter(path, gcra(1, 1_000), clock)
    callers = QueuedCallers(limiter, pool)
    limiter.check("k")
    futures = [callers.join(number) for number in range(6)]
    for number, future in enumerate(futures):
        clock.advance(999)
        assert not future.done()
        clock.advance(1)
        assert future.result(20).allowed
        assert callers.order == list(range(number + 1))
    assert waiting(limiter) == 0


@both_paths
def test_tasks_are_served_in_the_order_they_came(path: str) -> None:
    """The same, on one loop."""

    async def use() -> None:
        clock, order = ManualClock(NOW), []
        limiter = make_limiter(path, gcra(1, 1_000), clock)
        await limiter.acheck("k")

        async def acquire(number: int) -> None:
            await limiter.aacquire("k")
            order.append(number)

        tasks = [asyncio.create_task(acquire(number)) for number in range(6)]
        await auntil(lambda: waiting(limiter) == 6)
        for number, task in enumerate(tasks):
            clock.advance(1_000)
            await asyncio.wait_for(task, 20)
            assert order == list(range(number + 1))
        assert waiting(limiter) == 0

    run(use())


@both_paths
def test_threads_and_tasks_wait_in_one_queue(path: str, pool: ThreadPoolExecutor) -> None:
    """Whoever came first is served first, whatever it is."""

    async def use() -> None:
        clock = ManualClock(NOW)
        limiter = make_limiter(path, gcra(1, 1_000), clock)
        callers = QueuedCallers(limiter, pool)
        limiter.check("k")

        async def acquire(number: int) -> Decision:
            decision = await limiter.aacquire("k")
            callers.order.append(number)
            return decision

        futures: list[Any] = []
        for number in range(8):
            if number % 2:
                futures.append(asyncio.create_task(acquire(number)))
                await auntil(lambda number=number: waiting(limiter) == number + 1)
            else:
                futures.append(asyncio.wrap_future(callers.join(number)))
        for number, future in enumerate(futures):
            clock.advance(1_000)
            assert (await asyncio.wait_for(future, 20)).allowed
            assert callers.order == list(range(number + 1))

    run(use())


@both_paths
def test_a_waiter_on_one_key_never_delays_another_key(path: str, pool: ThreadPoolExecutor) -> None:
    """While one key is exhausted, others are acquired at once, sync and async."""
    clock = ManualClock(NOW)
    limiter = make_limiter(path, gcra(1, 1_000), clock)
    callers = QueuedCallers(limiter, pool)
    limiter.check("k")
    stuck = [callers.join(number) for number in range(3)]
    for number in range(50):
        assert limiter.acquire(f"other {number}").allowed

    async def use() -> None:
        for number in range(50):
            assert (await limiter.aacquire(f"another {number}")).allowed

    run(use())
    assert not any(future.done() for future in stuck)
    for future in stuck:
        clock.advance(1_000)
        future.result(20)


@both_paths
def test_acquire_returns_at_once_when_there_is_room(path: str) -> None:
    """No waiting, no trace in the queue or on the clock."""
    clock = WatchedClock(NOW)
    limiter = make_limiter(path, fixed_window(3, 1_000), clock)
    assert [limiter.acquire("k").remaining for _ in range(3)] == [2, 1, 0]
    assert waiting(limiter) == 0
    assert clock.listeners == 0


@both_paths
def test_a_reset_lets_the_first_waiter_ask_again(path: str, pool: ThreadPoolExecutor) -> None:
    """What it was told is void; those behind it follow in turn."""
    clock = ManualClock(NOW)
    limiter = make_limiter(path, gcra(1, 3_600_000), clock)
    callers = QueuedCallers(limiter, pool)
    limiter.check("k")
    first, second = callers.join("first"), callers.join("second")
    limiter.reset("k")
    assert first.result(20).allowed
    until(lambda: limiter._queues._queues.get("k").last_denial is not None)
    run(limiter.areset("k"))
    assert second.result(20).allowed
    assert callers.order == ["first", "second"]


@both_paths
def test_waiting_goes_on_as_long_as_the_strategy_says_so(
    path: str, pool: ThreadPoolExecutor
) -> None:
    """A sliding window often names only the next tick: acquire asks again there."""
    clock = ManualClock(NOW)
    limiter = make_limiter(path, sliding_window(4, 1_000, buckets=2), clock)
    limiter.check("k", 4)
    future = QueuedCallers(limiter, pool).join("patient", cost=3)
    asked = 0
    while not future.done():
        clock.advance(1)
        asked += 1
        assert asked < 2_000
        if asked % 50 == 0:
            until(lambda: future.done() or waiting(limiter) == 1)
            threading.Event().wait(0.002)
    assert future.result(20).allowed
    assert clock.now() >= NOW + 1_000


@both_paths
def test_a_clock_that_goes_back_does_not_let_anybody_in(
    path: str, pool: ThreadPoolExecutor
) -> None:
    """It only makes the wait longer; nobody is lost on the way."""
    clock = ManualClock(NOW)
    limiter = make_limiter(path, gcra(1, 1_000), clock)
    limiter.check("k")
    future = QueuedCallers(limiter, pool).join("patient")
    clock.set(NOW - 5_000)
    clock.advance(5_999)
    assert not future.done()
    clock.advance(1)
    assert future.result(20).allowed


@both_paths
def test_a_custom_strategy_can_be_waited_for(path: str, pool: ThreadPoolExecutor) -> None:
    """One that never admits again times out with its own decision."""
    clock = ManualClock(NOW)
    limiter = make_limiter(path, Quota(1, 10**6), clock)
    limiter.check("k")
    future = QueuedCallers(limiter, pool).join("hopeless", timeout=0.01)
    for _ in range(200):
        if future.done():
            break
        clock.advance(1)
        threading.Event().wait(0.001)
    with pytest.raises(RateLimitExceededError) as caught:
        future.result(20)
    assert caught.value.decision.retry_after_ms == 1


@both_paths
def test_on_real_time_acquire_paces_its_callers(path: str) -> None:
    """Ten units at one per 5 ms take as long as they should."""
    limiter = make_limiter(path, gcra(1, 5))
    start = time.monotonic()
    for _ in range(10):
        assert limiter.acquire("k").allowed
    assert 0.040 <= time.monotonic() - start < 5

    async def use() -> None:
        start = time.monotonic()
        await asyncio.gather(*(limiter.aacquire("j") for _ in range(10)))
        assert 0.040 <= time.monotonic() - start < 5

    run(use())


@both_paths
def test_on_real_time_threads_and_tasks_share_the_pace(path: str, pool: ThreadPoolExecutor) -> None:
    """Whoever asks, and however: nine units beyond the first take nine intervals."""
    limiter = make_limiter(path, gcra(1, 5))

    async def use() -> None:
        start = time.monotonic()
        threads = [asyncio.wrap_future(pool.submit(limiter.acquire, "k")) for _ in range(5)]
        await asyncio.gather(*threads, *(limiter.aacquire("k") for _ in range(5)))
        assert 0.040 <= time.monotonic() - start < 5

    run(use())
    assert waiting(limiter) == 0


@both_paths
def test_a_bucket_that_names_a_millisecond_too_little_is_waited_for(
    path: str, pool: ThreadPoolExecutor
) -> None:
    """A timeline found by random search: the caller that obeys is denied once more, by 1 ms. A
    timeout that covers that millisecond suffices."""
    clock = ManualClock(NOW)
    limiter = make_limiter(path, token_bucket(5, 4.0), clock)
    for gap, cost in [(256, 2), (178, 4), (68, 4), (29, 1), (217, 3), (69, 4)]:
        clock.advance(gap)
        last = limiter.check("k", cost)
    assert (last.allowed, last.retry_after_ms) == (False, 689)
    future = QueuedCallers(limiter, pool).join("patient", cost=4, timeout=0.69)
    clock.advance(689)
    again = limiter.check("k", 4)
    assert (again.allowed, again.retry_after_ms) == (False, 1)
    assert not future.done()
    clock.advance(1)
    assert future.result(20).allowed


class Hasty(Strategy):
    """Denies, and says that there is nothing to wait for."""

    limit = 1

    def check(self, state: Any, now: int, cost: int) -> Outcome[Decision]:
        return Outcome(state, Decision(False, 1, 0, now, 0), 0, False)


@both_paths
def test_a_denial_without_a_wait_does_not_spin(path: str) -> None:
    """The loop stays free to do something else, such as to give up."""
    limiter = make_limiter(path, Hasty())

    async def use() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(limiter.aacquire("k"), 0.05)

    run(use())
