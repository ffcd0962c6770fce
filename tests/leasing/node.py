"""One node of a fleet, as a process: `python -m tests.leasing.node OPTIONS`, OPTIONS being JSON.

It leases from a real server under random demand and writes down every request that it admitted,
one record each, at once: it may be killed at any moment. Its clock is set off by `skew_ms` before
the package is loaded, so that everything in it believes another time of day. It goes on until there
is a file named `end`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import struct
import sys
import time
from typing import Any

# (before and after the check in true us, reset_at of the decision, 1 if coupled)
RECORD = struct.Struct("<QQQB")


def true_us(clock: Any = time.time_ns) -> int:
    return int(clock() // 1_000)


def set_off(skew_ms: int) -> None:
    real = time.time_ns
    time.time_ns = lambda: real() + skew_ms * 1_000_000


class Node:
    def __init__(self, options: dict[str, Any]) -> None:
        from penstock import fixed_window
        from penstock.leasing import two_tier
        from penstock.stores.redis import RedisStore

        self.rng = random.Random(options["seed"])
        self.end = options["end"]
        self.busy, self.mood_until_us = True, 0
        store = RedisStore.from_url(options["url"], timeout_ms=5_000)
        strategy = fixed_window(options["limit"], options["window_ms"])
        self.limiters = {
            coupled: two_tier(
                strategy,
                store,
                batch=options["batch"],
                low_water=options["low_water"],
                window_coupled=coupled,
                prefix="coupled" if coupled else "carried",
            )
            for coupled in (True, False)
        }
        self.log = os.open(options["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, before: int, decision: Any, coupled: bool) -> None:
        if decision.allowed:
            os.write(self.log, RECORD.pack(before, true_us(), decision.reset_at, coupled))

    def burst(self) -> tuple[int, float]:
        """(requests at once, seconds until the next). A node is busy or quiet for a while: quiet
        ones hold credits when a window ends."""
        if true_us() >= self.mood_until_us:
            self.busy = self.rng.random() < 0.4
            self.mood_until_us = true_us() + self.rng.randint(50_000, 300_000)
        if self.busy:
            return self.rng.randint(1, 40), self.rng.choice((0.0, 0.001, 0.003, 0.02))
        return 1, self.rng.uniform(0.002, 0.03)

    def run(self) -> None:
        while not os.path.exists(self.end):
            requests, pause_s = self.burst()
            for _ in range(requests):
                for coupled, limiter in self.limiters.items():
                    before = true_us()
                    self.note(before, limiter.check("key"), coupled)
            time.sleep(pause_s)

    async def arun(self) -> None:
        async def caller() -> None:
            while not os.path.exists(self.end):
                requests, pause_s = self.burst()
                for _ in range(requests):
                    for coupled, limiter in self.limiters.items():
                        before = true_us()
                        self.note(before, await limiter.acheck("key"), coupled)
                await asyncio.sleep(pause_s)

        await asyncio.gather(caller(), caller())


def main() -> None:
    options = json.loads(sys.argv[1])
    set_off(options["skew_ms"])
    node = Node(options)
    if options["mode"] == "async":
        asyncio.run(node.arun())
    else:
        node.run()


if __name__ == "__main__":
    main()
