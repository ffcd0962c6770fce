"""Checks on a store that tells by a call: the same answers, whichever way they take through."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.config import parse_policies
from penstock.service import build_service
from penstock.service.http import HttpServer
from penstock.stores.redis import RedisStore
from tests.servers import Valkey, require

from .serving import Client, InProcessServer, post_bytes

POLICIES = parse_policies(
    """
version: 1
limiters:
  default: {strategy: fixedWindow, limit: 3, window: 30d}
  three:
    limits:
      user: {by: user, strategy: fixedWindow, limit: 3, window: 30d}
      again: {by: user, strategy: gcra, limit: 1000000, period: 30d}
  single:
    limits:
      user: {by: user, strategy: fixedWindow, limit: 3, window: 30d}
"""
).policies.values()

BODIES = {
    "/check": b'{"key":"%b","limit":3,"window_ms":2592000000}',
    "/v1/check": b'{"policy":"default","key":"%b"}',
    "/v1/check by attributes": b'{"policy":"three","attributes":{"user":"%b"}}',
    "/v1/check by one attribute": b'{"policy":"single","attributes":{"user":"%b"}}',
}


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    require("valkey")
    with Valkey() as server:
        yield server


_VARYING = ("date", "content-length", "retry-after")
_TIMES = re.compile(r't=\d+|"reset_at":\d+|"retry_after_ms":\d+|[Tt]ry again[^"]*')


def answers(port: int, path: str, body: bytes) -> list[tuple[Any, ...]]:
    """To five requests on one connection, without what the clock says. The first has a head that is
    new to the server."""
    client, told = Client(port), []
    for _ in range(5):
        reply = client.post(path, body)
        fields = [value for name, value in reply.headers.items() if name not in _VARYING]
        texts = [*fields, reply.body.decode()]
        told.append((reply.status, *reply.headers, *[_TIMES.sub("", text) for text in texts]))
    client.close()
    return told


@pytest.mark.parametrize("name", BODIES)
def test_what_compiled_code_has_read_is_answered_as_what_python_has(
    valkey: Valkey, name: str
) -> None:
    """An escape in a text is for the general reader. Five of three are asked for."""
    path = name.partition(" ")[0]
    store = RedisStore.from_url(valkey.url, timeout_ms=20_000)
    with InProcessServer(policies=list(POLICIES), store=store) as server:
        plain = answers(server.port, path, BODIES[name] % b"plain")
        escaped = answers(server.port, path, BODIES[name] % b"\\u0065scaped")
    assert plain == escaped
    admitted = [
        each[-1].startswith(('{"allowed":true', '{"decision":{"allowed":true')) for each in plain
    ]
    assert admitted == [True] * 3 + [False] * 2


@pytest.mark.parametrize(("fail", "status"), [("open", 200), ("closed", 429), ("error", 503)])
def test_a_store_that_is_away_is_answered_by_the_fail_mode(fail: str, status: int) -> None:
    store = RedisStore.from_url("redis://127.0.0.1:1", timeout_ms=2_000)
    with InProcessServer(store=store, fail=fail) as server:
        body = BODIES["/check"] % b"k"
        client = Client(server.port)
        assert [client.post("/check", body).status for _ in range(3)] == [status] * 3
        client.close()


@pytest.mark.parametrize(("fail", "told"), [("open", True), ("closed", False), ("error", None)])
def test_several_limits_answer_by_the_fail_mode_and_count_that(
    fail: str, told: bool | None
) -> None:
    """All of them say the same."""
    store = RedisStore.from_url("redis://127.0.0.1:1", timeout_ms=2_000)
    with InProcessServer(policies=list(POLICIES), store=store, fail=fail) as server:
        body = BODIES["/v1/check by attributes"] % b"k"
        client = Client(server.port)
        replies = [client.post("/v1/check", body) for _ in range(3)]
        metrics = client.get("/metrics").body.decode()
        client.close()
    assert [reply.status for reply in replies] == [503 if told is None else 200] * 3
    if told is not None:
        for reply in replies:
            limits = json.loads(reply.body)["limits"]
            assert [each["allowed"] for each in limits.values()] == [told, told]
        outcome = "allowed" if told else "denied"
        assert re.search(rf'decisions_total{{policy="three".*"{outcome}"}} 3\n', metrics)


def test_limits_that_are_held_are_not_checked(valkey: Valkey) -> None:
    """A check could not say what holds the slot."""
    policies = parse_policies(
        """
version: 1
limiters:
  jobs:
    limits:
      user: {by: user, strategy: gcra, limit: 10, period: 1m}
      at-once: {by: user, strategy: slots, limit: 2}
"""
    ).policies.values()
    store = RedisStore.from_url(valkey.url, timeout_ms=20_000)
    with InProcessServer(policies=list(policies), store=store) as server:
        client = Client(server.port)
        body = b'{"policy":"jobs","attributes":{"user":"held"}}'
        replies = [client.post("/v1/check", body) for _ in range(3)]
        peeked = json.loads(client.post("/v1/peek", body).body)
        client.close()
    assert [reply.status for reply in replies] == [501] * 3
    assert "reserve" in replies[0].body.decode()
    left = [limit["remaining"] for limit in peeked["limits"].values()]
    assert left == [10, 2]


def test_a_stop_waits_for_what_the_store_was_asked_by_clients_that_have_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """To close the store on it would be told as an outage, and there was none."""
    require("valkey")

    async def scenario(valkey: Valkey) -> None:
        store = RedisStore.from_url(valkey.url, timeout_ms=20_000)
        service = build_service(store=store)
        server = HttpServer(service)
        port = await server.start("127.0.0.1", 0)
        await store.areset("connected")
        valkey.pause()
        line = socket.create_connection(("127.0.0.1", port))
        # It is reset when it is closed.
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        line.sendall(post_bytes("/check", BODIES["/check"] % b"k"))
        await until(lambda: server.in_flight == 1)
        line.close()
        await until(lambda: not server.open_connections)
        stop = asyncio.ensure_future(server.stop())
        await until(lambda: server.is_stopping)
        await asyncio.sleep(0.05)
        assert not stop.done()
        valkey.resume()
        await stop
        await service.aclose()

    with Valkey() as valkey:
        asyncio.run(asyncio.wait_for(scenario(valkey), 30))
    assert not caplog.records


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)
