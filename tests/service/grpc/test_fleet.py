"""Several service processes on one store, and a store that goes away and comes back."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from typing import Any

import grpc

from tests.servers import Valkey, require
from tests.service.grpc.servers import code_of, existing, run
from tests.service.grpc.serving import serving

FILE = """
version: 1
limiters:
  fifty: {strategy: fixedWindow, limit: 50, window: 1h, anchor: first}
  open: {strategy: gcra, limit: 1000000, period: 1h, fail: open}
  closed: {strategy: gcra, limit: 1000000, period: 1h, fail: closed}
  error: {strategy: gcra, limit: 1000000, period: 1h, fail: error}
  llm: {tokenBudget: {budget: 1000, window: 1h}}
"""

# What a check may take while the store is away, on a machine that has other things to do.
PATIENCE_S = 2.0


class Fleet:
    """Clients of several ports."""

    def __init__(self, *ports: int) -> None:
        self.pb, stub = existing()
        self.channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}") for port in ports]
        self.stubs = [stub(channel) for channel in self.channels]

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(self, *_: object) -> None:
        for channel in self.channels:
            await channel.close()

    def check(self, policy: str, number: int = 0) -> Any:
        request = self.pb.CheckRequest(policy=policy, key="shared")
        return self.stubs[number % len(self.stubs)].Check(request, timeout=20)


async def eventually(condition: Any) -> None:
    deadline = time.monotonic() + 15
    while not await condition():
        assert time.monotonic() < deadline, "not within 15 s"
        await asyncio.sleep(0.05)


def test_two_processes_on_one_store_admit_exactly_the_limit() -> None:
    """200 at once at a limit of 50, over gRPC."""
    require("valkey")

    async def scenario(*ports: int) -> None:
        async with Fleet(*ports) as fleet:
            replies = await asyncio.gather(*(fleet.check("fifty", n) for n in range(200)))
            assert sum(reply.decision.allowed for reply in replies) == 50
            assert {reply.decision.limit for reply in replies} == {50}

    with ExitStack() as stack:
        # How long a store may take to connect is not what this is about.
        store = f"{stack.enter_context(Valkey()).url}?timeout_ms=20000"
        ports = [stack.enter_context(serving(FILE, store)) for _ in range(2)]
        run(scenario(*ports))


def test_two_processes_share_a_token_budget() -> None:
    """What one has debited the other knows."""
    require("valkey")

    async def scenario(*ports: int) -> None:
        async with Fleet(*ports) as fleet:
            request = fleet.pb.DebitRequest(policy="llm", key="a", tokens=10)
            calls = [fleet.stubs[n % 2].Debit(request, timeout=20) for n in range(150)]
            replies = await asyncio.gather(*calls)
            assert sum(reply.decision.allowed for reply in replies) == 100

    with ExitStack() as stack:
        # How long a store may take to connect is not what this is about.
        store = f"{stack.enter_context(Valkey()).url}?timeout_ms=20000"
        ports = [stack.enter_context(serving(FILE, store)) for _ in range(2)]
        run(scenario(*ports))


def test_a_store_that_dies_and_returns_is_lived_through() -> None:
    """Each policy answers as its fail mode says, soon, and as before once the store is back."""
    require("valkey")

    async def healthy(fleet: Fleet) -> bool:
        return await code_of(fleet.check("error")) is grpc.StatusCode.OK

    async def answers(fleet: Fleet) -> list[Any]:
        calls = [fleet.check("open"), fleet.check("closed")]
        return [(await call).decision.allowed for call in calls]

    async def scenario(server: Valkey, port: int) -> None:
        async with Fleet(port) as fleet:
            assert await healthy(fleet)
            assert await answers(fleet) == [True, True]
            for hurt, heal in ((server.kill, server.restart), (server.pause, server.resume)):
                hurt()
                for _ in range(3):
                    began = time.monotonic()
                    assert await answers(fleet) == [True, False]
                    assert await code_of(fleet.check("error")) is grpc.StatusCode.UNAVAILABLE
                    assert time.monotonic() - began < 3 * PATIENCE_S
                heal()
                await eventually(lambda: healthy(fleet))
                assert await answers(fleet) == [True, True]

    with Valkey() as server, serving(FILE, server.url) as port:
        run(scenario(server, port))
