"""A process that takes slots, holds them for a while and gives them back, again and again:

    python -m tests.faults.slot_holder <store URL> <prefix> <slots> <ttl in ms> <hold in s> <log>

While it counts on a slot it writes its id and the time, by the clock that all processes of a
machine share, read before it looks.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress

from penstock import PenstockError, RateLimitExceededError, rate_limit, slots

LOOK_S = 0.01


def main(url: str, prefix: str, limit: int, ttl_ms: int, hold_s: float, path: str) -> None:
    limiter = rate_limit(slots(limit, ttl_ms), store=url, prefix=prefix)
    with open(path, "a", buffering=1) as log:
        while True:
            try:
                charge = limiter.acquire("k", timeout=5)
            except RateLimitExceededError:
                continue
            except PenstockError:
                time.sleep(0.05)
                continue
            began = renewed = time.monotonic()
            while (at := time.monotonic()) < began + hold_s and charge.holds:
                print(charge.id, at, file=log)
                if at > renewed + ttl_ms / 6_000:
                    renewed = at
                    with suppress(PenstockError):
                        charge.renew()
                time.sleep(LOOK_S)
            with suppress(PenstockError):
                charge.cancel()


if __name__ == "__main__":
    address, lead, count, ttl, hold, file = sys.argv[1:]
    main(address, lead, int(count), int(ttl), float(hold), file)
