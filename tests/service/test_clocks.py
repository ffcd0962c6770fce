"""A service with a clock of its own decides by it on every store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock import ConfigInvalidError, ManualClock
from penstock.config import parse_policies
from penstock.service import build_service
from tests.service.every_store import STORES, url_of
from tests.stores.redis.live import new_key
from tests.support.helpers import NOW

MINUTE_MS = 60_000


def policies() -> str:
    return f"""
version: 1
defaults: {{prefix: {new_key()}}}
limiters:
  api: {{strategy: fixedWindow, limit: 2, window: 1m, anchor: first, fail: error}}
"""


@pytest.mark.parametrize("name", STORES)
def test_a_service_with_a_clock_decides_by_it(name: str, tmp_path: Path) -> None:
    clock = ManualClock(NOW)

    async def main() -> None:
        file = parse_policies(policies(), "penstock.yaml")
        service = build_service(file, url_of(name, tmp_path), clock=clock)
        told = [await service.check("api", "k") for _ in range(3)]
        assert [each.allowed for each in told] == [True, True, False]
        assert told[0].reset_at == NOW + MINUTE_MS
        clock.advance(MINUTE_MS)
        assert (await service.check("api", "k")).reset_at == NOW + 2 * MINUTE_MS
        reserved = await service.reserve("api", "other", cost=2)
        assert reserved.charged_at == NOW + MINUTE_MS
        assert await service.cancel(reserved.charge_id)
        assert (await service.peek("api", "other")).remaining == 2
        await service.aclose()

    asyncio.run(main())


def test_a_clock_beside_a_url_that_asks_for_that_of_the_server_is_refused(tmp_path: Path) -> None:
    url = url_of("valkey", tmp_path) + "&use_server_time=true"
    with pytest.raises(ConfigInvalidError, match="use_server_time=False"):
        build_service(store_url=url, clock=ManualClock(NOW))
