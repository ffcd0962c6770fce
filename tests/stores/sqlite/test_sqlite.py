"""SqliteStore: exact on one host, durable, and typed in its failures."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    ManualClock,
    StoreUnavailableError,
    fixed_window,
    gcra,
    rate_limit,
    token_bucket,
)
from penstock.core._transform import checking
from penstock.stores.sqlite import SqliteStore
from tests.stores.crash import LIMIT, STRATEGY, Spender
from tests.stores.exactness import (
    assert_exact_from_processes,
    assert_exact_from_tasks,
    assert_exact_from_threads,
)
from tests.stores.replay import assert_vectors_hold, assert_vectors_hold_async

NOW = 1_700_000_000_000


def _spent(path: Path, key: str) -> int:
    store = SqliteStore(path)
    spent: int = LIMIT - rate_limit(STRATEGY, store=store).peek(key).remaining
    store.close()
    return spent


def test_threads_are_admitted_exactly(path: Path) -> None:
    """200 threads at 50 on one store."""
    assert_exact_from_threads(partial(SqliteStore, path, timeout_ms=30_000))


def test_tasks_are_admitted_exactly(path: Path) -> None:
    """200 tasks at 50 on one store."""
    assert_exact_from_tasks(partial(SqliteStore, path, timeout_ms=30_000))


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_processes_are_admitted_exactly(path: Path, mode: str) -> None:
    """200 callers at 50 in four processes, which all find a file that is not there yet."""
    assert_exact_from_processes(partial(SqliteStore, path, timeout_ms=30_000), mode)


def test_the_golden_vectors_hold(path: Path) -> None:
    """Decision by decision, sync and async."""
    store = SqliteStore(path)
    assert_vectors_hold(store)
    store.close()
    other = SqliteStore(path.with_name("other.db"))
    asyncio.run(assert_vectors_hold_async(other))
    other.close()


def test_what_was_spent_survives_a_restart(path: Path) -> None:
    """A new store on the file goes on where the old one was closed."""
    clock = ManualClock(NOW)
    for remaining in (4, 3, 2):
        store = SqliteStore(path)
        limiter = rate_limit(gcra(5, 60_000), store=store, clock=clock)
        assert limiter.check("k").remaining == remaining
        store.close()


def test_a_closed_store_opens_again(path: Path) -> None:
    """Closing gives the file back; it is not an end."""
    limiter = rate_limit(gcra(5, 60_000), store=SqliteStore(path), clock=ManualClock(NOW))
    limiter.check("k")
    limiter.store.close()
    assert limiter.check("k").remaining == 3
    limiter.store.close()


def test_no_decision_is_lost_when_a_writer_is_killed(path: Path) -> None:
    """kill -9 in the middle of a load: what was told is there, and at most what was not yet."""
    with Spender(f"sqlite:///{path}", "k") as one, Spender(f"sqlite:///{path}", "k") as other:
        one.read(300)
        other.read(300)
        one.kill()
        other.read(300)
        other.kill()
        told = one.admitted + other.admitted
    assert one.doubtful == other.doubtful == 0
    assert told <= _spent(path, "k") <= told + 2
    assert _integrity(path) == "ok"


def _integrity(path: Path) -> str:
    with sqlite3.connect(path) as connection:
        answer: str = connection.execute("PRAGMA integrity_check").fetchone()[0]
    connection.close()
    return answer


def test_a_locked_file_is_a_typed_error_in_time(path: Path) -> None:
    """Another process sits on the lock: `store_unavailable` at the deadline, then all is well."""
    store = SqliteStore(path, timeout_ms=80)
    limiter = rate_limit(gcra(5, 60_000), store=store)
    limiter.check("k")
    with _locked(path):
        started = time.monotonic()
        with pytest.raises(StoreUnavailableError, match=r"database is locked.*nothing was charged"):
            limiter.check("k")
        assert 0.07 < time.monotonic() - started < 1
        assert limiter.peek("k").remaining == 4
    assert limiter.check("k").remaining == 3
    store.close()


class _locked:  # noqa: N801 - reads as a verb
    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, *_: object) -> None:
        self._connection.execute("ROLLBACK")
        self._connection.close()


def test_waiting_for_a_lock_does_not_block_the_loop(path: Path) -> None:
    """While a check waits, the loop ticks on; the check fails in time, and the next one works."""

    async def main() -> None:
        store = SqliteStore(path, timeout_ms=500)
        limiter = rate_limit(gcra(5, 60_000), store=store)
        await limiter.acheck("k")
        with _locked(path):
            waiting = asyncio.create_task(limiter.acheck("k"))
            ticks = 0
            while not waiting.done():
                await asyncio.sleep(0.005)
                ticks += 1
            # A loop that is blocked ticks once; a busy machine may leave out many.
            assert ticks > 2
            with pytest.raises(StoreUnavailableError, match="nothing was charged"):
                await waiting
        assert (await limiter.acheck("k")).remaining == 3
        await store.aclose()

    asyncio.run(main())


def test_a_cancelled_check_is_withdrawn(path: Path) -> None:
    """A task that gives up while it waits has spent nothing."""

    async def main() -> None:
        store = SqliteStore(path, timeout_ms=5_000)
        limiter = rate_limit(gcra(5, 60_000), store=store)
        await limiter.acheck("k")
        with _locked(path):
            waiting = asyncio.create_task(limiter.acheck("k"))
            await asyncio.sleep(0.02)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert (await limiter.acheck("k")).remaining == 3
        await store.aclose()

    asyncio.run(main())


def test_a_late_follower_knows_whether_it_was_served(path: Path) -> None:
    """Who waits behind a slow transform leaves at its own deadline, uncharged."""
    store = SqliteStore(path, timeout_ms=100)
    slow, inside = threading.Event(), threading.Event()

    class Slow(type(gcra(5, 60_000))):  # type: ignore[misc]
        def check(self, state: Any, now: int, cost: int) -> Any:
            inside.set()
            slow.wait(5)
            return super().check(state, now, cost)

    first = threading.Thread(target=store.apply, args=("k", checking(Slow(5, 60_000)), NOW, 1))
    first.start()
    inside.wait(5)
    with pytest.raises(
        StoreUnavailableError, match=r"no answer within 100 ms; nothing was charged"
    ):
        store.apply("other", checking(gcra(5, 60_000)), NOW, 1)
    slow.set()
    first.join()
    store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_keeps_both_sides_exact(path: Path) -> None:
    """A child made in the middle of a load shares the limit, not the connection."""
    store = SqliteStore(path, timeout_ms=10_000)
    limiter = rate_limit(fixed_window(1_000_000, 864_000_000, "first"), store=store)
    stop = threading.Event()
    counted: list[int] = []

    def spend() -> None:
        count = 0
        while not stop.is_set():
            limiter.check("k")
            count += 1
        counted.append(count)

    threads = [threading.Thread(target=spend) for _ in range(2)]
    for thread in threads:
        thread.start()
    children = 0
    for _ in range(3):
        if (pid := os.fork()) == 0:
            code = 1
            try:
                for _ in range(100):
                    limiter.check("k")
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        children += 100
    stop.set()
    for thread in threads:
        thread.join()
    assert limiter.peek("k").remaining == 1_000_000 - sum(counted) - children
    store.close()
    assert _integrity(path) == "ok"


def test_async_calls_work_in_a_forked_child(path: Path) -> None:
    """The worker thread stays behind in the parent; the child starts its own."""
    store = SqliteStore(path)
    limiter = rate_limit(gcra(5, 60_000), store=store)
    assert asyncio.run(limiter.acheck("k")).remaining == 4
    if (pid := os.fork()) == 0:
        os._exit(asyncio.run(limiter.acheck("k")).remaining)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    store.close()


def test_many_keys_are_one_transaction(path: Path) -> None:
    """A batch that fails half way charges nobody."""
    store = SqliteStore(path)
    clock = ManualClock(NOW)
    rate_limit(token_bucket(5, 1), store=store, clock=clock).check("taken")
    limiter = rate_limit(gcra(5, 60_000), store=store, clock=clock)
    with pytest.raises(ConfigInvalidError, match="key 'taken' holds the state of something else"):
        limiter.check_many(["a", "b", "taken", "c"])
    assert [decision.remaining for decision in limiter.check_many(["a", "b", "c"])] == [4, 4, 4]
    store.close()


def test_a_sweep_drops_what_no_clock_can_need(path: Path) -> None:
    """Expired is not enough: a record outlasts its state by as much again, a minute at least."""
    store = SqliteStore(path)
    short = rate_limit(
        fixed_window(5, 1_000, "first"), store=store, clock=ManualClock(NOW), prefix="short"
    )
    window = fixed_window(5, 100_000, "first")
    long = rate_limit(window, store=store, clock=ManualClock(NOW), prefix="long")
    for number in range(2_500):
        short.check(f"short-{number}")
    long.check("long")
    assert store.sweep(NOW + 60_999) == 0
    assert asyncio.run(store.asweep(NOW + 61_000)) == 2_500
    assert store.sweep(NOW + 199_999) == 0
    assert store.sweep(NOW + 200_000) == 1
    store.close()


def test_a_sweep_by_default_goes_by_the_system_clock(path: Path) -> None:
    """What was written in 2023 is long forgotten."""
    store = SqliteStore(path)
    rate_limit(gcra(5, 1_000), store=store, clock=ManualClock(NOW)).check("k")
    rate_limit(gcra(5, 1_000), store=store).check("fresh")
    assert store.sweep() == 1
    store.close()
