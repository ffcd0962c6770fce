"""Whatever arrives, the answer is the right 4xx, and the next good request is answered right."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from .serving import Client, Penstock, post_bytes, talk
from .test_head import REFUSED

GOOD: dict[str, Any] = {"key": "k", "limit": 1_000_000, "window_ms": 60_000}


@pytest.fixture(scope="module")
def server() -> Iterator[Penstock]:
    """One real process for all of them; it must be the same one at the end, and say nothing."""
    with Penstock("--allowed-hosts", "a") as server:
        pid = server.pid
        yield server
        assert server.pid == pid
        log = server.log_path.read_text()
        assert "Traceback" not in log
        assert "ERROR" not in log


@pytest.fixture
def alive(server: Penstock) -> Iterator[Penstock]:
    yield server
    client = Client(server.port)
    assert client.post("/check", GOOD).status == 200
    client.close()


def status_of(reply: bytes) -> int:
    assert reply.startswith(b"HTTP/1.1 "), reply[:100]
    return int(reply[9:12])


@pytest.mark.parametrize("raw", REFUSED.values(), ids=REFUSED)
def test_an_ambiguous_request_is_refused_and_the_connection_closed(
    alive: Penstock, raw: bytes
) -> None:
    """What is smuggled behind it is not answered."""
    hidden = b"GET /check/smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
    reply = talk(alive.port, raw + b"5\r\nhello\r\n0\r\n\r\n" + hidden)
    assert status_of(reply) in (400, 501, 505)
    assert reply.count(b"\r\nDate: ") == 1
    assert b"Connection: close" in reply


WRONG_FIELDS: dict[str, Any] = {
    "no fields": {},
    "no key": {"limit": 1, "window_ms": 1},
    "no limit": {"key": "k", "window_ms": 1},
    "no window": {"key": "k", "limit": 1},
    "only a key": {"key": "k"},
    "an unknown field": {**GOOD, "burst": 1},
    "a misspelt field": {"key": "k", "limit": 1, "windowMs": 1},
    "an empty key": {**GOOD, "key": ""},
    "a key of the wrong type": {**GOOD, "key": 7},
    "a null key": {**GOOD, "key": None},
    "a key in a list": {**GOOD, "key": ["k"]},
    "a key too long": {**GOOD, "key": "k" * 4097},
    "a key too long in bytes": {**GOOD, "key": "é" * 2049},
    "half a character": {**GOOD, "key": "\ud800"},
    "a limit of zero": {**GOOD, "limit": 0},
    "a negative limit": {**GOOD, "limit": -1},
    "a fractional limit": {**GOOD, "limit": 1.5},
    "a limit as text": {**GOOD, "limit": "10"},
    "a true limit": {**GOOD, "limit": True},
    "an infinite limit": {**GOOD, "limit": 1e400},
    "a limit beyond all bounds": {**GOOD, "limit": 10**400},
    "a limit beyond doubles": {**GOOD, "limit": 2**53},
    "a limit that is an object": {**GOOD, "limit": {}},
    "a window of zero": {**GOOD, "window_ms": 0},
    "a negative window": {**GOOD, "window_ms": -60_000},
    "a window of ages": {**GOOD, "window_ms": 2**50},
    "a cost of zero": {**GOOD, "cost": 0},
    "a negative cost": {**GOOD, "cost": -1},
    "a fractional cost": {**GOOD, "cost": 1.0},
    "a cost beyond doubles": {**GOOD, "cost": 2**53},
    "an unknown strategy": {**GOOD, "strategy": "magic"},
    "a strategy of the wrong type": {**GOOD, "strategy": ["gcra"]},
    "a log without end": {**GOOD, "strategy": "sliding_window_log"},
    "a policy beside a limit": {**GOOD, "policy": "default"},
    "a policy of the wrong type": {"policy": 1, "key": "k"},
    "a policy without a key": {"policy": "default"},
    "a policy with an unknown field": {"policy": "default", "key": "k", "limit": 1},
}


@pytest.mark.parametrize("fields", WRONG_FIELDS.values(), ids=WRONG_FIELDS)
def test_wrong_fields_are_refused_by_name(alive: Penstock, fields: Any) -> None:
    """400 with `config_invalid`, whatever is wrong with them."""
    body = json.dumps(fields).replace("Infinity", "1e400").encode()
    client = Client(alive.port)
    reply = client.ask("POST", "/check", body)
    client.close()
    assert (reply.status, reply.json["code"]) == (400, "config_invalid"), reply.body


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/check-many", {"policy": "default", "keys": ["a"] * 1001}),
        ("/v1/heartbeat", {"lease_ids": ["x"] * 1001}),
    ],
)
def test_a_batch_that_is_too_long_is_413(alive: Penstock, path: str, fields: Any) -> None:
    client = Client(alive.port)
    reply = client.post(path, fields)
    client.close()
    assert (reply.status, reply.json["code"]) == (413, "too_much_at_once"), reply.body


WRONG_V1 = [
    ("/v1/check-many", {"policy": "default", "keys": "abc"}),
    ("/v1/check-many", {"policy": "default", "keys": ["a", 1]}),
    ("/v1/check-many", {"policy": "default", "keys": ["a", ""]}),
    ("/v1/peek", {"policy": "default", "key": "k", "cost": 1}),
    ("/v1/forecast", {"policy": "default", "key": "k", "cost": -1}),
    ("/v1/debit", {"policy": "default", "key": "k", "tokens": "1"}),
    ("/v1/admit", {"policy": "default", "key": "k", "hold": None}),
    ("/v1/release", {"lease_id": 5}),
    ("/v1/release", {"lease_id": "x", "dropped": "yes"}),
    ("/v1/heartbeat", {"lease_ids": "x"}),
    ("/v1/heartbeat", {"lease_ids": [1]}),
]


@pytest.mark.parametrize(("path", "fields"), WRONG_V1)
def test_wrong_calls_are_refused(alive: Penstock, path: str, fields: Any) -> None:
    """400, for every call."""
    client = Client(alive.port)
    reply = client.post(path, fields)
    client.close()
    assert (reply.status, reply.json["code"]) == (400, "config_invalid"), reply.body


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b'{"key":"\xff","limit":1,"window_ms":1}', 400),
        (b'{"key":"k","key":"l","limit":1,"window_ms":1}', 400),
        (b'{"key":"k","limit":NaN,"window_ms":1}', 400),
        (b'{"key":"k","limit":' + b"9" * 30_000 + b',"window_ms":1}', 400),
        (b"[" * 15_000, 400),
        (b"[" * 32_000, 413),
        (b" " * 32_769, 413),
    ],
)
def test_bad_bodies_are_refused(alive: Penstock, body: bytes, status: int) -> None:
    """Not JSON, not UTF-8, too long."""
    reply = talk(alive.port, post_bytes("/check", body, close=True))
    assert status_of(reply) == status
    assert b"application/problem+json" in reply


def test_a_batch_may_be_longer_but_not_endless(alive: Penstock) -> None:
    """A thousand of the longest keys fit."""
    client = Client(alive.port)
    keys = [f"{number:04}" + "k" * 4092 for number in range(1000)]
    reply = client.post("/v1/check-many", {"policy": "default", "keys": keys})
    assert len(reply.json["decisions"]) == 1000
    client.close()
    endless = b"POST /v1/check-many HTTP/1.1\r\nHost: a\r\nContent-Length: 999999999\r\n\r\n"
    assert status_of(talk(alive.port, endless)) == 413


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /check/a HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 20_000 + b"\r\n\r\n", 431),
        (b"GET /check/a HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 80 + b"\r\n", 431),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431),
        (b"GET /check/%ff HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 400),
        (b"GET /check/" + b"a" * 4097 + b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 400),
        (b"POST /check HTTP/1.1\r\nHost: a\r\nExpect: tea\r\nConnection: close\r\n\r\n", 417),
        (b"PRI / HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\n" * 4, 400),
        (b"GET /check/a?" + b"a&" * 4000 + b" HTTP/1.0\r\n\r\n", 400),
        (b"GET /check/a?headers=%ff HTTP/1.0\r\n\r\n", 400),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    ],
)
def test_bad_heads_are_refused(alive: Penstock, head: bytes, status: int) -> None:
    """Too long, too many, in another protocol."""
    assert status_of(talk(alive.port, head)) == status


def test_half_a_request_harms_nobody(alive: Penstock) -> None:
    """Its connection is gone, and that is all."""
    whole = post_bytes("/check", json.dumps(GOOD).encode())
    for cut in range(0, len(whole), 7):
        with socket.create_connection(("127.0.0.1", alive.port)) as line:
            line.sendall(whole[:cut])


def test_requests_in_one_piece_are_answered_in_order(alive: Penstock) -> None:
    """Good ones, mistakes and the last one, after which nothing is read."""
    bodies = [b'{"key":"p","limit":3,"window_ms":60000}'] * 4
    stream = b"".join(post_bytes("/check", body) for body in bodies)
    stream += post_bytes("/check", b"{")
    stream += b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    reply = talk(alive.port, stream + post_bytes("/check", bodies[0]))
    statuses = [int(part[:3]) for part in reply.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [200, 200, 200, 429, 400, 200]


def test_chunks_are_understood(alive: Penstock) -> None:
    """Some clients do not know the length beforehand."""
    head = b"POST /check HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n"
    chunks = b'11\r\n{"key":"c","limit\r\n16;x=y\r\n":5,"window_ms":60000}\r\n0\r\n\r\n'
    assert status_of(talk(alive.port, head + b"\r\n", chunks)) == 200


def test_a_client_may_wait_to_be_told_to_go_on(alive: Penstock) -> None:
    """100 first, the answer afterwards; and no 100 before an earlier reply."""
    body = json.dumps(GOOD).encode()
    request = post_bytes("/check", body, "Expect: 100-continue", close=True)
    head, _, _ = request.partition(b"\r\n\r\n")
    with socket.create_connection(("127.0.0.1", alive.port), 5) as line:
        line.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n" + head + b"\r\n\r\n")
        received = b""
        while b"100 Continue" not in received:
            received += line.recv(65_536)
        assert received.index(b"alive") < received.index(b"100 Continue")
        line.sendall(body)
        assert b"HTTP/1.1 200 OK" in line.recv(65_536)


def test_an_old_client_is_not_told_to_go_on(alive: Penstock) -> None:
    """HTTP/1.0 does not know that reply, and would take it for the answer."""
    body = json.dumps(GOOD).encode()
    head = b"POST /check HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", alive.port), 5) as line:
        line.sendall(head)
        line.settimeout(0.3)
        with pytest.raises(TimeoutError):
            line.recv(1)
        line.settimeout(5)
        line.sendall(body)
        assert line.recv(65_536).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize(
    ("first", "status"), [(b"POST /nope HTTP/1.1", 404), (b"PUT /check HTTP/1.1", 405)]
)
def test_a_client_is_not_told_to_send_what_will_be_refused(
    alive: Penstock, first: bytes, status: int
) -> None:
    """It gets the refusal at once, and keeps its body."""
    head = first + b"\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 99\r\n\r\n"
    assert status_of(talk(alive.port, head)) == status


@pytest.mark.parametrize(
    "target",
    [
        *(b"/check/a?headers=x&headers=x", b"/check/a?headers=x&", b"/check/a?headers=%78"),
        *(b"/check/a?headers=x;a=b", b"/check/a?&headers=x", b"/health?x", b"/check/a?headers"),
    ],
)
def test_a_query_is_the_one_that_is_known_or_none(alive: Penstock, target: bytes) -> None:
    """Not something that comes to the same."""
    head = b"GET %b HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n" % target
    reply = talk(alive.port, head)
    assert status_of(reply) == 400
    assert b'"config_invalid"' in reply


def test_what_a_client_sends_cannot_forge_a_line_of_the_log() -> None:
    """Line ends and their kin are escaped, in text and in JSON."""
    import logging

    from penstock.service._logs import _Json, _Text

    evil = "a\r\n2026 ERROR forged\x1b[31m\u2028\u202e"
    record = logging.LogRecord("penstock", logging.ERROR, "", 0, "key %s", (evil,), None)
    for formatter in (_Text(), _Json()):
        line = formatter.format(record)
        assert line.isascii()
        assert line.isprintable()
