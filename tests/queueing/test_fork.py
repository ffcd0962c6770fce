"""A forked child has its parent's memory and none of its threads: it waits for none of them."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import ManualClock, gcra, rate_limit
from penstock._queueing import Mutex, Queue, ThreadWaiter
from penstock._queueing.fork import ForkAware, watch_forks
from penstock.stores.sqlite import SqliteStore
from tests.core.waiters import waiting

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


def in_child(work: Callable[[], Any]) -> bool:
    """Whether the work is done in a child, soon, without an exception."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def holding(held: threading.Event, go: threading.Event, hold: Callable[[], Any]) -> Any:
    def work() -> None:
        with hold():
            held.set()
            go.wait(20)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert held.wait(20)
    return thread


def test_a_child_does_not_wait_for_who_acquires_in_its_parent() -> None:
    """Threads of the parent wait for the key; in the child they are not there."""
    clock = ManualClock()
    limiter = rate_limit(gcra(1, 1_000), clock=clock)
    limiter.check("k")
    threads = [threading.Thread(target=limiter.acquire, args=("k",), daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    while waiting(limiter) < 2:
        time.sleep(0.001)

    def acquire() -> None:
        clock.advance(1_000)
        assert limiter.acquire("k", timeout=0).allowed
        assert waiting(limiter) == 0

    assert in_child(acquire)
    for _ in threads:
        clock.advance(1_000)
        time.sleep(0.01)
    clock.advance(1_000)
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def test_a_child_does_not_wait_for_a_mutex_of_its_parents_threads() -> None:
    """Nor does the parent lose it."""
    mutex, held, go = Mutex(), threading.Event(), threading.Event()
    thread = holding(held, go, mutex.hold)

    def use() -> None:
        with mutex.hold():
            pass

    assert in_child(use)
    queue = mutex._queue
    assert len(queue) == 1
    go.set()
    thread.join(20)
    assert len(queue) == 0


def test_a_thread_that_forks_keeps_its_place_in_the_parent() -> None:
    """And has none in the child, where somebody else may lead."""
    queue, waiter = Queue(), ThreadWaiter(sys._getframe())
    queue.join(waiter)
    assert in_child(lambda: _require(queue.leader() is None))
    assert queue.leads(waiter)


def _require(condition: bool) -> None:
    assert condition


class Owner(ForkAware):
    """Notes what it is told, and fails if it is told to."""

    def __init__(self, told: list[str], fails: bool = False) -> None:
        self._told = told
        self.fails = fails
        watch_forks(self)

    def _before_fork(self, forker: Any) -> None:
        self._told.append(f"before, by {forker.f_code.co_name}")
        if self.fails:
            raise ZeroDivisionError

    def _after_fork_in_parent(self) -> None:
        self._told.append("in parent")

    def _after_fork_in_child(self) -> None:
        self._told.append("in child")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_owners_are_told_of_forks_also_when_one_of_them_fails() -> None:
    """Before, and after it on either side."""
    told: list[str] = []
    owners = [Owner(told, fails) for fails in (True, False, True)]
    assert in_child(lambda: _require(told[3:] == ["in child"] * 3))
    assert told == ["before, by in_child"] * 3 + ["in parent"] * 3
    for owner in owners:
        owner.fails = False


def test_a_store_that_was_held_for_a_fork_is_free_when_the_fork_is_over(tmp_path: Path) -> None:
    """Also if the hook that frees it was interrupted."""
    store = SqliteStore(tmp_path / "limits.db", timeout_ms=5_000)
    limiter = rate_limit(gcra(5, 864_000_000), store=store, clock=ManualClock())
    limiter.check("k")
    freed = SqliteStore._after_fork_in_parent

    def interrupted(_store: SqliteStore) -> None:
        """Does nothing: it was cut off at once."""

    SqliteStore._after_fork_in_parent = interrupted  # type: ignore[method-assign]
    try:
        assert in_child(lambda: _require(limiter.check("k").remaining == 3))
    finally:
        SqliteStore._after_fork_in_parent = freed  # type: ignore[method-assign]
    assert limiter.check("k").remaining == 2
    store.close()
