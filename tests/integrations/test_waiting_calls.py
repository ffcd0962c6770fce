"""Many calls wait for a pace: calls that are cancelled, and processes that die, leave no bookings
that others wait behind; and the processes are served evenly."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from typing import Any

import pytest

from penstock import Limits, ManualClock, MemoryStore, gcra, token_bucket
from penstock.integrations.language_models import ModelLimits
from tests.core.waiters import auntil
from tests.integrations.partner import Partner
from tests.stores.redis.live import new_key, patient_url_of
from tests.support.helpers import NOW

MANY = 200


async def call(model: ModelLimits, begun: list[int] | None = None, number: int = 0) -> None:
    async with model.call(1, 1):
        if begun is not None:
            begun.append(number)


@pytest.mark.parametrize("strategy", [gcra(10, 1_000, burst=1), token_bucket(1, 10)], ids=repr)
@pytest.mark.parametrize("order", ["first to last", "last to first", "at random"])
def test_cancelled_calls_leave_no_booking_in_whatever_order(strategy: Any, order: str) -> None:
    """On a clock that stands still, so that nothing is replenished meanwhile."""

    async def main() -> None:
        clock = ManualClock(NOW)
        store = MemoryStore(clock=clock)
        model = ModelLimits(requests=strategy, in_flight=300, store=store, clock=clock)
        seen = Limits({"requests": strategy}, store=store, clock=clock, prefix="model")
        await call(model)
        before = seen.peek({"requests": "all"})
        tasks = [asyncio.create_task(call(model)) for _ in range(MANY)]
        await auntil(lambda: len(model._pacer.queues) == MANY)
        victims = {"first to last": tasks, "last to first": tasks[::-1]}.get(
            order, random.Random(7).sample(tasks, MANY)
        )
        for task in victims:
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert seen.peek({"requests": "all"}) == before
        assert model.remaining()["in_flight"] == 300

    asyncio.run(asyncio.wait_for(main(), 60))


def test_calls_that_time_out_behind_others_leave_no_booking() -> None:
    clock = ManualClock(NOW)
    store = MemoryStore(clock=clock)
    model = ModelLimits(requests=gcra(1, 1_000), timeout=3, store=store, clock=clock)

    async def main() -> None:
        began: list[int] = []
        await call(model)
        tasks = [asyncio.create_task(call(model, began, number)) for number in range(20)]
        await auntil(lambda: len(model._pacer.queues) == 20)
        for _ in range(3):
            clock.advance(1_000)
            await asyncio.sleep(0.05)
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert began == [number for number, each in enumerate(found) if each is None]
        assert len(began) == 3
        clock.advance(1_000)
        await asyncio.wait_for(call(model), 20)

    asyncio.run(main())


DYING = """
import asyncio, sys
from penstock import gcra
from penstock.integrations.language_models import ModelLimits

async def main(url, prefix):
    model = ModelLimits(requests=gcra(10, 1_000, burst=1), store=url, prefix=prefix)
    async def call():
        async with model.call(1, 1):
            await asyncio.sleep(60)
    calls = [asyncio.create_task(call()) for _ in range(150)]
    await asyncio.sleep(0.5)
    print("waiting", flush=True)
    await asyncio.sleep(60)

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_process_that_dies_with_waiting_calls_leaves_one_booking() -> None:
    url, prefix = patient_url_of("valkey"), new_key()
    words = [sys.executable, "-c", DYING, url, prefix]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as dying:
        assert dying.stdout is not None
        assert dying.stdout.readline() == b"waiting\n"
        dying.kill()

    async def main() -> float:
        model = ModelLimits(requests=gcra(10, 1_000, burst=1), store=url, prefix=prefix)
        began = time.monotonic()
        await call(model)
        await model.aclose()
        return time.monotonic() - began

    # 150 bookings would be 15 seconds.
    assert asyncio.run(main()) < 3


def test_cancelled_requests_of_an_http_client_leave_no_booking() -> None:
    import httpx

    from penstock.integrations.httpx import AsyncLimitedTransport

    async def main(base: str) -> float:
        transport = AsyncLimitedTransport(gcra(10, 1_000, burst=1), store="memory://")
        async with httpx.AsyncClient(transport=transport) as client:
            await client.get(base)
            tasks = [asyncio.create_task(client.get(base)) for _ in range(100)]
            await asyncio.sleep(0.3)
            for task in random.Random(3).sample(tasks, len(tasks)):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            began = time.monotonic()
            await client.get(base)
            return time.monotonic() - began

    with Partner() as server:
        # 100 bookings would be 10 seconds.
        assert asyncio.run(main(server.url())) < 2


PACED = """
import asyncio, json, sys, time
from penstock import gcra
from penstock.integrations.language_models import ModelLimits

async def main(url, prefix, in_flight):
    limits = {"requests": gcra(40, 1_000, burst=1), "in_flight": int(in_flight) or None}
    model = ModelLimits(**limits, store=url, prefix=prefix)
    await model._pacer.limits.apeek(model._pacer.keys("warm"))
    print("ready", flush=True)
    sys.stdin.readline()
    began, ends, order = time.monotonic(), [], []
    async def call(number):
        async with model.call(1, 1):
            ends.append(time.monotonic() - began)
            order.append(number)
            await asyncio.sleep(0.02)
    await asyncio.gather(*[call(number) for number in range(20)])
    print(json.dumps([ends, order]), flush=True)
    await model.aclose()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("in_flight", [0, 10])
def test_processes_are_served_evenly_with_and_without_slots_that_do_not_bind(
    in_flight: int,
) -> None:
    """Four processes with 20 calls each share 40 a second: all of them end after two seconds, each
    in its own order of arrival, and the pace is reached."""
    words = [sys.executable, "-c", PACED, patient_url_of("valkey"), new_key(), str(in_flight)]
    pipe = subprocess.PIPE
    children = [subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) for _ in range(4)]
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        told = [json.loads(child.communicate(timeout=60)[0]) for child in children]
    finally:
        for child in children:
            child.kill()
            child.communicate()
    for _, order in told:
        assert order == list(range(20))
    ends = sorted(max(times) for times, _ in told)
    assert ends[0] > 0.7 * ends[-1]
    # 80 calls at 40 a second.
    assert ends[-1] < 2 * 1.5
