"""No client can make the service wait, or remember, without end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from penstock import MemoryStore, Store
from penstock.core._transform import Transform
from penstock.service.http import Bounds
from tests.servers import NotReady, eventually

from .serving import Client, InProcessServer, Penstock, post_bytes, read_all, talk

R = TypeVar("R")
QUICK = Bounds(head_s=0.4, request_s=0.4, idle_s=0.4, write_s=0.4, linger_s=0.2)
BODY = json.dumps({"key": "k", "limit": 1_000_000, "window_ms": 60_000}).encode()
ASK = post_bytes("/check", BODY)


@contextlib.contextmanager
def line_to(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), 5) as line:
        yield line


def wait_for(condition: Callable[[], bool]) -> None:
    def probe() -> None:
        if not condition():
            raise NotReady

    eventually(probe, within=20, what="the request")


def drip(line: socket.socket, data: bytes) -> bytes:
    """Send byte by byte, slowly; returns what came back."""
    with contextlib.suppress(OSError):
        for number in range(len(data)):
            line.sendall(data[number : number + 1])
            time.sleep(0.05)
    with contextlib.suppress(OSError):
        return read_all(line)
    return b""


@pytest.mark.parametrize(
    ("at_once", "slowly"),
    [
        (b"", b"GET /health HTTP/1.1\r\nHost: a\r\nX: yyyyyyyyyyyyy"),
        (ASK[: -len(BODY)], b" " * (len(BODY) - 1)),
        (
            b"POST /check HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"1\r\n \r\n" * 9,
        ),
    ],
    ids=["head", "body", "chunks"],
)
def test_a_request_that_trickles_in_is_given_up(at_once: bytes, slowly: bytes) -> None:
    """Every byte in time is not enough: the whole of it has a deadline."""
    with InProcessServer(bounds=QUICK) as server, line_to(server.port) as line:
        line.sendall(at_once)
        began = time.monotonic()
        reply = drip(line, slowly)
        assert reply.startswith(b"HTTP/1.1 408 "), reply
        assert time.monotonic() - began < 3


def test_a_connection_that_says_nothing_is_closed() -> None:
    """Before its first request and after it; without a word, since nothing was asked."""
    with InProcessServer(bounds=QUICK) as server:
        assert talk(server.port) == b""
        assert talk(server.port, ASK).count(b"HTTP/1.1 ") == 1


def test_a_client_that_does_not_read_is_cut_off() -> None:
    """What it is owed does not pile up: the service stops reading from it first."""
    with InProcessServer(bounds=QUICK) as server, line_to(server.port) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.settimeout(0.2)
        deadline = time.monotonic() + 10

        def keep_asking() -> int:
            sent = 0
            while time.monotonic() < deadline:
                with contextlib.suppress(TimeoutError):
                    sent += line.send(ASK * 100)
                assert sent < 64 * 2**20
            return sent

        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            keep_asking()
        client = Client(server.port)
        assert client.get("/health").status == 200
        client.close()


def test_too_many_connections_are_turned_away() -> None:
    """With a 503 that says when to come back; a probe gets its answer all the same, and a place
    that is free again is given away."""
    bounds = Bounds(connections=2, linger_s=0.2)
    asked = post_bytes("/check", BODY, close=True)
    with InProcessServer(bounds=bounds) as server:
        with line_to(server.port), line_to(server.port):
            time.sleep(0.1)
            reply = talk(server.port, asked)
            assert reply.startswith(b"HTTP/1.1 503 ")
            assert b"Retry-After: 1\r\n" in reply
            assert b'"overloaded"' in reply
            probe = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            assert talk(server.port, probe).startswith(b"HTTP/1.1 200")
        time.sleep(0.6)
        assert talk(server.port, asked).startswith(b"HTTP/1.1 200")


class StuckStore(Store):
    """Answers when told to."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.asked = 0
        self._inner = MemoryStore()

    async def aapply(self, key: str, transform: Transform[R], now: int, cost: int) -> R:
        self.asked += 1
        while not self.go_on.is_set():
            await asyncio.sleep(0.01)
        return await self._inner.aapply(key, transform, now, cost)


