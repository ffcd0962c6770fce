"""Limits on the requests of each HTTP client, against a partner that answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import (
    RateLimitExceededError,
    gcra,
)
from tests.integrations.partner import Partner
from tests.stores.redis.live import PATIENT_MS, new_key, url_of
from tests.support.helpers import run

CLIENTS = ["httpx", "httpx-async", "requests", "urllib3", "aiohttp"]


all_clients = pytest.mark.parametrize("client", CLIENTS)


@pytest.fixture
def partner() -> Iterator[Partner]:
    with Partner() as server:
        yield server


def gets(client: str, urls: list[str], limit: Any, **options: Any) -> list[int]:
    """The statuses of some requests, one after the other, by one client that is closed then."""
    return {
        "httpx": _httpx,
        "httpx-async": _httpx_async,
        "requests": _requests,
        "urllib3": _urllib3,
        "aiohttp": _aiohttp,
    }[client](urls, limit, options)


def _httpx(urls: list[str], limit: Any, options: Any) -> list[int]:
    import httpx

    from penstock.integrations.httpx import LimitedTransport

    transport = LimitedTransport(limit, **options)
    with httpx.Client(transport=transport, follow_redirects=True) as session:
        return [session.get(url).status_code for url in urls]


def _httpx_async(urls: list[str], limit: Any, options: Any) -> list[int]:
    import httpx

    from penstock.integrations.httpx import AsyncLimitedTransport

    async def main() -> list[int]:
        transport = AsyncLimitedTransport(limit, **options)
        async with httpx.AsyncClient(transport=transport, follow_redirects=True) as session:
            return [(await session.get(url)).status_code for url in urls]

    return run(main())  # type: ignore[no-any-return]


def _requests(urls: list[str], limit: Any, options: Any) -> list[int]:
    import requests

    from penstock.integrations.requests import limit_session

    with requests.Session() as session:
        limit_session(session, limit, **options)
        return [session.get(url).status_code for url in urls]


def _urllib3(urls: list[str], limit: Any, options: Any) -> list[int]:
    from urllib3.util import Retry

    from penstock.integrations.urllib3 import LimitedPoolManager

    # By itself urllib3 would wait and try again where an answer says Retry-After.
    options.setdefault("pool", {"retries": Retry(3, respect_retry_after_header=False)})
    with LimitedPoolManager(limit, **options) as pool:
        return [pool.request("GET", url).status for url in urls]


def _aiohttp(urls: list[str], limit: Any, options: Any) -> list[int]:
    from aiohttp import ClientSession

    from penstock.integrations.aiohttp_client import LimitedMiddleware

    async def main() -> list[int]:
        found = []
        async with (
            LimitedMiddleware(limit, **options) as middleware,
            ClientSession(middlewares=[middleware]) as session,
        ):
            for url in urls:
                async with session.get(url) as response:
                    found.append(response.status)
                    await response.read()
        return found

    return run(main())  # type: ignore[no-any-return]


@all_clients
def test_requests_wait_for_the_limit_of_their_host(client: str, partner: Partner) -> None:
    """Four of them, 30 ms apart."""
    began = time.monotonic()
    assert gets(client, [partner.url()] * 4, gcra(1, 30)) == [200] * 4
    assert time.monotonic() - began >= 0.089
    assert len(partner.seen) == 4


@all_clients
def test_a_request_that_may_not_wait_raises_and_is_not_sent(client: str, partner: Partner) -> None:
    with pytest.raises(RateLimitExceededError) as caught:
        gets(client, [partner.url()] * 3, "2/minute", timeout=0)
    assert caught.value.decision.retry_after_ms > 0
    assert len(partner.seen) == 2


@all_clients
def test_a_redirect_is_a_request_of_its_own(client: str, partner: Partner) -> None:
    partner.answers.append((302, {"Location": "/there"}))
    with pytest.raises(RateLimitExceededError):
        gets(client, [partner.url("/here"), partner.url()], "2/minute", timeout=0)
    assert partner.seen == ["/here", "/there"]


@all_clients
def test_a_stream_arrives_in_pieces(client: str, partner: Partner) -> None:
    """The second half is sent when the first was read, and the headers have been obeyed by then."""
    partner.answers.append((200, {"RateLimit": '"a";r=0;t=30'}))
    pieces, denied = streams(client, partner, "100/second", timeout=0)
    assert pieces == [b"o", b"k"]
    assert denied


def streams(client: str, partner: Partner, limit: Any, **options: Any) -> tuple[list[bytes], bool]:
    """The pieces of a stream, and whether a request in the middle of it was held back."""
    url = partner.url("/stream")
    if client in ("httpx-async", "aiohttp"):
        return run(_astreams(client, url, partner, limit, options))  # type: ignore[no-any-return]
    import httpx
    import requests

    from penstock.integrations.httpx import LimitedTransport
    from penstock.integrations.requests import limit_session
    from penstock.integrations.urllib3 import LimitedPoolManager

    def read(chunks: Any, again: Any) -> tuple[list[bytes], bool]:
        first = next(chunks)
        try:
            again()
            denied = False
        except RateLimitExceededError:
            denied = True
        partner.go.set()
        return [first, *chunks], denied

    if client == "httpx":
        with (
            httpx.Client(transport=LimitedTransport(limit, **options)) as session,
            session.stream("GET", url) as response,
        ):
            return read(response.iter_raw(), lambda: session.get(partner.url()))
    if client == "requests":
        with requests.Session() as requests_session:
            limit_session(requests_session, limit, **options)
            with requests_session.get(url, stream=True) as answer:
                return read(answer.iter_content(1), lambda: requests_session.get(partner.url()))
    with LimitedPoolManager(limit, **options) as pool:
        streamed = pool.request("GET", url, preload_content=False)
        found = read(streamed.stream(1), lambda: pool.request("GET", partner.url()))
        streamed.release_conn()
        return found


async def _astreams(
    client: str, url: str, partner: Partner, limit: Any, options: Any
) -> tuple[list[bytes], bool]:
    import httpx
    from aiohttp import ClientSession

    from penstock.integrations.aiohttp_client import LimitedMiddleware
    from penstock.integrations.httpx import AsyncLimitedTransport

    async def read(chunks: Any, again: Any) -> tuple[list[bytes], bool]:
        first = await anext(chunks)
        try:
            await again
            denied = False
        except RateLimitExceededError:
            denied = True
        partner.go.set()
        return [first, *[chunk async for chunk in chunks]], denied

    if client == "httpx-async":
        transport = AsyncLimitedTransport(limit, **options)
        async with (
            httpx.AsyncClient(transport=transport) as session,
            session.stream("GET", url) as response,
        ):
            return await read(response.aiter_raw(), session.get(partner.url()))
    async with (
        LimitedMiddleware(limit, **options) as middleware,
        ClientSession(middlewares=[middleware]) as aiohttp_session,
        aiohttp_session.get(url) as answer,
    ):
        return await read(aiter(answer.content.iter_any()), aiohttp_session.get(partner.url()))


@all_clients
def test_a_refusal_pauses_and_is_passed_on(client: str, partner: Partner) -> None:
    """Nothing is retried: the caller gets the 429, and the next one waits."""
    partner.answers.append((429, {"Retry-After": "30"}))
    with pytest.raises(RateLimitExceededError) as caught:
        gets(client, [partner.url()] * 2, "100/second", timeout=5)
    assert 29_000 < caught.value.decision.retry_after_ms <= 30_100
    assert len(partner.seen) == 1


@all_clients
def test_an_answer_with_nothing_left_pauses(client: str, partner: Partner) -> None:
    partner.answers.append((200, {"RateLimit": '"default";r=0;t=20'}))
    with pytest.raises(RateLimitExceededError) as caught:
        gets(client, [partner.url()] * 2, "100/second", timeout=5)
    assert 19_000 < caught.value.decision.retry_after_ms <= 20_100


@all_clients
def test_less_left_than_counted_on_shrinks(client: str, partner: Partner) -> None:
    """Others use the same account: of our 100, 2 are there."""
    partner.answers.append((200, {"X-RateLimit-Remaining": "2", "X-RateLimit-Reset": "60"}))
    with pytest.raises(RateLimitExceededError):
        gets(client, [partner.url()] * 10, "100/minute", timeout=0)
    assert len(partner.seen) == 3


@all_clients
def test_honouring_can_be_turned_off(client: str, partner: Partner) -> None:
    partner.answers.append((429, {"Retry-After": "30", "RateLimit": '"default";r=0;t=20'}))
    assert gets(client, [partner.url()] * 2, "100/second", timeout=0, honour=False) == [429, 200]


@all_clients
def test_a_store_on_redis_serves_every_client(client: str, partner: Partner) -> None:
    """Opened from a URL, and closed with the client."""
    options = {
        "store": f"{url_of('valkey')}?timeout_ms={PATIENT_MS}",
        "prefix": new_key(),
        "timeout": 0,
    }
    assert gets(client, [partner.url()], "2/minute", **options) == [200]
    with pytest.raises(RateLimitExceededError):
        gets(client, [partner.url()] * 2, "2/minute", **options)
    assert len(partner.seen) == 2


@pytest.mark.parametrize("client", ["requests", "urllib3"])
def test_retries_of_urllib3_count_and_are_heeded(client: str, partner: Partner) -> None:
    """Each attempt is a request to the partner, and each answer is read."""
    from urllib3.util import Retry

    retries = Retry(3, status_forcelist=[500], backoff_factor=0)
    partner.answers.extend([(500, {}), (500, {"RateLimit": '"a";r=0;t=20'})])
    inner = {"adapter": {"max_retries": retries}} if client == "requests" else {}
    inner = inner or {"pool": {"retries": retries}}
    with pytest.raises(RateLimitExceededError) as caught:
        gets(client, [partner.url()], "100/second", timeout=1, **inner)
    assert caught.value.decision.retry_after_ms > 19_000
    assert len(partner.seen) == 2
