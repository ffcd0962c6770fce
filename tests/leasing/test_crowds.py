"""Many callers at once: one lease in flight per key, served in order, sync and async."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock import Limiter, StoreUnavailableError
from tests.leasing.far import FarStore
from tests.support.helpers import frantic_switching, run

from .crowds import leased, until, waiting


def test_threads_that_miss_share_one_lease() -> None:
    """The first asks, the others wait and spend what it brought."""
    far = FarStore()
    limiter = leased(far)
    far.gate.clear()
    with ThreadPoolExecutor(10) as pool:
        checks = [pool.submit(limiter.check, "k") for _ in range(10)]
        until(lambda: waiting(limiter) == 9)
        far.gate.set()
        decisions = [check.result(20) for check in checks]
    assert all(decision.allowed for decision in decisions)
    assert sorted(decision.remaining for decision in decisions) == list(range(10))
    assert far.leases == far.most_at_once == 1


def test_tasks_that_miss_share_one_lease_in_order() -> None:
    """25 tasks, batches of 10: 3 leases, and the first to come gets the first credit."""

    async def crowd() -> None:
        far = FarStore()
        limiter = leased(far, limit=22)
        far.agate = asyncio.Event()
        order: list[int] = []

        async def one(number: int) -> Any:
            decision = await limiter.acheck("k")
            order.append(number)
            return decision

        tasks = [asyncio.create_task(one(number)) for number in range(25)]
        await asyncio.sleep(0.01)
        far.agate.set()
        decisions = await asyncio.gather(*tasks)
        assert [decision.allowed for decision in decisions] == [True] * 22 + [False] * 3
        assert order == sorted(order)
        assert far.most_at_once == 1

    run(crowd())


def test_keys_do_not_wait_for_each_other() -> None:
    """While one key's lease hangs, another's is fetched."""
    far = FarStore()
    limiter = leased(far)
    far.gate.clear()
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(limiter.check, "slow")
        until(far.arrived.is_set)
        far.gate.set()
        assert limiter.check("quick").allowed
        assert slow.result(20).allowed


@pytest.mark.parametrize("threads", [8])
def test_a_frantic_crowd_admits_the_limit_exactly(threads: int) -> None:
    """Threads that change places as often as they can, on three keys, with leases ahead."""
    far = FarStore()
    limiter = leased(far, limit=500, batch=7, low_water=2)
    admitted: list[str] = []

    def work(number: int) -> None:
        for turn in range(400):
            key = f"k{(number + turn) % 3}"
            if limiter.check(key).allowed:
                admitted.append(key)

    with frantic_switching(), ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    limiter.close()
    spent = {key: admitted.count(key) for key in set(admitted)}
    for key in spent:
        # What is left of the last lease.
        while limiter.check(key).allowed:
            spent[key] += 1
    assert spent == {f"k{n}": 500 for n in range(3)}
    assert far.most_at_once == 1


def test_those_who_wait_share_a_failure() -> None:
    """A crowd in front of a dead store asks it once; whoever comes later asks again."""
    far = FarStore()
    limiter = leased(far)
    far.gate.clear()
    with ThreadPoolExecutor(5) as pool:
        checks = [pool.submit(limiter.check, "k") for _ in range(5)]
        until(lambda: waiting(limiter) == 4)
        far.broken = True
        far.gate.set()
        for check in checks:
            with pytest.raises(StoreUnavailableError, match="away"):
                check.result(20)
    assert far.leases == 1
    with pytest.raises(StoreUnavailableError):
        limiter.check("k")
    assert far.leases == 2
    far.broken = False
    assert limiter.check("k").allowed


def test_nothing_is_kept_of_failures() -> None:
    """An outage under many keys leaves no trace in memory."""
    far = FarStore()
    limiter = leased(far)
    far.broken = True
    for number in range(200):
        with pytest.raises(StoreUnavailableError):
            limiter.check(f"k{number}")
    near = limiter._near
    assert (len(near.queues), len(near.denials), len(near.store)) == (0, 0, 0)


def test_a_key_with_credits_does_not_notice_an_outage() -> None:
    """Until they are spent."""
    far = FarStore()
    limiter = leased(far, low_water=3)
    limiter.check("k")
    far.broken = True
    for _ in range(9):
        assert limiter.check("k").allowed
    with pytest.raises(StoreUnavailableError):
        limiter.check("k")


def test_a_cancelled_caller_leaves_its_lease_to_the_others() -> None:
    """The credits arrive; nobody who waits is held up; no second lease is taken."""

    async def hang_up() -> None:
        far = FarStore()
        limiter = leased(far)
        far.agate = asyncio.Event()
        first = asyncio.create_task(limiter.acheck("k"))
        second = asyncio.create_task(limiter.acheck("k"))
        third = asyncio.create_task(limiter.acheck("k"))
        await asyncio.sleep(0.01)
        first.cancel()
        second.cancel()
        await asyncio.sleep(0.01)
        assert first.cancelled()
        assert second.cancelled()
        far.agate.set()
        decision = await third
        assert decision.allowed
        assert decision.remaining == 8
        assert far.leases == 1
        assert (await limiter.acheck("k")).remaining == 7

    run(hang_up())


def test_threads_and_tasks_wait_in_one_queue() -> None:
    """A task waits for a thread's lease, and is woken from that thread."""
    far = FarStore()
    limiter = leased(far)
    far.gate.clear()

    async def task() -> Any:
        return await limiter.acheck("k")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(limiter.check, "k")
        until(far.arrived.is_set)
        second = pool.submit(run, task())
        until(lambda: waiting(limiter) == 1)
        far.gate.set()
        assert (first.result(20).remaining, second.result(20).remaining) == (9, 8)
    assert far.leases == 1


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_lease_is_taken_ahead_of_need(mode: str) -> None:
    """At the low-water mark, once, in the background; up to the batch less 1 and no further."""

    async def spend(limiter: Limiter, far: FarStore) -> None:
        for _ in range(7):
            decision = await limiter.acheck("k") if mode == "async" else limiter.check("k")
            assert decision.allowed
        await limiter.aclose()
        assert [cost for _, _, cost in far.calls] == [10, 10 - 1 - 3]

    far = FarStore()
    limiter = leased(far, low_water=3)
    run(spend(limiter, far))
    assert limiter.check("k").remaining == 8


