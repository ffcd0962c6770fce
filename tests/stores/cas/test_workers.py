"""Threads that wait in the caller's place."""

from __future__ import annotations

import threading
import time

from penstock.stores.cas import ConnectionFailedError
from penstock.stores.cas._drivers import Workers


def _threads() -> int:
    return sum(thread.name == "penstock-worker" for thread in threading.enumerate())


def test_answers_come_in_order_and_errors_among_them() -> None:
    """Jobs run side by side; what one raises is its answer."""
    workers = Workers()
    jobs = [lambda: time.sleep(0.05) or "slow", lambda: 1 // 0, lambda: "fast"]
    slow, error, fast = workers.run(jobs, time.monotonic() + 5)
    assert (slow, fast) == ("slow", "fast")
    assert isinstance(error, ZeroDivisionError)
    workers.close()


def test_a_caller_stops_waiting_at_its_deadline() -> None:
    """The late job goes on unheard, and does not spoil the next answer."""
    workers = Workers()
    release = threading.Event()
    start = time.monotonic()
    [late] = workers.run([release.wait], start + 0.05)
    assert time.monotonic() - start < 0.5
    assert isinstance(late, ConnectionFailedError)
    assert late.may_have_run
    assert workers.run([lambda: "next"], time.monotonic() + 5) == ["next"]
    release.set()
    workers.close()


def test_too_many_late_jobs_are_refused_at_once() -> None:
    """An outage does not pile up threads."""
    workers = Workers(most=3)
    release = threading.Event()
    workers.run([release.wait] * 3, time.monotonic() + 0.01)
    [refused] = workers.run([lambda: "never"], time.monotonic() + 5)
    assert isinstance(refused, ConnectionFailedError)
    assert not refused.may_have_run
    release.set()
    workers.close()


def test_threads_are_used_again_and_go_home() -> None:
    """One after the other, a hundred jobs take one thread; closing ends it."""
    before = _threads()
    workers = Workers()
    for _ in range(100):
        workers.run([lambda: None], time.monotonic() + 5)
    assert _threads() == before + 1
    workers.close()
    deadline = time.monotonic() + 5
    while _threads() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _threads() == before
