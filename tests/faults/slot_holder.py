"""A process that takes slots, holds them for a while and gives them back, again and again:

    python -m tests.faults.slot_holder <store URL> <prefix> <slots> <ttl ms> <hold s> <log> <how>

While it counts on a slot it writes its id and the time, by the clock that all processes of a
machine share, read before it looks. `how` is `renews`, by calls of its own, `kept`, by the thread
that renews all charges, or `awaits`, by the task that does. Of the last two, the file with `-lost`
behind its name has the ids of which it was told that they were lost.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress
from typing import Any

from penstock import Charge, PenstockError, RateLimitExceededError, rate_limit, slots

LOOK_S = 0.01


class Holder:
    """What the three ways have in common: what they count on is written down."""

    def __init__(self, url: str, prefix: str, limit: int, ttl_ms: int, hold_s: float, path: str):
        self.limiter = rate_limit(slots(limit, ttl_ms), store=url, prefix=prefix)
        self.ttl_ms, self.hold_s = ttl_ms, hold_s
        self.log = open(path, "a", buffering=1)  # noqa: SIM115
        self.lost = open(f"{path}-lost", "a", buffering=1)  # noqa: SIM115

    def counts_on(self, charge: Charge, began: float) -> bool:
        at = time.monotonic()
        if at >= began + self.hold_s or not charge.holds:
            return False
        print(charge.id, at, file=self.log)
        return True

    def told(self, charge: Any) -> None:
        print(charge.id, file=self.lost)

    def run(self, *, kept: bool) -> None:
        while True:
            try:
                charge: Any = self.limiter.acquire("k", timeout=5)
            except RateLimitExceededError:
                continue
            except PenstockError:
                time.sleep(0.05)
                continue
            if kept:
                charge.keep_renewed(self.told)
            began = renewed = time.monotonic()
            while self.counts_on(charge, began):
                if not kept and time.monotonic() > renewed + self.ttl_ms / 6_000:
                    renewed = time.monotonic()
                    with suppress(PenstockError):
                        charge.renew()
                time.sleep(LOOK_S)
            # Time for the thread that tells, before the charge is given back.
            time.sleep(LOOK_S)
            with suppress(PenstockError):
                charge.cancel()

    async def arun(self) -> None:
        while True:
            try:
                charge: Any = await self.limiter.aacquire("k", timeout=5)
            except RateLimitExceededError:
                continue
            except PenstockError:
                await asyncio.sleep(0.05)
                continue
            charge.akeep_renewed(self.told)
            began = time.monotonic()
            while self.counts_on(charge, began):
                await asyncio.sleep(LOOK_S)
            await asyncio.sleep(LOOK_S)
            with suppress(PenstockError):
                await charge.acancel()


def main(holder: Holder, how: str) -> None:
    if how == "awaits":
        asyncio.run(holder.arun())
    else:
        holder.run(kept=how == "kept")


if __name__ == "__main__":
    address, lead, count, ttl, hold, file, way = sys.argv[1:]
    main(Holder(address, lead, int(count), int(ttl), float(hold), file), way)