def test_requests_beyond_what_the_store_can_take_are_shed() -> None:
    """At once, and nothing of them is left behind when the store is back."""
    store = StuckStore()
    with InProcessServer(store=store, bounds=Bounds(in_flight=3, linger_s=0.2)) as server:
        with contextlib.ExitStack() as stack:
            waiting = [stack.enter_context(line_to(server.port)) for _ in range(3)]
            for line in waiting:
                line.sendall(post_bytes("/check", BODY, close=True))
            time.sleep(0.2)
            client = Client(server.port)
            for _ in range(5):
                shed = client.post("/check", json.loads(BODY))
                assert (shed.status, shed.json["code"]) == (503, "overloaded")
                assert shed.headers["retry-after"] == "1"
            assert client.get("/health").status == 200
            store.go_on.set()
            assert all(read_all(line).startswith(b"HTTP/1.1 200") for line in waiting)
            assert client.post("/check", json.loads(BODY)).json["remaining"] == 1_000_000 - 4
        lines = client.get("/metrics").body.decode().splitlines()
        assert "penstock_http_shed_total 5" in lines
        assert "penstock_http_in_flight 0" in lines
        client.close()


def test_probes_ask_the_store_once_for_all_and_take_nobodys_place() -> None:
    """However many they are: one is answered, and then all who came meanwhile."""
    store = StuckStore()
    probe = b"GET /ready HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    with (
        InProcessServer(store=store, bounds=Bounds(in_flight=1, linger_s=0.2)) as server,
        contextlib.ExitStack() as stack,
    ):
        waiting = [stack.enter_context(line_to(server.port)) for _ in range(50)]
        for line in waiting:
            line.sendall(probe)
        time.sleep(0.3)
        assert store.asked == 1
        other = stack.enter_context(line_to(server.port))
        other.sendall(post_bytes("/check", BODY, close=True))
        time.sleep(0.1)
        store.go_on.set()
        assert read_all(other).startswith(b"HTTP/1.1 200 ")
        assert all(read_all(line).startswith(b"HTTP/1.1 200 ") for line in waiting)
        assert store.asked < 5


class StuckPool:
    """Other workers, whose counts come when the test says so."""

    def __init__(self) -> None:
        self.asked = 0
        self.go_on = threading.Event()

    async def total(self) -> bytes:
        self.asked += 1
        while not self.go_on.is_set():
            await asyncio.sleep(0.01)
        return b"counted 1\n"


@pytest.mark.parametrize("token", [None, "a-token-of-enough-characters"])
def test_scrapes_that_wait_for_the_other_workers_take_no_place_of_a_check(
    token: str | None,
) -> None:
    """However many they are; the others are asked once for all of them. And the other way round: a
    scrape is answered though a check has the only place."""
    pool, store = StuckPool(), StuckStore()
    lines = [] if token is None else [f"Authorization: Bearer {token}"]
    scrape = "\r\n".join(
        ["GET /metrics HTTP/1.1", "Host: localhost", "Connection: close", *lines, "", ""]
    ).encode()
    bounds = Bounds(in_flight=1, linger_s=0.2)
    with (
        InProcessServer(store=store, bounds=bounds, token=token, pool=pool) as server,
        contextlib.ExitStack() as stack,
    ):
        waiting = [stack.enter_context(line_to(server.port)) for _ in range(50)]
        for line in waiting:
            line.sendall(scrape)
        wait_for(lambda: pool.asked == 1)
        check = stack.enter_context(line_to(server.port))
        check.sendall(post_bytes("/check", BODY, *lines, close=True))
        wait_for(lambda: store.asked == 1)
        pool.go_on.set()
        assert all(read_all(line).endswith(b"counted 1\n") for line in waiting)
        assert pool.asked < 5
        store.go_on.set()
        assert read_all(check).startswith(b"HTTP/1.1 200 ")


def test_a_long_request_is_counted_until_it_is_answered() -> None:
    """While the store is asked, its keys are still in memory."""
    store = StuckStore()
    keys = json.dumps({"policy": "default", "keys": ["k" * 4_000] * 100}).encode()
    with InProcessServer(store=store) as server, line_to(server.port) as line:
        line.sendall(post_bytes("/v1/check-many", keys, close=True))
        buffered: list[int] = []

        def reserved() -> None:
            buffered.append(server.server.known.buffered)
            if not store.asked or buffered[-1] < len(keys):
                raise NotReady(str(buffered[-1]))

        eventually(reserved, within=20, what="the request at the store")
        store.go_on.set()
        assert read_all(line).startswith(b"HTTP/1.1 200 ")
        eventually(lambda: _nothing_held(server), within=20, what="the memory")


def _nothing_held(server: InProcessServer) -> None:
    if server.server.known.buffered:
        raise NotReady(str(server.server.known.buffered))


