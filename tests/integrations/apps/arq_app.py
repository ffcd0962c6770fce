"""Jobs of arq, and what puts some of them into the queue and waits for them. They run with a
redis-py of their own, older than that of the tests."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Retry

from penstock import fixed_window, gcra
from penstock.integrations.arq import limited_job
from tests.integrations.apps import BROKER, LIMIT, OPTIONS, POLICY, SLOT_S, SLOTS, asked, note


@limited_job(LIMIT, **OPTIONS)
async def work(ctx: dict[str, Any], tenant: str) -> str:
    note("work", tenant, ctx["job_try"] - 1)
    return f"{tenant} done"


@limited_job(POLICY, key="{tenant}")
async def work_by_policy(ctx: dict[str, Any], tenant: str) -> str:
    note("work", tenant, ctx["job_try"] - 1)
    return f"{tenant} done"


@limited_job(fixed_window(2, 1_000), **OPTIONS)
async def fail_once(ctx: dict[str, Any], tenant: str) -> str:
    if note("fail", tenant, ctx["job_try"] - 1) == 1:
        raise Retry
    return f"{tenant} done"


@limited_job(SLOTS, **OPTIONS)
async def slotted(ctx: dict[str, Any], tenant: str) -> str:
    note("slotted", tenant, ctx["job_try"] - 1)
    await asyncio.sleep(SLOT_S)
    return f"{tenant} done"


@limited_job(gcra(1, 1_000), **OPTIONS)
async def inner(ctx: dict[str, Any], tenant: str) -> str:
    note("inner", tenant, ctx["job_try"] - 1)
    return f"{tenant} done"


@limited_job("100/second", **OPTIONS)
async def outer(ctx: dict[str, Any], tenant: str) -> str:
    note("outer", tenant, ctx["job_try"] - 1)
    done: str = await inner(ctx, tenant)
    return done


class WorkerSettings:
    functions = (work, work_by_policy, fail_once, slotted, inner, outer)
    redis_settings = RedisSettings.from_dsn(BROKER)
    queue_name = "penstock-arq"
    max_tries = 2
    poll_delay = 0.1


async def main(name: str, tenants: list[str]) -> None:
    pool = await create_pool(WorkerSettings.redis_settings, default_queue_name="penstock-arq")
    jobs = [await pool.enqueue_job(*asked(name, tenant)) for tenant in tenants]
    print(json.dumps([await job.result(timeout=60, poll_delay=0.05) for job in jobs if job]))
    await pool.aclose()
