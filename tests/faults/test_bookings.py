"""Bookings from many processes: one queue for all who share a store, at an even pace."""

from __future__ import annotations

from bench.bookings import evidence, run
from tests.stores.redis.live import new_key, url_of

PROCESSES, EACH, PER_SECOND = 8, 20, 200


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
