"""Connections that end at an awkward moment: the call goes on at once, or fails at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis.asyncio

from penstock import Limiter, StoreUnavailableError, gcra, rate_limit
from penstock.stores.redis import RedisStore
from tests.servers import FaultProxy
from tests.stores.redis.live import PATIENT_MS, SPAN_MS, new_key, running
from tests.stores.redis.test_several import Plain

# Much less than a call has, and long for one that is told at once.
SOON_S = 5


class BriefConnection(redis.asyncio.Connection):
    """One that ends so many turns of the loop after it was made, as if the server had hung up. The
    next ones stay."""

    turns: int | None = None

    async def connect(self) -> None:
        await super().connect()
        turns, BriefConnection.turns = BriefConnection.turns, None
        if turns is not None:
            self._end_in(turns, self._writer.transport)

    def _end_in(self, turns: int, transport: Any) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._end_in, turns - 1, transport)
        else:
            transport.abort()


async def outcome_of(limiter: Limiter) -> str:
    """What a check fails with; nothing if it admits."""
    try:
        decision = await asyncio.wait_for(limiter.acheck("k"), SOON_S)
    except StoreUnavailableError as error:
        return str(error)
    assert decision.allowed
    return ""


@pytest.mark.parametrize("turns", range(10))
def test_a_connection_that_ends_as_it_is_made_keeps_nobody_waiting(turns: int) -> None:
    """Who was to use it has the next one, or is told, if the request was sent already; none is
    charged twice."""

    async def main() -> None:
        server = running("valkey")
        pool = redis.asyncio.ConnectionPool(BriefConnection, host=server.host, port=server.port)
        store = RedisStore(redis.asyncio.Redis(connection_pool=pool), timeout_ms=PATIENT_MS)
        limiter = rate_limit(gcra(10, SPAN_MS), store=store, prefix=new_key())
        BriefConnection.turns = turns
        told = [await outcome_of(limiter) for _ in range(3)]
        doubts = [text for text in told if text]
        assert all("may have been charged" in text for text in doubts)
        assert 7 <= (await limiter.apeek("k")).remaining <= 7 + len(doubts)
        await store.aclose()

    asyncio.run(main())


def test_a_transaction_whose_connection_is_lost_begins_again_on_another() -> None:
    """Nothing was written when it was lost."""

    async def main(proxy: FaultProxy) -> None:
        store = RedisStore.from_url(f"redis://127.0.0.1:{proxy.port}", timeout_ms=PATIENT_MS)
        limiter = rate_limit(Plain(10, SPAN_MS), store=store, prefix=new_key())
        assert await limiter.acheck("k")
        proxy.cut_after_request(match=b"WATCH", times=1)
        assert await asyncio.wait_for(limiter.acheck("k"), SOON_S)
        await store.aclose()

    with FaultProxy(running("valkey").port) as proxy:
        asyncio.run(main(proxy))
