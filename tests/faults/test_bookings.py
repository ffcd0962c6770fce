"""Bookings from many processes: one queue for all who share a store, at an even pace."""

from __future__ import annotations

import multiprocessing
import time
from itertools import pairwise
from typing import Any

from penstock import gcra, rate_limit
from tests.servers import RedisServer
from tests.stores.redis.live import new_key, patient_url_of, running

PROCESSES, EACH, PER_SECOND = 8, 20, 200
PATIENCE_S = 60


def _book(url: str, prefix: str, gate: Any, answers: Any) -> None:
    limiter = rate_limit(
        gcra(PER_SECOND, 1_000, burst=1), store=f"{url}?timeout_ms=20000", prefix=prefix
    )
    limiter.peek("k")
    gate.wait(PATIENCE_S)
    told = []
    for _ in range(EACH):
        charge = limiter.reserve("k", max_wait_ms=PATIENCE_S * 1_000)
        time.sleep(max(0, charge.starts_at - limiter.clock.now()) / 1_000)
        told.append((charge.starts_at, limiter.clock.now()))
    answers.put(told)
    limiter.close()


def _calls(server: RedisServer) -> int:
    info = str(server.call("INFO", "commandstats"))
    stats = [part for part in info.split() if part.startswith("cmdstat_evalsha:")]
    return sum(int(part.split("calls=")[1].split(",")[0]) for part in stats)


def test_processes_leave_in_the_order_of_their_bookings_with_one_call_each() -> None:
    """Nobody polls: a caller is told its turn, sleeps, and goes."""
    server: RedisServer = running("valkey")
    spawn = multiprocessing.get_context("spawn")
    gate, answers = spawn.Barrier(PROCESSES + 1), spawn.Queue()
    arguments = (patient_url_of("valkey"), new_key(), gate, answers)
    processes = [spawn.Process(target=_book, args=arguments) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    try:
        while gate.n_waiting < PROCESSES:
            time.sleep(0.01)
        before = _calls(server)
        gate.wait(PATIENCE_S)
        told = [each for _ in processes for each in answers.get(timeout=PATIENCE_S)]
        calls = _calls(server) - before
    finally:
        for process in processes:
            process.join(PATIENCE_S)
            process.close()
        answers.close()

    starts = sorted(starts_at for starts_at, _ in told)
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    # A millisecond is what rounding takes; later than at the pace only where nobody had asked.
    assert min(gaps) >= 1_000 // PER_SECOND - 1
    assert sum(gap <= 1_000 // PER_SECOND + 1 for gap in gaps) >= len(gaps) * 0.9
    assert all(left_at >= starts_at for starts_at, left_at in told)
    total = PROCESSES * EACH
    assert total <= calls <= total + 2 * PROCESSES
