"""Waiting that ends otherwise: timeouts, cancelled tasks, full lines, errors and closed loops."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    Decision,
    Limiter,
    Limits,
    ManualClock,
    QueueFullError,
    RateLimitExceededError,
    fixed_window,
    gcra,
    rate_limit,
    token_bucket,
)
from penstock._queueing import ThreadWaiter
from tests.support.helpers import NOW, Quota, both_paths, make_limiter, run

from .waiters import QueuedCallers, WatchedClock, auntil, until, waiting


@both_paths
def test_a_wait_that_would_end_too_late_is_not_begun(path: str) -> None:
    """The error comes at once, carries the decision and names the wait."""
    limiter = make_limiter(path, gcra(1, 1_000), ManualClock(NOW))
    limiter.check("k")
    for timeout in (0, 0.5, 0.999):
        with pytest.raises(RateLimitExceededError, match="'k' was not admitted") as caught:
            limiter.acquire("k", timeout=timeout)
        assert caught.value.code == "rate_limit_exceeded"
        assert caught.value.decision == Decision(False, 1, 0, NOW + 1_000, 1_000)
    with pytest.raises(RateLimitExceededError):
        run(limiter.aacquire("k", timeout=0.5))
    assert waiting(limiter) == 0
    assert limiter.peek("k").reset_at == NOW + 1_000


@both_paths
def test_a_timeout_that_is_just_long_enough_suffices(path: str, pool: ThreadPoolExecutor) -> None:
    """Admission at the very instant of the timeout counts."""
    clock = ManualClock(NOW)
    limiter = make_limiter(path, gcra(1, 1_000), clock)
    limiter.check("k")
    future = QueuedCallers(limiter, pool).join("only", timeout=1)
    clock.advance(1_000)
    assert future.result(20).allowed


@both_paths
def test_a_timeout_in_the_middle_of_the_line_leaves_the_others_in_order(
    path: str, pool: ThreadPoolExecutor
) -> None:
    """Who gives up is passed over; what the head was told is what the error carries."""
    clock = ManualClock(NOW)
    limiter = make_limiter(path, gcra(1, 10_000), clock)
    callers = QueuedCallers(limiter, pool)
    limiter.check("k")
    first, hasty, last = (
        callers.join("first"),
        callers.join("hasty", timeout=3),
        callers.join("last"),
    )
    clock.advance(3_000)
    with pytest.raises(RateLimitExceededError) as caught:
        hasty.result(20)
    assert caught.value.decision == Decision(False, 1, 0, NOW + 10_000, 10_000)
    clock.advance(7_000)
    assert first.result(20).allowed
    clock.advance(10_000)
    assert last.result(20).allowed
    assert callers.order == ["first", "last"]


@both_paths
def test_whoever_gives_up_carries_a_denial(path: str, pool: ThreadPoolExecutor) -> None:
    """Also where one unit would be free, but not as many as those ahead are waiting for."""
    clock = ManualClock(NOW)
    limiter = make_limiter(path, token_bucket(10, 0.01), clock)
    callers = QueuedCallers(limiter, pool)
    limiter.check("k", 7)
    first = callers.join("first", cost=5)
    hasty = callers.join("hasty", cost=5, timeout=1)
    clock.advance(1_000)
    with pytest.raises(RateLimitExceededError) as caught:
        hasty.result(20)
    assert not caught.value.decision.allowed
    assert caught.value.decision.retry_after_ms == 200_000
    clock.advance(200_000)
    assert first.result(20).allowed


@both_paths
def test_a_cancelled_task_leaves_the_queue(path: str) -> None:
    """From the head or from the middle: the next one is served in its place."""

    async def use() -> None:
        clock = WatchedClock(NOW)
        limiter = make_limiter(path, gcra(1, 1_000), clock)
        await limiter.acheck("k")
        tasks = [asyncio.create_task(limiter.aacquire("k")) for _ in range(4)]
        await auntil(lambda: waiting(limiter) == 4)
        for victim in (tasks[0], tasks[2]):
            victim.cancel()
            with pytest.raises(asyncio.CancelledError):
                await victim
        assert waiting(limiter) == 2
        clock.advance(1_000)
        assert (await asyncio.wait_for(tasks[1], 20)).allowed
        clock.advance(1_000)
        assert (await asyncio.wait_for(tasks[3], 20)).allowed
        assert waiting(limiter) == 0
        assert clock.listeners == 0

    run(use())


@both_paths
def test_a_cancelled_head_spends_nothing(path: str) -> None:
    """What it waited for is there for the next one."""

    async def use() -> None:
        clock = ManualClock(NOW)
        limiter = make_limiter(path, gcra(1, 1_000), clock)
        await limiter.acheck("k")
        task = asyncio.create_task(limiter.aacquire("k"))
        await auntil(lambda: waiting(limiter) == 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        clock.advance(1_000)
        assert (await limiter.acheck("k")).allowed

    run(use())


@both_paths
def test_a_full_line_turns_newcomers_away(path: str, pool: ThreadPoolExecutor) -> None:
    """`max_waiters` may wait behind the one being served; each key has its own queue."""
    clock = ManualClock(NOW)
    limiter = make_limiter(path, gcra(1, 1_000), clock, max_waiters=2)
    callers = QueuedCallers(limiter, pool)
    limiter.check("k")
    futures = [callers.join(number) for number in range(3)]
    with pytest.raises(QueueFullError, match="2 callers already wait for 'k'") as caught:
        limiter.acquire("k")
    assert caught.value.code == "queue_full"
    with pytest.raises(QueueFullError):
        run(limiter.aacquire("k", timeout=5))
    assert limiter.acquire("other").allowed
    clock.advance(1_000)
    futures[0].result(20)
    futures.append(callers.join(3))
    for future in futures[1:]:
        clock.advance(1_000)
        assert future.result(20).allowed
    assert callers.order == [0, 1, 2, 3]


def test_with_no_waiters_allowed_one_caller_is_still_served() -> None:
    """`max_waiters=0`: nobody queues behind the one who waits."""
    clock = ManualClock(NOW)
    limiter = rate_limit(gcra(1, 1_000), clock=clock, max_waiters=0)
    with ThreadPoolExecutor(1) as pool:
        callers = QueuedCallers(limiter, pool)
        limiter.check("k")
        future = callers.join("only")
        with pytest.raises(QueueFullError):
            limiter.acquire("k")
        clock.advance(1_000)
        assert future.result(20).allowed


@both_paths
def test_a_cost_above_the_limit_is_refused_at_once(path: str) -> None:
    """No wait could ever admit it."""
    limiter = make_limiter(path, fixed_window(3, 1_000), ManualClock(NOW))
    for call in (
        lambda: limiter.acquire("k", 4),
        lambda: run(limiter.aacquire("k", 4, timeout=1)),
    ):
        with pytest.raises(ConfigInvalidError, match="a cost of 4 can never be admitted"):
            call()
    assert limiter.acquire("k", 3).allowed


@both_paths
def test_an_error_while_waiting_frees_the_queue(path: str) -> None:
    """A fault in the strategy, the store or the clock reaches the one who asked, and only that."""

    class Faulty(Quota):
        broken = True

        def check(self, state: Any, now: int, cost: int) -> Any:
            if self.broken:
                raise OSError("out of order")
            return super().check(state, now, cost)

    strategy = Faulty(1)
    limiter = make_limiter(path, strategy, ManualClock(NOW))
    with pytest.raises(OSError, match="out of order"):
        limiter.acquire("k")
    with pytest.raises(OSError, match="out of order"):
        run(limiter.aacquire("k"))
    strategy.broken = False
    assert waiting(limiter) == 0
    assert limiter.acquire("k").allowed


@pytest.mark.parametrize("timeout", [float("inf"), 1e308, 10**400, 1e12, 10**9], ids=type)
def test_a_timeout_of_ages_is_no_timeout(timeout: float) -> None:
    """However long one is ready to wait, at the head or behind it."""
    limiter = rate_limit(gcra(1, 20))
    limiter.check("k")
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(limiter.acquire, "k", timeout=timeout) for _ in range(3)]
        assert all(future.result(20).allowed for future in futures)

    async def use() -> None:
        await asyncio.gather(*(limiter.aacquire("k", timeout=timeout) for _ in range(3)))

    run(use())


def test_a_loop_that_has_closed_does_not_hold_up_a_thread() -> None:
    """Tasks that died with their loop leave the queue to those behind them."""
    clock = ManualClock(NOW)
    limiter = rate_limit(gcra(1, 1_000), clock=clock)
    limiter.check("k")

    async def abandon() -> None:
        task = asyncio.create_task(limiter.aacquire("k"))
        await auntil(lambda: waiting(limiter) == 1)
        assert not task.done()

    asyncio.run(abandon())
    assert waiting(limiter) == 0
    clock.advance(1_000)
    assert limiter.acquire("k", timeout=0).allowed


@both_paths
@pytest.mark.parametrize("behind_a_thread", [False, True])
def test_a_loop_closed_without_ending_its_tasks_does_not_hold_up_the_queue(
    path: str, behind_a_thread: bool, pool: ThreadPoolExecutor
) -> None:
    """Such a task never asks again, and nobody tells it to leave: it is passed over."""
    clock = ManualClock(NOW)
    limiter = make_limiter(path, gcra(1, 1_000), clock)
    limiter.check("k")
    first = pool.submit(limiter.acquire, "k", timeout=20) if behind_a_thread else None
    until(lambda: waiting(limiter) == int(behind_a_thread))
    loop = asyncio.new_event_loop()
    tasks: list[asyncio.Task[Decision]] = []

    async def abandon() -> None:
        tasks.append(asyncio.create_task(limiter.aacquire("k")))
        await auntil(lambda: waiting(limiter) == 1 + behind_a_thread)

    loop.run_until_complete(abandon())
    loop.close()
    last = pool.submit(limiter.acquire, "k", timeout=20)
    until(lambda: waiting(limiter) == (3 if behind_a_thread else 1))
    for waiter in [first, last] if first else [last]:
        clock.advance(1_000)
        assert waiter.result(20).allowed
    assert waiting(limiter) == 0
    # The loop would complain about it, which is of no interest here.
    tasks[0]._log_destroy_pending = False  # type: ignore[attr-defined]


def acquire_behind_somebody(limiter: Limiter, key: str) -> Decision:
    """Acquire where there is a queue, whose first waiter has gone."""
    limiter._queues.join(key, ThreadWaiter(_ended_frame()))
    return limiter.acquire(key)


def _ended_frame() -> Any:
    return sys._getframe()


class Exhausted:
    """A clock read off a list that has come to its end."""

    def now(self) -> int:
        return next(iter(()))


@both_paths
def test_a_stop_iteration_is_not_taken_for_an_answer(path: str) -> None:
    """It is how generators and coroutines return, so one that escapes from a clock or a strategy
    could pass for an admission, or hang a loop."""
    limiter = make_limiter(path, gcra(1, 1_000), Exhausted())
    for plain in (limiter.acquire, limiter.check):
        with pytest.raises(StopIteration):
            plain("k")
    with pytest.raises(RuntimeError, match="StopIteration"):
        acquire_behind_somebody(limiter, "k")
    for call in (limiter.aacquire, limiter.acheck):
        with pytest.raises(RuntimeError, match="StopIteration"):
            run(call("k"))
    assert waiting(limiter) == 0


def test_a_rate_limit_error_survives_pickling() -> None:
    """It crosses process boundaries with its decision."""
    import pickle

    error = RateLimitExceededError("too late", Decision(False, 1, 0, NOW, 5))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.decision, again.code) == (str(error), error.decision, error.code)


@pytest.mark.parametrize(
    ("window_ms", "wait"), [(250, "250 ms"), (90_000, "90 s"), (30 * 86_400_000, "30 days")]
)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("several", [False, True], ids=["limiter", "limits"])
def test_the_error_has_long_waits_in_words(
    several: bool, is_async: bool, window_ms: int, wait: str
) -> None:
    window, clock = fixed_window(1, window_ms, "first"), ManualClock(NOW)
    limiter: Any = Limits({"user": window}, clock=clock)
    keys: Any = {"user": "k"}
    if not several:
        limiter, keys = rate_limit(window, clock=clock), "k"
    assert limiter.check(keys).allowed
    with pytest.raises(RateLimitExceededError, match=f"; retry after {wait}$"):
        run(limiter.aacquire(keys, timeout=0)) if is_async else limiter.acquire(keys, timeout=0)