def test_a_refusal_ahead_of_need_is_not_asked_for_again() -> None:
    """The last credits of a window are spent without a round trip each."""
    far = FarStore()
    limiter = leased(far, limit=10, low_water=5)
    for _ in range(10):
        assert limiter.check("k").allowed
        limiter.close()
    assert far.leases == 2
    assert not limiter.check("k").allowed
    assert far.leases == 2


def test_a_failure_ahead_of_need_is_not_repeated_at_once() -> None:
    """It costs nothing yet; the next try comes after a rest, or with a miss."""
    far = FarStore()
    limiter = leased(far, batch=50, low_water=40)
    limiter.check("k")
    far.broken = True
    for _ in range(30):
        assert limiter.check("k").allowed
        limiter.close()
    assert far.leases == 2
    far.broken = False
    far.clock.advance(250)
    limiter.check("k")
    limiter.close()
    assert far.leases == 3


def test_a_late_lease_ahead_finds_its_need_gone() -> None:
    """A miss was quicker: what is held never exceeds the batch less 1."""
    far = FarStore()
    limiter = leased(far, low_water=3)
    limiter._ahead["k"] = None
    for _ in range(12):
        limiter.check("k")
    limiter._run_ahead("k")
    assert [cost for _, _, cost in far.calls] == [10, 10]
    assert limiter.peek("k").remaining == 8


def test_closing_waits_for_what_is_under_way_and_a_later_call_starts_anew() -> None:
    """No thread is left behind; a closed limiter still works."""
    before = set(threading.enumerate())
    far = FarStore()
    limiter = leased(far, low_water=3)
    for _ in range(7):
        limiter.check("k")
    limiter.close()
    limiter.close()
    assert not [t for t in set(threading.enumerate()) - before if "penstock-lease" in t.name]
    for _ in range(7):
        assert limiter.check("k").allowed
    run(limiter.aclose())
    assert not [t for t in set(threading.enumerate()) - before if "penstock-lease" in t.name]


def test_a_failure_after_the_caller_hung_up_is_nobodys() -> None:
    """It was shared with those who wait; the loop has nothing to complain of."""

    async def hang_up() -> list[Any]:
        complaints: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
        far = FarStore()
        limiter = leased(far)
        far.agate = asyncio.Event()
        caller = asyncio.create_task(limiter.acheck("k"))
        await asyncio.sleep(0.01)
        caller.cancel()
        await asyncio.sleep(0)
        far.broken = True
        far.agate.set()
        await asyncio.sleep(0.01)
        far.broken = False
        assert (await limiter.acheck("k")).allowed
        gc.collect()
        return complaints

    assert run(hang_up()) == []


def test_a_spend_does_not_fail_for_want_of_a_thread_to_lease_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As once the main thread has ended; leases are then taken by those who miss."""

    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    far = FarStore()
    limiter = leased(far, low_water=3)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert [limiter.check("k").remaining for _ in range(11)] == [*range(9, -1, -1), 9]
    assert far.leases == 2
    # With threads again, a lease ahead is not taken to be under way.
    assert [limiter.check("k").remaining for _ in range(6)] == [*range(8, 2, -1)]
    limiter.close()
    assert far.leases == 3
