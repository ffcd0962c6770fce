"""Long policy files: how long one takes to load, and how long a request waits while it is taken up.

    python -m bench.policy_files [POLICIES]

Two files of as many policies (20,000), none like another: of one limit each, and of three limits
with two plans each. Times are of the processor, which others on the machine do not change much:
that of loading, and the most that the process of a service spends between two turns of its event
loop while it takes up the file, which is how long a request may have to wait.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from penstock.config import load_policy_file
from penstock.service import build_service
from penstock.service._reloading import Reloader

POLICIES = 20_000


def plain(number: int) -> str:
    return f"  policy-{number}: {{strategy: gcra, limit: {100 + number}, period: 1m}}\n"


def with_plans(number: int) -> str:
    return f"""  policy-{number}:
    limits:
      user: {{by: user, strategy: gcra, limit: {100 + number}, period: 1m}}
      tenant: {{by: tenant, strategy: slidingWindow, limit: {10_000 + number}, window: 1m}}
      all: {{strategy: tokenBucket, capacity: {50_000 + number}, refillPerSec: 800}}
    plans:
      by: plan
      pro: {{user: {{limit: {1_000 + number}}}}}
      team: {{user: {{limit: {2_000 + number}}}, tenant: {{limit: {20_000 + number}}}}}
"""


async def worst_wait_ms(path: Path) -> float:
    """While a service takes up the file, of all turns of its event loop."""
    service = build_service()
    reload = asyncio.create_task(Reloader(service, str(path)).reload())
    worst, before = 0.0, time.process_time()
    while not reload.done():
        await asyncio.sleep(0.001)
        worst, before = max(worst, time.process_time() - before), time.process_time()
    assert reload.result()
    await service.aclose()
    return worst * 1000


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else POLICIES
    with tempfile.TemporaryDirectory() as folder:
        for make in (plain, with_plans):
            path = Path(folder) / f"{make.__name__}.yaml"
            path.write_text("version: 1\nlimiters:\n" + "".join(map(make, range(count))))
            before = time.process_time()
            load_policy_file(path)
            load_s = time.process_time() - before
            wait_ms = asyncio.run(worst_wait_ms(path))
            size = path.stat().st_size / 2**20
            print(
                f"{count:,} policies, {make.__name__.replace('_', ' ')}, {size:.1f} MiB: "
                f"loaded in {load_s:.1f} s, worst wait {wait_ms:.0f} ms",
                flush=True,
            )


if __name__ == "__main__":
    main()
