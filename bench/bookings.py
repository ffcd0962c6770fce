"""Bookings from many processes, one queue: `python -m bench.bookings [redis://...]`.

Eight processes book 640 turns at 50 a second from one store, and leave when their turn comes. What
is looked at:

- order: nobody who was told its turn before somebody else asked has a later one, and they leave in
  the order of their turns;
- evenness: how far apart the turns are, which is to be the pace, to the millisecond that rounding
  takes;
- calls: how many scripts the server ran, by its own count.

A process that the machine does not wake in time leaves late, which is no matter of the booking: how
late is told, too. Without a URL, a Valkey is started. The last line is JSON; fails if a promise is
broken.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from contextlib import ExitStack
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import redis

from penstock import gcra, rate_limit

PROCESSES, EACH, PER_SECOND = 8, 80, 50
PATIENCE_S = 120


class Turn(NamedTuple):
    """One booking: when it was asked for and answered, and when its process left, by the steady
    clock of the machine in seconds; and its instant by the clock that decides, in ms."""

    asked: float
    told: float
    left: float
    starts_at: int
    late_ms: int


class Evidence(NamedTuple):
    """What the turns of a run show."""

    bookings: int
    calls: int
    passed_over: int
    """Pairs of which the one that was told before the other asked has the later turn."""
    left_out_of_order: int
    """Neighbours in the order of the turns that left the other way round, though both were
    awake in time."""
    shortest_gap_ms: int
    even_gaps: float
    """The share of gaps that are the pace, to a millisecond; longer ones are where nobody had
    asked."""
    latest_ms: int

    def broken(self) -> list[str]:
        """The promises that do not hold."""
        pace_ms = 1_000 // PER_SECOND
        found = {
            "first come, first served": self.passed_over == 0,
            "leaving in that order": self.left_out_of_order == 0,
            "spaced by the pace": self.shortest_gap_ms >= pace_ms - 1 and self.even_gaps >= 0.9,
            "one call each": self.calls == self.bookings,
        }
        return [promise for promise, holds in found.items() if not holds]


def book(url: str, prefix: str, each: int, per_second: int, gate: Any, answers: Any) -> None:
    """One process: book, sleep until it is one's turn, go; then book again."""
    limiter = rate_limit(
        gcra(per_second, 1_000, burst=1), store=f"{url}?timeout_ms=20000", prefix=prefix
    )
    # Connected, and the script is known to the server, before anything is counted.
    limiter.reserve(f"warm-{time.monotonic_ns()}", max_wait_ms=1)
    gate.wait(PATIENCE_S)
    turns = []
    for _ in range(each):
        asked = time.monotonic()
        charge = limiter.reserve("k", max_wait_ms=PATIENCE_S * 1_000)
        told = time.monotonic()
        time.sleep(max(0, charge.starts_at - limiter.clock.now()) / 1_000)
        late_ms = limiter.clock.now() - charge.starts_at
        turns.append(Turn(asked, told, time.monotonic(), charge.starts_at, late_ms))
    answers.put(turns)
    limiter.close()


def run(
    url: str,
    prefix: str,
    processes: int = PROCESSES,
    each: int = EACH,
    per_second: int = PER_SECOND,
) -> tuple[list[Turn], int]:
    """The turns of all processes, and how many scripts the server ran meanwhile."""
    spawn = multiprocessing.get_context("spawn")
    gate, answers = spawn.Barrier(processes + 1), spawn.Queue()
    arguments = (url, prefix, each, per_second, gate, answers)
    workers = [spawn.Process(target=book, args=arguments) for _ in range(processes)]
    with redis.Redis.from_url(url) as client:
        for worker in workers:
            worker.start()
        try:
            while gate.n_waiting < processes:
                time.sleep(0.01)
            before = _scripts(client)
            gate.wait(PATIENCE_S)
            turns = [turn for _ in workers for turn in answers.get(timeout=PATIENCE_S)]
            return turns, _scripts(client) - before
        finally:
            for worker in workers:
                worker.join(PATIENCE_S)
                worker.close()
            answers.close()


def _scripts(client: Any) -> int:
    stats = client.info("commandstats")
    scripts = [stats.get(name, {}) for name in ("cmdstat_evalsha", "cmdstat_eval")]
    return sum(each.get("calls", 0) for each in scripts)


def evidence(turns: list[Turn], calls: int, per_second: int = PER_SECOND) -> Evidence:
    ordered = sorted(turns, key=lambda turn: turn.starts_at)
    gaps = [later.starts_at - earlier.starts_at for earlier, later in pairwise(ordered)]
    pace_ms = 1_000 / per_second
    passed_over = sum(later.told < turn.asked for turn, later in combinations(ordered, 2))
    left = sum(
        earlier.left > later.left and max(earlier.late_ms, later.late_ms) < pace_ms
        for earlier, later in pairwise(ordered)
    )
    return Evidence(
        len(turns),
        calls,
        passed_over,
        left,
        min(gaps),
        sum(abs(gap - pace_ms) <= 1 for gap in gaps) / len(gaps),
        max(turn.late_ms for turn in turns),
    )


def main(arguments: list[str]) -> int:
    with ExitStack() as stack:
        if arguments:
            url = arguments[0]
        else:
            from tests.servers import Valkey

            url = stack.enter_context(Valkey()).url
        found = evidence(*run(url, f"bookings-{time.time_ns()}"))
    print(f"{found.bookings} bookings of {PROCESSES} processes at {PER_SECOND} a second")
    print(f"  store calls                                   {found.calls}")
    print(f"  passed over by somebody who asked later       {found.passed_over}")
    print(f"  left out of order, of those awake in time     {found.left_out_of_order}")
    print(f"  shortest gap between two turns                {found.shortest_gap_ms} ms")
    print(f"  gaps that are the pace, to a millisecond      {found.even_gaps:.1%}")
    print(f"  woken late by the machine, at most            {found.latest_ms} ms")
    broken = found.broken()
    print("broken: " + ", ".join(broken) if broken else "every promise holds")
    print(json.dumps(found._asdict()))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
