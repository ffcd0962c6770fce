"""Waiting: in turn, per key, sync and async, for exactly as long as it takes.

Time is a ManualClock's but for the few tests that say otherwise, so the only real waiting is for
threads to get where they are going.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    Decision,
    Limiter,
    ManualClock,
    Outcome,
    QueueFullError,
    RateLimitExceededError,
    Strategy,
    fixed_window,
    gcra,
    rate_limit,
    sliding_window,
    token_bucket,
)
from penstock._queueing import ThreadWaiter
from tests.support.helpers import NOW, PATHS, Quota, make_limiter, run

both_paths = pytest.mark.parametrize("path", PATHS)


def until(condition: Callable[[], bool]) -> None:
    """Wait for other threads to bring something about."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.0005)


async def auntil(condition: Callable[[], bool]) -> None:
    """The awaitable twin of `until`."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.0005)


def waiting(limiter: Limiter) -> int:
    return len(limiter._queues)


class Line:
    """Threads that join one limiter's line, one after the other."""

    def __init__(self, limiter: Limiter, pool: ThreadPoolExecutor) -> None:
        self.limiter, self.pool = limiter, pool
        self.order: list[Any] = []

    def join(self, name: Any, key: str = "k", **options: Any) -> Future[Decision]:
        before = waiting(self.limiter)

        def stand() -> Decision:
            decision = self.limiter.acquire(key, **options)
            self.order.append(name)
            return decision

        future = self.pool.submit(stand)
        until(lambda: waiting(self.limiter) > before or future.done())
        return future


@pytest.fixture
def pool() -> Any:
    """Threads enough for every line here."""
    with ThreadPoolExecutor(12) as pool:
        yield pool


@both_paths
def test_threads_are_served_in_the_order_they_came(path: str, pool: ThreadPoolExecutor) -> None:
    """Each advance of the clock admits the next in line and nobody else."""
    clock = ManualClock(NOW)
    limiter = make_limiter(path, gcra(1, 1_000), clock)
    line = Line(limiter, pool)
    limiter.check("k")
    futures = [line.join(number) for number in range(6)]
    for number, future in enumerate(futures):
        clock.advance(999)
        assert not future.done()
        clock.advance(1)
        assert future.result(20).allowed
        assert line.order == list(range(number + 1))
    assert waiting(limiter) == 0


@both_paths
def test_tasks_are_served_in_the_order_they_came(path: str) -> None:
    """The same, on one loop."""

    async def use() -> None:
        clock, order = ManualClock(NOW), []
        limiter = make_limiter(path, gcra(1, 1_000), clock)
        await limiter.acheck("k")

        async def stand(number: int) -> None:
            await limiter.aacquire("k")
            order.append(number)

        tasks = [asyncio.create_task(stand(number)) for number in range(6)]
        await auntil(lambda: waiting(limiter) == 6)
        for number, task in enumerate(tasks):
            clock.advance(1_000)
            await asyncio.wait_for(task, 20)
            assert order == list(range(number + 1))
        assert waiting(limiter) == 0

    run(use())


@both_paths
def test_threads_and_tasks_stand_in_one_line(path: str, pool: ThreadPoolExecutor) -> None:
    """Whoever came first is served first, whatever it is."""

    async def use() -> None:
        clock = ManualClock(NOW)
        limiter = make_limiter(path, gcra(1, 1_000), clock)
        line = Line(limiter, pool)
        limiter.check("k")

        async def stand(number: int) -> Decision:
            decision = await limiter.aacquire("k")
            line.order.append(number)
            return decision

        futures: list[Any] = []
        for number in range(8):
            if number % 2:
                futures.append(asyncio.create_task(stand(number)))
                await auntil(lambda number=number: waiting(limiter) == number + 1)
            else:
                futures.append(asyncio.wrap_future(line.join(number)))
        for number, future in enumerate(futures):
            clock.advance(1_000)
            assert (await asyncio.wait_for(future, 20)).allowed
            assert line.order == list(range(number + 1))

    run(use())


@both_paths
def test_a_waiter_on_one_key_never_delays_another_key(path: str, pool: ThreadPoolExecutor) -> None:
    """While one key is exhausted, others are acquired at once, sync and async."""
    clock = ManualClock(NOW)
    limiter = make_limiter(path, gcra(1, 1_000), clock)
    line = Line(limiter, pool)
    limiter.check("k")
    stuck = [line.join(number) for number in range(3)]
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
    """No waiting, no trace in the line or on the clock."""
    clock = ManualClock(NOW)
    limiter = make_limiter(path, fixed_window(3, 1_000), clock)
    assert [limiter.acquire("k").remaining for _ in range(3)] == [2, 1, 0]
    assert waiting(limiter) == 0
    assert not clock._listeners


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
    future = Line(limiter, pool).join("only", timeout=1)
    clock.advance(1_000)
    assert future.result(20).allowed


