"""Charges that are renewed in the background."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    Charge,
    ConfigInvalidError,
    Limits,
    MemoryStore,
    StoreUnavailableError,
    fixed_window,
    rate_limit,
    slots,
)
from tests.servers import NotReady, eventually
from tests.stores.redis.live import PATIENT_MS, new_key, url_of

# Long enough for a busy machine to be late by a second.
TTL_MS = 2_000


class Counting(MemoryStore):
    """Notes how many steps each call has, and is away when told."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []
        self.away = False

    def apply_all(self, steps: Any, now: int) -> list[Any]:
        if self.away:
            raise StoreUnavailableError("away")
        self.calls.append(len(steps))
        return super().apply_all(steps, now)


def no_renewer() -> None:
    if any(thread.name == "penstock-renewer" for thread in threading.enumerate()):
        raise NotReady("the thread runs")


def renewed(store: Counting) -> None:
    if not store.calls:
        raise NotReady("not yet")


def ends() -> None:
    eventually(no_renewer, within=20, what="the end of the thread")


def test_all_charges_of_a_process_are_renewed_in_one_call() -> None:
    """For as long as they are open, and no longer: the thread ends with the last."""
    store = Counting()
    limiter = rate_limit(slots(50, TTL_MS), store=store, prefix="one")
    pair = Limits({"a": slots(9, TTL_MS), "b": slots(9, TTL_MS)}, store=store, prefix="pair")
    charges = [limiter.reserve("k").keep_renewed() for _ in range(20)]
    charges.append(pair.reserve({"a": "x", "b": "y"}).keep_renewed())
    store.calls.clear()
    until = time.monotonic() + 1.2 * TTL_MS / 1000
    while time.monotonic() < until:
        assert all(charge.holds for charge in charges)
        time.sleep(0.02)
    assert 2 <= len(store.calls) <= 3
    # One step for each pool.
    assert set(store.calls) == {3}
    for charge in charges:
        assert charge.settle({})
    ends()
    assert limiter.peek("k").remaining == 50


def test_who_loses_a_slot_is_told_once() -> None:
    """Whether it was taken away or the store did not answer for too long; others go on."""
    store = Counting()
    limiter = rate_limit(slots(9, TTL_MS), store=store)
    told: list[Charge] = []
    taken = limiter.reserve("a").keep_renewed(told.append)
    kept = limiter.reserve("b").keep_renewed(told.append)
    limiter.reset("a")

    def heard(count: int) -> None:
        if len(told) != count:
            raise NotReady(repr(told))

    eventually(lambda: heard(1), within=20, what="the loss")
    assert told == [taken]
    assert not taken.holds
    assert kept.holds
    store.away = True
    eventually(lambda: heard(2), within=20, what="the other one")
    assert not kept.holds
    ends()


def test_a_store_that_comes_back_in_time_costs_nothing() -> None:
    store = Counting()
    limiter = rate_limit(slots(9, TTL_MS), store=store)
    told: list[Charge] = []
    charge = limiter.reserve("a").keep_renewed(told.append)
    store.away = True
    time.sleep(0.4 * TTL_MS / 1000)
    store.calls.clear()
    store.away = False
    # Sooner than the next of three renewals.
    eventually(lambda: renewed(store), within=0.5 * TTL_MS / 1000, what="the renewal")
    assert charge.holds
    assert told == []
    assert charge.cancel()
    ends()


class Hanging(MemoryStore):
    """Does not answer for longer than slots last, when told."""

    def __init__(self) -> None:
        super().__init__()
        self.freed = threading.Event()
        self.freed.set()

    def apply_all(self, steps: Any, now: int) -> list[Any]:
        self._hang()
        return super().apply_all(steps, now)

    async def aapply_all(self, steps: Any, now: int) -> list[Any]:
        await asyncio.get_running_loop().run_in_executor(None, self._hang)
        return super().apply_all(steps, now)

    def _hang(self) -> None:
        if not self.freed.is_set():
            self.freed.wait(60)
            raise StoreUnavailableError("away")


