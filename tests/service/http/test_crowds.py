"""A crowd, in real processes: memory, latency and places while it does its worst."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.servers import Valkey, require

from .crowd import Flood
from .serving import Client, Penstock, post_bytes
from .test_bounds import rss_kib

TOKEN = "a-token-of-enough-characters"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
ASKED = {"key": "k", "limit": 1_000_000_000, "window_ms": 60_000}
READY = b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHECK = post_bytes("/check", b'{"key":"k","limit":1000000000,"window_ms":60000}')
MANY = post_bytes(
    "/v1/check-many", b'{"policy":"default","keys":[%b]}' % b",".join([b'"a"'] * 1_000)
)
SMALL_CHUNKS = (
    b"POST /check HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"".join(b"1\r\n%c\r\n" % byte for byte in b'{"key":"k","limit":9,"window_ms":9}')
    + b"0\r\n\r\n"
)


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    require("valkey")
    with Valkey() as valkey:
        yield valkey


@pytest.mark.parametrize("store", ["memory", "valkey"])
def test_a_flood_of_probes_takes_little_memory(store: str, request: pytest.FixtureRequest) -> None:
    """200 connections that pipeline without end, for some seconds; it goes on being served."""
    url = "memory://" if store == "memory" else request.getfixturevalue("valkey").url
    with Penstock("--store", url) as server:
        client = Client(server.port)
        assert client.get("/ready").status == 200
        before, most = rss_kib(server.pid), 0
        with Flood(server.port, READY, 200):
            end = time.monotonic() + 5
            while time.monotonic() < end:
                most = max(most, rss_kib(server.pid))
                assert client.post("/check", ASKED).status == 200
                time.sleep(0.02)
        client.close()
    assert (most - before) / 1024 < 100


@pytest.mark.parametrize("request_", [CHECK, MANY, SMALL_CHUNKS], ids=["check", "many", "chunks"])
def test_one_connection_that_sends_without_end_starves_nobody(request_: bytes) -> None:
    """Over both protocols, on new connections and on old ones."""
    grpc: Any = pytest.importorskip("grpc")
    from penstock.wire.proto import rate_limiter_pb2 as pb
    from penstock.wire.proto.rate_limiter_pb2_grpc import RateLimiterStub

    with (
        Penstock(grpc=True) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
    ):
        check = RateLimiterStub(channel).Check
        asked = pb.CheckRequest(policy="default", key="k")
        check(asked, timeout=30, wait_for_ready=True)
        took_s: dict[str, list[float]] = {"http": [], "grpc": []}
        with Flood(server.port, request_, 1):
            end = time.monotonic() + 15
            while len(took_s["grpc"]) < 20 and time.monotonic() < end:
                began = time.monotonic()
                client = Client(server.port, timeout=30)
                assert client.get("/health").status == 200
                client.close()
                took_s["http"].append(time.monotonic() - began)
                began = time.monotonic()
                check(asked, timeout=30)
                took_s["grpc"].append(time.monotonic() - began)
    # It takes some milliseconds; the rest is for a machine that has other things to do.
    assert {name: s for name, s in took_s.items() if median(s) > 0.3} == {}


def test_strangers_do_not_take_the_places_of_those_with_a_token(
    valkey: Valkey, tmp_path: Path
) -> None:
    """1,500 connections that ask for readiness, which asks the store, and have no token."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    with Penstock("--store", f"{valkey.url}?timeout_ms=5000", "--token-file", str(token)) as server:
        known = Client(server.port, timeout=30)
        assert known.ask("POST", "/check", ASKED, AUTHORIZED).status == 200
        statuses: Counter[int] = Counter()
        with Flood(server.port, READY, 1_500, in_turn=True):
            for _ in range(100):
                statuses[known.ask("POST", "/check", ASKED, AUTHORIZED).status] += 1
            for _ in range(10):
                newcomer = Client(server.port, timeout=30)
                statuses[newcomer.ask("POST", "/check", ASKED, AUTHORIZED).status] += 1
                newcomer.close()
            lines = known.ask("GET", "/metrics", None, AUTHORIZED).body.decode().splitlines()
        known.close()
    assert statuses == {200: 110}
    shown = {
        name: int(value)
        for name, value in (line.split() for line in lines if line[0] != "#" and "{" not in line)
    }
    assert shown["penstock_http_strangers"] <= 1_024
    assert shown["penstock_http_in_flight"] <= 1
