"""The Upstash client, over HTTP, against its REST API in front of a real server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import upstash_redis
import upstash_redis.asyncio

from penstock import (
    ConfigInvalidError,
    Limiter,
    StoreUnavailableError,
    UnsupportedError,
    gcra,
    rate_limit,
)
from penstock.stores.redis import RedisStore
from tests.servers import NotReady, eventually
from tests.stores.redis.live import FIVE, PATIENT_MS, running
from tests.stores.redis.rest_bridge import RestBridge
from tests.support.helpers import Quota, run


@pytest.fixture
def bridge() -> Iterator[RestBridge]:
    server = running("valkey")
    with RestBridge(server.host, server.port) as found:
        yield found


def client_of(bridge: RestBridge) -> Any:
    return upstash_redis.Redis(bridge.url, "token", rest_retries=0)


@pytest.mark.parametrize("kind", FIVE)
def test_the_rest_api_decides_like_a_connection(bridge: RestBridge, kind: str, key: str) -> None:
    """check, check_many, peek, forecast and reset, each one HTTP request once scripts are known."""
    running("valkey").call("SCRIPT", "FLUSH")
    with client_of(bridge) as client:
        store = RedisStore(client, timeout_ms=PATIENT_MS)
        limiter = rate_limit(FIVE[kind](5), store=store)
        assert [limiter.check(key).remaining for _ in range(2)] == [4, 3]
        assert [d.remaining for d in limiter.check_many([key, key, f"{key}b"])][:2] == [2, 1]
        assert limiter.peek(key).remaining == 1
        assert limiter.forecast(key).spendable_now == 1
        before = len(bridge.requests)
        (
            limiter.check(key),
            limiter.check_many([key, f"{key}b"]),
            limiter.peek(key),
            limiter.forecast(key),
        )
        assert len(bridge.requests) == before + 4
        limiter.reset(key)
        assert limiter.peek(key).remaining == 5


def test_the_asyncio_client_serves_the_async_calls(bridge: RestBridge, key: str) -> None:
    """And only those."""

    async def main() -> None:
        async with upstash_redis.asyncio.Redis(bridge.url, "token", rest_retries=0) as client:
            limiter = rate_limit(gcra(5, 600_000), store=RedisStore(client, timeout_ms=PATIENT_MS))
            assert [(await limiter.acheck(key)).remaining for _ in range(2)] == [4, 3]
            assert (await limiter.apeek(key)).remaining == 3
            with pytest.raises(UnsupportedError):
                limiter.check(key)

    run(main())


def test_a_strategy_without_an_accelerator_is_refused_at_the_first_call(
    bridge: RestBridge, key: str
) -> None:
    """REST has no WATCH; the message says what to do instead."""
    with client_of(bridge) as client:
        limiter = rate_limit(Quota(5), store=RedisStore(client, timeout_ms=PATIENT_MS))
        with pytest.raises(UnsupportedError, match="rediss://"):
            limiter.check(key)


def test_a_client_that_repeats_requests_is_refused(bridge: RestBridge) -> None:
    """It would charge a request twice when an answer is lost."""
    client = upstash_redis.Redis(bridge.url, "token")
    with client, pytest.raises(ConfigInvalidError, match="rest_retries=0"):
        RedisStore(client)


def test_a_slow_answer_is_given_up_on_in_time(bridge: RestBridge, key: str) -> None:
    """The client itself would wait for ever."""
    with client_of(bridge) as client:
        limiter = rate_limit(gcra(5, 600_000), store=RedisStore(client, timeout_ms=100))
        bridge.delay_s = 1.0
        start = time.monotonic()
        with pytest.raises(StoreUnavailableError, match="may have been charged"):
            limiter.check(key)
        assert time.monotonic() - start < 0.6
        bridge.delay_s = 0.0
        time.sleep(1.0)


def test_an_outage_does_not_pile_up_threads(bridge: RestBridge, key: str) -> None:
    """So many calls may wait for an answer; the others fail at once, uncharged."""
    with client_of(bridge) as client:
        limiter = rate_limit(gcra(1_000, 600_000), store=RedisStore(client, timeout_ms=5))
        bridge.delay_s = 4.0
        before = threading.active_count()
        seen: list[str] = []
        for _ in range(200):
            start = time.monotonic()
            with pytest.raises(StoreUnavailableError) as caught:
                limiter.check(key)
            assert time.monotonic() - start < 3
            seen.append(str(caught.value))
        # Each call that waits is a thread here and a thread of the bridge.
        assert threading.active_count() - before <= 2 * 128 + 2
        assert "may have been charged" in seen[0]
        assert "was not charged" in seen[-1]
        bridge.delay_s = 0.0
        eventually(lambda: _served(limiter, key), within=20, what="a thread that is free again")


def _served(limiter: Limiter, key: str) -> None:
    try:
        limiter.check(f"{key}-after")
    except StoreUnavailableError as error:
        raise NotReady from error
