"""What a flood of made-up keys does to a bounded MemoryStore: `python -m bench.flood`.

A store of the service's size knows some honest clients and some that are blocked, none of whom is
heard of while the flood lasts. Two attackers: one makes up a new key for each request, the other
drives each made-up key into its limit, which is the only way to rank with those that are blocked.
Between portions of the flood one blocked client asks again, each time another one, so that asking
does not keep it in memory, and a few clients come for the first time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from penstock import Limiter, ManualClock, MemoryStore, fixed_window, rate_limit

__all__ = ["Damage", "run_flood"]

LIMIT = 10
MAX_KEYS, MAX_BYTES = 1_000_000, 256 << 20
MADE_UP, PORTIONS = 2_400_000, 60
HONEST = 10_000


@dataclass(frozen=True)
class Damage:
    """`freed_after` requests the first blocked client was let in again; None: it never was."""

    freed_after: int | None
    newcomers_refused: float
    honest_forgotten: float
    megabytes: float
    ns_per_request: float


def _keys(each: int) -> Iterator[str]:
    number = 0
    while True:
        for _ in range(each):
            yield f"made-up:{number:012d}"
        number += 1


def run_flood(overflow: Literal["evict", "deny"], each: int) -> Damage:
    """A flood that asks `each` times for every key it makes up."""
    requests = MADE_UP * each
    store = MemoryStore(MAX_KEYS, overflow, max_bytes=MAX_BYTES)
    limiter = rate_limit(fixed_window(LIMIT, 3_600_000), store=store, clock=ManualClock(10**12))
    for number in range(HONEST):
        limiter.check(f"honest:{number}", 3)
    for number in range(PORTIONS):
        limiter.check(f"blocked:{number}", LIMIT)
        limiter.check(f"blocked:{number}")
    keys, freed_after, refused, spent = _keys(each), None, 0, 0.0
    for portion in range(PORTIONS):
        spent += _pour(limiter, keys, requests // PORTIONS)
        refused += sum(not limiter.check(f"new:{portion}:{n}") for n in range(10))
        if freed_after is None and limiter.check(f"blocked:{portion}"):
            freed_after = (portion + 1) * (requests // PORTIONS)
    forgotten = sum(limiter.peek(f"honest:{number}").remaining == LIMIT for number in range(HONEST))
    megabytes = store.stats()["bytes"] / 1e6
    return Damage(
        freed_after,
        refused / (10 * PORTIONS),
        forgotten / HONEST,
        megabytes,
        spent / requests * 1e9,
    )


def _pour(limiter: Limiter, keys: Iterator[str], requests: int) -> float:
    portion = [next(keys) for _ in range(requests)]
    start = time.process_time()
    for key in portion:
        limiter.check(key)
    return time.process_time() - start


def main() -> None:
    print(f"{MADE_UP:,} made-up keys, room for {MAX_KEYS:,}, a limit of {LIMIT}\n")
    print("| overflow | flood | blocked freed after | newcomers refused | idle forgotten | store |")
    print("|---|---|--:|--:|--:|--:|")
    for overflow in ("evict", "deny"):
        for each, what in ((1, "a new key each"), (LIMIT + 1, "keys driven into their limit")):
            damage = run_flood(overflow, each)
            freed = "never" if damage.freed_after is None else f"{damage.freed_after:,} requests"
            print(
                f"| `{overflow}` | {what} | {freed} | {damage.newcomers_refused:.0%} "
                f"| {damage.honest_forgotten:.0%} | {damage.megabytes:.0f} MB |"
                f"  {damage.ns_per_request:.0f} ns a request",
                flush=True,
            )


if __name__ == "__main__":
    main()