@both_paths
def test_a_timeout_in_the_middle_of_the_line_leaves_the_others_in_order(
    path: str, pool: ThreadPoolExecutor
) -> None:
    """Who gives up is passed over; what the head was told is what the error carries."""
    clock = ManualClock(NOW)
    limiter = make_limiter(path, gcra(1, 10_000), clock)
    line = Line(limiter, pool)
    limiter.check("k")
    first, hasty, last = line.join("first"), line.join("hasty", timeout=3), line.join("last")
    clock.advance(3_000)
    with pytest.raises(RateLimitExceededError) as caught:
        hasty.result(20)
    assert caught.value.decision == Decision(False, 1, 0, NOW + 10_000, 10_000)
    clock.advance(7_000)
    assert first.result(20).allowed
    clock.advance(10_000)
    assert last.result(20).allowed
    assert line.order == ["first", "last"]


@both_paths
def test_whoever_gives_up_carries_a_denial(path: str, pool: ThreadPoolExecutor) -> None:
    """Also where one unit would be free, but not as many as those ahead are waiting for."""
    clock = ManualClock(NOW)
    limiter = make_limiter(path, token_bucket(10, 0.01), clock)
    line = Line(limiter, pool)
    limiter.check("k", 7)
    first = line.join("first", cost=5)
    hasty = line.join("hasty", cost=5, timeout=1)
    clock.advance(1_000)
    with pytest.raises(RateLimitExceededError) as caught:
        hasty.result(20)
    assert not caught.value.decision.allowed
    assert caught.value.decision.retry_after_ms == 200_000
    clock.advance(200_000)
    assert first.result(20).allowed


@both_paths
def test_a_reset_lets_the_first_in_line_ask_again(path: str, pool: ThreadPoolExecutor) -> None:
    """What it was told is void; those behind it follow in turn."""
    clock = ManualClock(NOW)
    limiter = make_limiter(path, gcra(1, 3_600_000), clock)
    line = Line(limiter, pool)
    limiter.check("k")
    first, second = line.join("first"), line.join("second")
    limiter.reset("k")
    assert first.result(20).allowed
    until(lambda: limiter._queues._queues.get("k").last_denial is not None)
    run(limiter.areset("k"))
    assert second.result(20).allowed
    assert line.order == ["first", "second"]


@both_paths
def test_a_cancelled_task_leaves_the_line(path: str) -> None:
    """From the head or from the middle: the next one is served in its place."""

    async def use() -> None:
        clock = ManualClock(NOW)
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
        assert not clock._listeners

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
    """`max_waiters` may stand behind the one being served; each key has its own line."""
    clock = ManualClock(NOW)
    limiter = make_limiter(path, gcra(1, 1_000), clock, max_waiters=2)
    line = Line(limiter, pool)
    limiter.check("k")
    futures = [line.join(number) for number in range(3)]
    with pytest.raises(QueueFullError, match="2 callers already wait for 'k'") as caught:
        limiter.acquire("k")
    assert caught.value.code == "queue_full"
    with pytest.raises(QueueFullError):
        run(limiter.aacquire("k", timeout=5))
    assert limiter.acquire("other").allowed
    clock.advance(1_000)
    futures[0].result(20)
    futures.append(line.join(3))
    for future in futures[1:]:
        clock.advance(1_000)
        assert future.result(20).allowed
    assert line.order == [0, 1, 2, 3]


def test_with_no_waiters_allowed_one_caller_is_still_served() -> None:
    """`max_waiters=0`: nobody queues behind the one who waits."""
    clock = ManualClock(NOW)
    limiter = rate_limit(gcra(1, 1_000), clock=clock, max_waiters=0)
    with ThreadPoolExecutor(1) as pool:
        line = Line(limiter, pool)
        limiter.check("k")
        future = line.join("only")
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
def test_waiting_goes_on_as_long_as_the_strategy_says_so(
    path: str, pool: ThreadPoolExecutor
) -> None:
    """A sliding window often names only the next tick: acquire asks again there."""
    clock = ManualClock(NOW)
    limiter = make_limiter(path, sliding_window(4, 1_000, buckets=2), clock)
    limiter.check("k", 4)
    future = Line(limiter, pool).join("patient", cost=3)
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
    future = Line(limiter, pool).join("patient")
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
    future = Line(limiter, pool).join("hopeless", timeout=0.01)
    for _ in range(200):
        if future.done():
            break
        clock.advance(1)
        threading.Event().wait(0.001)
    with pytest.raises(RateLimitExceededError) as caught:
        future.result(20)
    assert caught.value.decision.retry_after_ms == 1


@both_paths
def test_an_error_while_waiting_frees_the_line(path: str) -> None:
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
    """Tasks that died with their loop leave the line to those behind them."""
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
def test_a_loop_closed_without_ending_its_tasks_does_not_hold_up_the_line(
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


def test_a_rate_limit_error_survives_pickling() -> None:
    """It crosses process boundaries with its decision."""
    import pickle

    error = RateLimitExceededError("too late", Decision(False, 1, 0, NOW, 5))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.decision, again.code) == (str(error), error.decision, error.code)
