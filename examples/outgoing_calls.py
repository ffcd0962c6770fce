"""Stay within somebody else's limit: wait before calling, instead of being refused.

The partner allows 20 calls a second, 3 of them at once. Tasks that wait for the same key are
served in the order in which they came.
"""

from __future__ import annotations

import asyncio
import time

from penstock import RateLimitExceededError, gcra, rate_limit

partner = rate_limit(gcra(20, 1000, burst=3))
reports = rate_limit("2/minute")


async def call_partner(number: int, started: float) -> None:
    await partner.aacquire("partner")
    print(f"call {number} at {time.monotonic() - started:.2f} s")


async def main() -> None:
    started = time.monotonic()
    await asyncio.gather(*(call_partner(number, started) for number in range(10)))

    # With a timeout, a wait that would end too late is not even begun.
    await reports.aacquire("weekly", cost=2)
    try:
        await reports.aacquire("weekly", timeout=10)
    except RateLimitExceededError as error:
        wait_s = error.decision.retry_after_ms / 1000
        print(f"not within 10 s: the next report is due in {wait_s:.0f} s")


if __name__ == "__main__":
    asyncio.run(main())
