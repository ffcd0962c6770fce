"""Leases between event loops, threads and forked processes: nobody waits for who cannot answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock.leasing import TwoTierLimiter
from tests.leasing.far import FarStore
from tests.support.helpers import run

from .crowds import leased, queued, until


def test_a_lease_that_is_never_begun_holds_nobody_up() -> None:
    """A loop that ends at once cancels what it has not started."""
    far = FarStore()
    limiter = leased(far)

    async def begin() -> None:
        check = asyncio.create_task(limiter.acheck("k"))
        await asyncio.sleep(0)
        check.cancel()

    asyncio.run(begin())
    assert limiter.check("k").allowed


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_does_not_spend_its_parents_credits() -> None:
    """Both would; so the child starts with none."""
    far = FarStore()
    limiter = leased(far)
    limiter.check("k")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, bytes([limiter.check("k").remaining, far.leases]))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 2) == bytes([9, 2])
    os.close(reading)
    os.close(writing)
    assert limiter.peek("k").remaining == 9


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("idle_ms", [None, 60_000], ids=["compiled", "interpreted"])
@pytest.mark.parametrize("verb", ["check", "acheck", "check_many"])
def test_a_method_taken_before_the_fork_does_not_spend_the_parents_credits(
    verb: str, idle_ms: int | None
) -> None:
    """Hot code looks `limiter.check` up once: in the child it spends what the child leases."""
    far = FarStore()
    limiter = leased(far, return_idle_after_ms=idle_ms)
    method: Any = getattr(limiter, verb)

    def remaining() -> int:
        if verb == "check_many":
            return int(method(["k"])[0].remaining)
        return int((run(method("k")) if verb == "acheck" else method("k")).remaining)

    remaining()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        found = [remaining(), remaining(), limiter.check("k").remaining]
        os.write(writing, bytes([*found, far.leases]))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 4) == bytes([9, 8, 7, 2])
    os.close(reading)
    os.close(writing)
    assert remaining() == 8


def ends(work: Callable[[], Any]) -> Any:
    """The result of something that must not hang."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    thread.join(10)
    assert results
    return results[0]


def test_a_plain_call_on_a_loop_does_not_wait_for_a_task_of_that_loop() -> None:
    """It leases what it needs, out of turn, and leaves no credit that could be held. A reset out of
    turn makes the credits of the lease in flight void."""

    async def mixed() -> None:
        far = FarStore()
        limiter = leased(far)
        far.agate = asyncio.Event()
        first = asyncio.create_task(limiter.acheck("k"))
        await asyncio.sleep(0.01)
        assert limiter.check("k", 3).allowed
        assert limiter.peek("k").remaining == 997
        limiter.reset("other")
        limiter.reset("k")
        assert limiter.check_many(["k", "j"])[0].allowed
        far.agate.set()
        assert (await first).remaining == 0
        assert [cost for key, role, cost in far.calls if key == "k" and role == "lease"] == [
            10,
            3,
            1,
        ]
        assert limiter.check("k").remaining == 9

    ends(lambda: run(mixed()))


def test_a_plain_call_on_a_loop_does_not_wait_behind_a_task_that_waits() -> None:
    """A thread has the turn, a task is next: it could not come to an end while we wait."""

    async def mixed(limiter: TwoTierLimiter, far: FarStore) -> None:
        waiting = asyncio.create_task(limiter.acheck("k"))
        until(far.arrived.is_set)
        await asyncio.sleep(0)
        threading.Timer(0.05, far.gate.set).start()
        assert limiter.check("k").allowed
        assert (await waiting).allowed

    far = FarStore()
    limiter = leased(far)
    far.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(limiter.check, "k")
        ends(lambda: run(mixed(limiter, far)))
        assert first.result(20).allowed


def test_loops_do_not_wait_for_each_other_crosswise() -> None:
    """Each has a task with the turn that the other one's plain call wants."""
    far = FarStore()
    limiter = leased(far)
    both = threading.Barrier(2)

    async def cross(mine: str, other: str) -> None:
        lease = asyncio.create_task(limiter.acheck(mine))
        while not queued(limiter, mine):
            await asyncio.sleep(0)
        both.wait(20)
        assert limiter.check(other).allowed
        both.wait(20)
        assert (await lease).allowed

    threads = [
        threading.Thread(target=run, args=(cross(*keys),), daemon=True)
        for keys in (("a", "b"), ("b", "a"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def abandoned(work: Any) -> None:
    """Run it in a loop that is closed without a word to its tasks."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(work)
    loop.close()


def test_a_lease_whose_loop_was_closed_locks_nobody_out() -> None:
    """Neither threads nor other loops; what it would have brought is lost."""
    far = FarStore()
    limiter = leased(far)

    async def hang_up() -> None:
        far.agate = asyncio.Event()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(limiter.acheck("k"), 0.01)

    for _ in range(2):
        abandoned(hang_up())
        far.agate = None
        assert ends(lambda: limiter.check("k", 10)).allowed
        abandoned(hang_up())
        far.agate = None
        assert ends(lambda: run(limiter.acheck("k", 10))).allowed
    assert len(limiter._tasks) == 1


def test_a_lease_ahead_whose_loop_was_closed_is_taken_by_the_next() -> None:
    """It is not under way any more, whatever the books say."""
    far = FarStore()
    limiter = leased(far, low_water=3)

    async def spend() -> None:
        for _ in range(7):
            await limiter.acheck("k")

    abandoned(spend())
    assert ends(lambda: limiter.check("k")).remaining == 2
    limiter.close()
    assert limiter.peek("k").remaining == 9