def test_requests_behind_one_that_waits_are_answered_after_it_in_order() -> None:
    """Also when there are more of them than are kept in memory."""
    store = StuckStore()
    count = 1_500
    with InProcessServer(store=store) as server, line_to(server.port) as line:
        sender = threading.Thread(target=line.sendall, args=(ASK * count,))
        sender.start()
        time.sleep(0.2)
        store.go_on.set()
        received = b""
        while received.count(b'"remaining"') < count:
            received += line.recv(2**20)
        sender.join()
        left = [int(part.split(b",")[0]) for part in received.split(b'"remaining":')[1:]]
        assert left == list(range(999_999, 999_999 - count, -1))


@pytest.mark.parametrize("behind", [b"", b"POST /check HTTP/1.1\r\nHost: half"])
def test_a_client_that_has_said_all_gets_all_its_answers(behind: bytes) -> None:
    """Also those to requests behind the one that waits; then the connection is closed."""
    store = StuckStore()
    with InProcessServer(store=store) as server, line_to(server.port) as line:
        line.sendall(ASK * 3 + behind)
        line.shutdown(socket.SHUT_WR)
        time.sleep(0.2)
        store.go_on.set()
        received = read_all(line)
        left = [int(part.split(b",")[0]) for part in received.split(b'"remaining":')[1:]]
        assert left == [999_999, 999_998, 999_997]


def test_what_is_sent_behind_the_last_request_does_not_destroy_its_reply() -> None:
    """A connection that is closed on bytes that nobody reads is reset, and a reset may overtake the
    reply."""
    with InProcessServer() as server, line_to(server.port) as line:
        line.sendall(post_bytes("/check", BODY, close=True) + ASK[:10])
        select.select([line], [], [], 10)
        line.sendall(ASK[10:])
        line.sendall(ASK)
        assert read_all(line).startswith(b"HTTP/1.1 200")


def test_long_bodies_share_a_bounded_room() -> None:
    """The one that does not fit is told so; room that was given back can be used."""
    bounds = Bounds(buffered_bytes=2 * Bounds().batch_bytes, linger_s=0.2)
    begun = b"POST /v1/check-many HTTP/1.1\r\nHost: a\r\nContent-Length: 5242880\r\n\r\n{"
    with InProcessServer(bounds=bounds) as server:
        with line_to(server.port) as one, line_to(server.port) as two:
            one.sendall(begun)
            two.sendall(begun)
            time.sleep(0.1)
            assert talk(server.port, begun).startswith(b"HTTP/1.1 503 ")
        time.sleep(0.1)
        with line_to(server.port) as line:
            line.sendall(begun)
            line.settimeout(0.2)
            with pytest.raises(TimeoutError):
                line.recv(1)


def rss_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def test_ten_thousand_idle_connections_cost_little_and_harm_nobody() -> None:
    """Fewer where the system allows fewer files; each takes some KiB, and the next request is
    answered as ever, on a new connection and on one of them."""
    resource: Any = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(10_000, hard - 500)
    lines: list[socket.socket] = []
    try:
        with Penstock() as server:
            before = rss_kib(server.pid)
            place = ("127.0.0.1", server.port)
            lines.extend(socket.create_connection(place, 5) for _ in range(count))
            client = Client(server.port)
            assert client.post("/check", json.loads(BODY)).status == 200
            metrics = client.get("/metrics").body.decode()
            assert f"penstock_http_connections {count + 1}\n" in metrics
            lines[0].sendall(ASK)
            assert lines[0].recv(65_536).startswith(b"HTTP/1.1 200")
            assert (rss_kib(server.pid) - before) / count < 10
            client.close()
    finally:
        for line in lines:
            line.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_fault_of_the_service_is_a_problem_and_not_a_traceback(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it comes up before the request is read or after; the client learns nothing of it."""
    from penstock.service.http import _calls as calls
    from penstock.service.http import _router as router

    def fail(*_: object) -> None:
        raise ZeroDivisionError("secret\n")

    with InProcessServer() as server:
        monkeypatch.setattr(calls, "decode", fail)
        first = talk(server.port, post_bytes("/check", BODY, close=True))
        monkeypatch.setattr(router, "parse_head", fail)
        second = talk(server.port, post_bytes("/check?headers=x", BODY))
    for reply in (first, second):
        assert reply.startswith(b"HTTP/1.1 500 ")
        assert b'"internal_error"' in reply
        assert b"secret" not in reply
    assert [record.getMessage() for record in caplog.records] == ["a request failed"] * 2
