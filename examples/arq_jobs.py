"""Limit the jobs of arq: what has to wait is put back, costs no try and logs no error.

Needs a Redis, which is arq's queue and the store of the limit: `python examples/arq_jobs.py
redis://localhost:6379`. The worker runs in this program until the queue is empty; in earnest there
are several, started by `arq arq_jobs.WorkerSettings`, and the limit holds for all of them together.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

from arq import create_pool  # type: ignore[import-not-found]
from arq.connections import RedisSettings  # type: ignore[import-not-found]
from arq.worker import Worker  # type: ignore[import-not-found]

from penstock import gcra
from penstock.integrations.arq import limited_job

SPACING_MS = 800
URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("REDIS_URL", "redis://localhost:6379")
ran: list[tuple[str, int, float]] = []


@limited_job(gcra(1, SPACING_MS, burst=1), key="{tenant}", store=URL)
async def send(ctx: dict[str, Any], tenant: str) -> None:
    ran.append((tenant, ctx["job_try"], time.monotonic()))


class WorkerSettings:
    functions = (send,)
    redis_settings = RedisSettings.from_dsn(URL)
    queue_name = "penstock-example"
    max_tries = 1
    poll_delay = 0.1


async def main() -> None:
    settings = WorkerSettings
    pool = await create_pool(settings.redis_settings, default_queue_name=settings.queue_name)
    began = time.monotonic()
    for tenant in ("acme", "acme", "acme", "other"):
        await pool.enqueue_job("send", tenant)
    worker = Worker(
        functions=settings.functions,
        redis_pool=pool,
        queue_name=settings.queue_name,
        max_tries=settings.max_tries,
        poll_delay=settings.poll_delay,
        burst=True,
        handle_signals=False,
    )
    await worker.main()
    await worker.close()

    print("all of them ran:", sorted(tenant for tenant, _, _ in ran))
    print("each in its first try:", {tries for _, tries, _ in ran} == {1})
    acme = [at for tenant, _, at in ran if tenant == "acme"]
    # The third has two spaces before it.
    print("one after the other:", (acme[-1] - began) * 1000 >= 2 * SPACING_MS - 20)


if __name__ == "__main__":
    asyncio.run(main())
