"""Services that share a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from penstock import ConfigInvalidError, Decision
from penstock.config import parse_policies
from penstock.service import Service, build_service
from penstock.service._inline import MAX_WINDOW_MS, MOST_BYTES, most_units
from penstock.stores.redis import RedisStore
from penstock.strategies import SlidingWindowLog
from tests.servers import Valkey, require
from tests.service.test_inline import STRATEGIES

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


DAY_MS = 86_400_000
LONG = ("x" * 4_096, "ü" * 2_048, "\U0001f600" * 1_024, "x" * 127, "x" * 128)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_an_inline_request_leaves_is_a_kilobyte_for_a_window(
    server: Valkey, strategy: str
) -> None:
    """Of the largest that it may ask for, until nothing more is admitted: name and state as the
    server counts them, and its time to live."""
    limit = most_units(SlidingWindowLog) if strategy == "sliding_window_log" else 2**53 - 1
    limit = {"gcra": 10_000_000, "token_bucket": 10_000_000}.get(strategy, limit)

    async def main() -> None:
        async with services(server, 1) as (service,):
            server.call("FLUSHALL")
            for key in LONG:
                for cost in (limit - 12, *[1] * 12) if limit > 20 else [1] * limit:
                    check = service.check_inline(key, limit, MAX_WINDOW_MS, cost, strategy)
                    assert await check, (key, cost)
            names = server.call("KEYS", "*")
            assert len(names) == len(LONG)
            for name in names:
                assert server.call("MEMORY", "USAGE", name, "SAMPLES", 0) <= MOST_BYTES
                assert server.call("PTTL", name) <= MAX_WINDOW_MS * 1.1 + DAY_MS

    asyncio.run(main())


def test_long_inline_keys_count_apart_and_together(server: Valkey) -> None:
    """A name in their place is as good as they are, for every service on the store."""

    async def main() -> None:
        async with services(server, 2) as (one, other):
            for key in (*LONG, LONG[0][:-1] + "y"):
                assert await one.check_inline(key, 1, 3_600_000)
                assert not await other.check_inline(key, 1, 3_600_000)
            for key in ("x" * 4_097, "", "\ud800" * 200, 5):
                with pytest.raises(ConfigInvalidError, match="key must"):
                    await one.check_inline(key, 1, 3_600_000)  # type: ignore[arg-type]

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
            without = await service.ready()
            assert (without.ok, without.store_ok) == (True, False)
            server.restart()
            assert (await returned(service)).remaining == 4
            assert (await service.ready()).store_ok
            assert service.snapshot().policies["open"]["failed_open"] == 1

    asyncio.run(main())