def test_a_store_that_hangs_delays_neither_the_news_nor_the_other_stores() -> None:
    hanging, told = Hanging(), list[Charge]()
    lost = rate_limit(slots(9, TTL_MS), store=hanging).reserve("k").keep_renewed(told.append)
    kept = rate_limit(slots(9, TTL_MS)).reserve("k").keep_renewed(told.append)
    hanging.freed.clear()
    try:
        until = time.monotonic() + 1.4 * TTL_MS / 1000
        while time.monotonic() < until:
            assert kept.holds
            time.sleep(0.02)
        assert told == [lost]
    finally:
        hanging.freed.set()
    assert kept.cancel()
    ends()
    assert told == [lost]


def test_so_does_one_that_is_awaited() -> None:
    async def main() -> None:
        hanging, told = Hanging(), list[Charge]()
        limiter = rate_limit(slots(9, TTL_MS), store=hanging)
        lost = (await limiter.areserve("k")).akeep_renewed(told.append)
        kept = (await rate_limit(slots(9, TTL_MS)).areserve("k")).akeep_renewed(told.append)
        hanging.freed.clear()
        try:
            until = time.monotonic() + 1.4 * TTL_MS / 1000
            while time.monotonic() < until:
                assert kept.holds
                await asyncio.sleep(0.02)
            assert told == [lost]
        finally:
            hanging.freed.set()
        assert await kept.acancel()

    asyncio.run(main())


def test_who_is_told_may_wait_for_a_thread_that_keeps_another_charge() -> None:
    limiter, after = rate_limit(slots(9, TTL_MS)), list[Charge]()

    def replace(_charge: Charge) -> None:
        other = threading.Thread(
            target=lambda: after.append(limiter.reserve("b").keep_renewed()), daemon=True
        )
        other.start()
        other.join(20)

    limiter.reserve("a").keep_renewed(replace)
    limiter.reset("a")

    def replaced() -> None:
        if not after:
            raise NotReady("not yet")

    eventually(replaced, within=10, what="the other charge")
    assert after[0].cancel()
    ends()


def test_who_is_told_may_try_to_exit() -> None:
    """Which a thread cannot; the charges of others are renewed nevertheless."""
    limiter, told = rate_limit(slots(9, TTL_MS)), list[Charge]()

    def leave(charge: Charge) -> None:
        told.append(charge)
        sys.exit(1)

    lost = limiter.reserve("a").keep_renewed(leave)
    limiter.reset("a")
    kept = limiter.reserve("b").keep_renewed()
    until = time.monotonic() + 1.4 * TTL_MS / 1000
    while time.monotonic() < until:
        assert kept.holds
        time.sleep(0.02)
    assert told == [lost]
    assert kept.cancel()
    ends()


def test_a_loop_ends_though_a_charge_is_kept_renewed(tmp_path: Path) -> None:
    """Also right after it was kept, when the task has just been woken."""
    program = tmp_path / "program.py"
    program.write_text(
        "import asyncio\n"
        "from penstock import rate_limit, slots\n"
        "async def main():\n"
        "    limiter = rate_limit(slots(9))\n"
        "    (await limiter.areserve('k')).akeep_renewed()\n"
        "    await asyncio.sleep(0)\n"
        "    (await limiter.areserve('k')).akeep_renewed()\n"
        "asyncio.run(main())\n"
    )
    ended = subprocess.run(
        [sys.executable, str(program)], timeout=30, capture_output=True, text=True, check=True
    )
    assert ended.stderr == ""


def test_loops_that_were_closed_are_forgotten() -> None:
    loops = []

    async def main() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        charge = (await rate_limit(slots(9)).areserve("k")).akeep_renewed()
        await asyncio.sleep(0.01)
        assert await charge.acancel()
        await asyncio.sleep(0.01)

    for _ in range(3):
        asyncio.run(main())
    gc.collect()
    assert [loop() for loop in loops[:2]] == [None, None]


