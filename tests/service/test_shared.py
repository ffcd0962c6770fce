"""Services that share a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from penstock import Decision
from penstock.config import parse_policies
from penstock.service import Service, build_service
from penstock.stores.redis import RedisStore
from tests.servers import Valkey, require

FILE = parse_policies(
    """
version: 1
limiters:
  api: {strategy: slidingWindow, limit: 50, window: 1h}
  open: {strategy: fixedWindow, limit: 5, window: 1h, fail: open}
  closed: {strategy: fixedWindow, limit: 5, window: 1h, fail: closed}
  llm: {tokenBudget: {budget: 100, window: 1d}}
"""
)


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    """A server of our own, to be hurt."""
    require("valkey")
    with Valkey() as server:
        yield server


@asynccontextmanager
async def services(server: Valkey, count: int) -> AsyncIterator[list[Service]]:
    """So many on one server, patient with a slow machine."""
    stores = [RedisStore.from_url(server.url, timeout_ms=10_000) for _ in range(count)]
    made = [build_service(FILE, store=store) for store in stores]
    try:
        yield made
    finally:
        for service in made:
            await service.aclose()


def test_two_services_admit_exactly_the_limit_between_them(server: Valkey) -> None:
    """Equal files lead to equal keys, and the server decides."""

    async def main() -> None:
        async with services(server, 2) as pair:
            checks = [pair[n % 2].check("api", "k") for n in range(200)]
            assert sum(map(bool, await asyncio.gather(*checks))) == 50
            inline = [pair[n % 2].check_inline("k", 50, 3_600_000) for n in range(200)]
            assert sum(map(bool, await asyncio.gather(*inline))) == 50
            debits = [pair[n % 2].debit("llm", "k", 7) for n in range(100)]
            assert sum(map(bool, await asyncio.gather(*debits))) == 15
            many = await pair[0].check_many("open", ["a", "b", "a"])
            assert [decision.remaining for decision in many] == [4, 4, 3]

    asyncio.run(main())


async def returned(service: Service) -> Decision:
    """The first decision of the server itself after an outage."""
    for _ in range(200):
        decision = await service.check("closed", "k")
        if decision:
            return decision
        await asyncio.sleep(0.05)
    raise AssertionError("the service did not find its store again")


def test_a_server_that_dies_and_returns_is_survived(server: Valkey) -> None:
    """Each policy answers as it is told to, and decides again by itself."""

    async def main() -> None:
        async with services(server, 1) as (service,):
            assert await service.check("open", "k")
            assert (await service.ready()).ok
            server.kill()
            now = service.clock.now()
            allowed, denied = await service.check("open", "k"), await service.check("closed", "k")
            assert (allowed.allowed, allowed.limit, allowed.remaining) == (True, 5, 0)
            assert (denied.allowed, denied.retry_after_ms) == (False, 1_000)
            assert now <= denied.reset_at - 1_000 <= service.clock.now()
            assert not (await service.ready()).ok
            server.restart()
            assert (await returned(service)).remaining == 4
            assert (await service.ready()).ok
            assert service.snapshot().policies["open"]["failed_open"] == 1

    asyncio.run(main())
