"""Put a limit in front of any function: a decorator, sync or async, or a block."""

from __future__ import annotations

import asyncio
import time

from penstock import RateLimitExceededError, gcra, limited


@limited(gcra(20, 1_000, burst=1))
def geocode(place: str) -> str:
    return f"{place} found"


@limited("2/minute", key="{user}", timeout=0)
async def reset_password(user: str) -> None:
    print(f"mail sent to {user}")


partner = limited("100/second", key="partner")


async def main() -> None:
    started = time.monotonic()
    for place in ("Oslo", "Lima", "Kyoto"):
        geocode(place)
    print(f"three calls, 50 ms apart: {time.monotonic() - started >= 0.1}")

    try:
        for user in ("alice", "alice", "bob", "alice"):
            await reset_password(user)
    except RateLimitExceededError as error:
        print(f"{user} has to wait {error.decision.retry_after_ms / 1000:.0f} s")

    async with partner:
        print("a block, too")


if __name__ == "__main__":
    asyncio.run(main())