def test_an_observer_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    limiter = rate_limit(slots(9, TTL_MS))

    def fail(_charge: Charge) -> None:
        raise ZeroDivisionError

    limiter.reserve("a").keep_renewed(fail)
    other = limiter.reserve("b").keep_renewed()
    limiter.reset("a")

    def logged() -> None:
        if "ZeroDivisionError" not in caplog.text:
            raise NotReady("not yet")

    eventually(logged, within=20, what="the line")
    assert other.holds
    assert other.cancel()
    ends()


def test_a_task_renews_what_is_awaited() -> None:
    async def main() -> None:
        url = f"{url_of('valkey')}?timeout_ms={PATIENT_MS}"
        async with rate_limit(slots(2, TTL_MS), store=url, prefix=new_key()) as limiter:
            told: list[Charge] = []
            async with (await limiter.areserve("k")).akeep_renewed(told.append) as charge:
                lost = (await limiter.areserve("other")).akeep_renewed(told.append)
                await limiter.areset("other")
                for _ in range(24):
                    assert charge.holds
                    await asyncio.sleep(0.05 * TTL_MS / 1000)
                assert (await limiter.apeek("k")).remaining == 1
                assert told == [lost]
            for _ in range(200):
                names = {task.get_name() for task in asyncio.all_tasks()}
                if "penstock-renewer" not in names:
                    break
                await asyncio.sleep(0.02)
            assert "penstock-renewer" not in names

    asyncio.run(main())


def test_a_thread_that_could_not_be_started_is_started_with_the_next_charge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    store = Counting()
    limiter = rate_limit(slots(9, TTL_MS), store=store)
    first = limiter.reserve("a")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            first.keep_renewed()
    store.calls.clear()
    second = limiter.reserve("b").keep_renewed()
    eventually(lambda: renewed(store), within=20, what="the renewal")
    assert first.cancel()
    assert second.cancel()
    ends()


class Overtaken(MemoryStore):
    """Answers the renewals of one thread only when told."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()
        self.freed = threading.Event()

    def apply_all(self, steps: Any, now: int) -> list[Any]:
        results = super().apply_all(steps, now)
        if threading.current_thread().name == "slow":
            self.asked.set()
            assert self.freed.wait(30)
        return results


def test_a_renewal_that_is_answered_late_takes_nothing_from_a_later_one() -> None:
    store = Overtaken()
    charge = rate_limit(slots(1, TTL_MS), store=store).reserve("k")
    thread = threading.Thread(target=charge.renew, name="slow")
    thread.start()
    assert store.asked.wait(30)
    time.sleep(0.9 * TTL_MS / 1000)
    assert charge.renew()
    assert charge.holds
    store.freed.set()
    thread.join()
    assert charge.holds
    assert charge.cancel()


def test_only_what_is_held_can_be_kept() -> None:
    """A charge that was denied, or has ended, is left alone."""
    limiter = rate_limit(slots(1))
    held, denied = limiter.reserve("k"), limiter.reserve("k")
    assert held.cancel()
    for charge in (held, denied):
        assert charge.keep_renewed() is charge
    with pytest.raises(ConfigInvalidError, match="holds slots"):
        rate_limit(fixed_window(5, 60_000)).reserve("k").keep_renewed()


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process_renews_its_own_charges() -> None:
    limiter = rate_limit(slots(5, TTL_MS))
    ours = limiter.reserve("k").keep_renewed()
    child = os.fork()
    if child == 0:
        own = rate_limit(slots(5, TTL_MS)).reserve("k").keep_renewed()
        time.sleep(1.2 * TTL_MS / 1000)
        os._exit(0 if own.holds else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert ours.holds
    assert ours.cancel()
    ends()
