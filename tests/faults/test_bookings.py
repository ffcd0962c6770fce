"""Bookings from many processes: one queue for all who share a store, at an even pace."""

from __future__ import annotations

import multiprocessing
import random
import time
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bench.bookings import evidence, run
from penstock import gcra, rate_limit, token_bucket
from tests.stores.postgres import live as postgres
from tests.stores.redis.live import PATIENT_MS, new_key, url_of

PROCESSES, EACH, PER_SECOND = 8, 20, 200
# Nobody waits for these, so they may be slow: what is booked lies well ahead.
PACE_MS = 50
PACED = {"gcra": gcra(1, PACE_MS, burst=1), "token_bucket": token_bucket(1, 1_000 / PACE_MS)}


def test_processes_leave_in_the_order_of_their_bookings_with_one_call_each() -> None:
    """Nobody polls: a caller is told its turn, sleeps, and goes. `python -m bench.bookings` does it
    with four times as many."""
    turns, calls = run(url_of("valkey"), new_key(), PROCESSES, EACH, PER_SECOND)
    found = evidence(turns, calls, PER_SECOND)
    total = PROCESSES * EACH
    assert found.bookings == total
    # Others may use the server, too.
    assert total <= calls <= total + 2 * PROCESSES
    assert found.passed_over == 0
    # A millisecond is what rounding takes; later than at the pace only where nobody had asked.
    assert found.shortest_gap_ms >= 1_000 // PER_SECOND - 1
    assert found.even_gaps >= 0.9
    # Nobody leaves early; by the clock of the server, which rounds by itself.
    assert all(turn.late_ms >= -1 for turn in turns)


class Booked(NamedTuple):
    """A booking that was kept: when it was asked for and answered, by the steady clock of the
    machine, and its instant by the clock that decides."""

    asked: float
    told: float
    starts_at: int


def book_and_cancel(url: str, prefix: str, name: str, seed: int, gate: Any, answers: Any) -> None:
    """One process: books, and cancels some while they lie well ahead, the last one or not."""
    rng, kept = random.Random(seed), []
    with rate_limit(PACED[name], store=url, prefix=prefix) as limiter:
        limiter.peek("k")
        gate.wait(60)
        for _ in range(EACH):
            asked = time.monotonic()
            charge = limiter.reserve("k", max_wait_ms=60_000)
            booked = Booked(asked, time.monotonic(), charge.starts_at)
            if charge.starts_at - charge.charged_at > 300 and rng.random() < 0.4:
                time.sleep(rng.choice((0, 0.005)))
                charge.cancel()
            else:
                kept.append(booked)
    answers.put(kept)


@pytest.fixture(params=["valkey", "postgres", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/booked.db?timeout_ms={PATIENT_MS}"
    if request.param == "postgres":
        return postgres.url_of(postgres.new_table(), timeout_ms=PATIENT_MS)
    return f"{url_of('valkey')}?timeout_ms={PATIENT_MS}"


@pytest.mark.parametrize("name", PACED)
def test_bookings_that_are_cancelled_let_nobody_overtake_and_no_two_leave_at_once(
    url: str, name: str
) -> None:
    spawn = multiprocessing.get_context("spawn")
    gate, answers, prefix = spawn.Barrier(4), spawn.Queue(), new_key()
    workers = [
        spawn.Process(target=book_and_cancel, args=(url, prefix, name, seed, gate, answers))
        for seed in range(4)
    ]
    for worker in workers:
        worker.start()
    try:
        kept = [each for _ in workers for each in answers.get(timeout=60)]
    finally:
        for worker in workers:
            worker.join(60)
            worker.close()
        answers.close()
    ordered = sorted(kept, key=lambda each: each.starts_at)
    assert len(ordered) < 4 * EACH, "some were cancelled"
    # A millisecond is what rounding takes.
    gaps = [later.starts_at - earlier.starts_at for earlier, later in pairwise(ordered)]
    assert min(gaps) >= PACE_MS - 1
    assert not [pair for pair in combinations(ordered, 2) if pair[1].told < pair[0].asked]
