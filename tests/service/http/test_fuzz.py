"""Good bodies, changed at random: never a fault, and the next good one is answered."""

from __future__ import annotations

import json
import random
import socket
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from penstock.config import parse_policies
from tests.service.worlds import FILE

from .serving import InProcessServer, post_bytes

MUTANTS = 1_500
AT_ONCE = 50

BODIES: dict[str, list[dict[str, Any]]] = {
    "/check": [
        {"key": "k", "limit": 9, "window_ms": 60_000},
        {"key": "é", "limit": 9, "window_ms": 60_000, "cost": 2, "strategy": "gcra"},
        {"policy": "api", "key": "k", "cost": 1},
    ],
    "/v1/check": [{"policy": "api", "key": "k", "cost": 1}],
    "/v1/check-many": [{"policy": "api", "keys": ["a", "b", "c"], "cost": 1}],
    "/v1/peek": [{"policy": "api", "key": "k"}],
    "/v1/forecast": [{"policy": "api", "key": "k", "cost": 3}],
    "/v1/debit": [{"policy": "llm", "key": "k", "tokens": 100}],
    "/v1/admit": [{"policy": "slots", "key": "k", "cost": 1, "hold": 1, "value": 0}],
    "/v1/release": [{"lease_id": "x", "dropped": True}],
    "/v1/heartbeat": [{"lease_ids": ["x", "y"]}],
}
PIECES = [
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"-", b"0", b"1e9", b"1E400", b".", b"+"),
    *(b"null", b"true", b"NaN", b"Infinity", b"\\u0000", b"\\ud800", b"\\udc00", b'"key"', b'":'),
    *(
        b"\x00",
        b"\xff",
        b"\xc3",
        b"\xf0\x9f\x98\x80",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
        b" ",
        b"\n",
    ),
    *(b"9" * 30, b"[" * 200, b'{"a":' * 200, b"\xc2\xa0", b"\t", b"'", b"/*", b"//", b"\r\n"),
]


def mutated(body: bytes, chance: random.Random) -> bytes:
    """With one to four changes."""
    for _ in range(chance.randint(1, 4)):
        start = chance.randint(0, len(body))
        end = min(len(body), start + chance.choice((0, 0, 1, 1, 2, 5)))
        piece = chance.choice(
            (b"", chance.choice(PIECES), body[start:end] * 2, chance.randbytes(1))
        )
        body = body[:start] + piece + body[end:]
    return body


def answers(line: socket.socket, count: int) -> Iterator[tuple[int, bytes]]:
    """Status and body of so many replies."""
    received = b""
    for _ in range(count):
        while b"\r\n\r\n" not in received:
            received += _more(line)
        head, _, received = received.partition(b"\r\n\r\n")
        length = int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0])
        while len(received) < length:
            received += _more(line)
        yield int(head[9:12]), received[:length]
        received = received[length:]


def _more(line: socket.socket) -> bytes:
    data = line.recv(65_536)
    assert data, "the connection was closed"
    return data


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    with InProcessServer(policies=[*parse_policies(FILE, "test").policies.values()]) as server:
        yield server


@pytest.mark.parametrize("path", BODIES)
def test_no_body_is_a_fault_of_the_service(
    server: InProcessServer, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A client's mistake is a 4xx that says so, or what was meant is still clear."""
    chance = random.Random(path)
    seeds = [json.dumps(body, ensure_ascii=chance.random() < 0.5).encode() for body in BODIES[path]]
    statuses: Counter[int] = Counter()
    with socket.create_connection(("127.0.0.1", server.port), 30) as line:
        for _ in range(MUTANTS // AT_ONCE):
            bodies = [mutated(chance.choice(seeds), chance) for _ in range(AT_ONCE)]
            line.sendall(b"".join(post_bytes(path, body) for body in bodies))
            for body, (status, reply) in zip(bodies, answers(line, AT_ONCE), strict=True):
                assert status in (200, 400, 404, 429, 501), (body, status, reply)
                json.loads(reply)
                statuses[status] += 1
        line.sendall(b"".join(post_bytes(path, seed) for seed in seeds))
        assert all(status in (200, 429) for status, _ in answers(line, len(seeds)))
    assert statuses[400] > MUTANTS // 2, statuses
    assert caplog.records == []


@pytest.mark.parametrize(
    "body",
    [
        *(b'{"key":}', b'{"key": }', b'{"key":,"limit":1}', b'{"key":"k","limit":}', b'{"a":[}'),
        *(
            b'{"a":[1,]}',
            b'{"a":-}',
            b'{"a":{"b":}}',
            b'{"key"}',
            b"{,}",
            b'{"key":"k",}',
            b"{1:2}",
        ),
    ],
)
def test_a_value_that_is_missing_is_a_mistake_of_the_client(
    server: InProcessServer, body: bytes
) -> None:
    """In the words of the one error that stands for bodies that are not JSON."""
    with socket.create_connection(("127.0.0.1", server.port), 30) as line:
        for path in BODIES:
            line.sendall(post_bytes(path, body))
            [(status, reply)] = answers(line, 1)
            assert (status, json.loads(reply)["code"]) == (400, "malformed_json"), (path, reply)


def test_no_name_in_a_path_is_a_fault_of_the_service(
    server: InProcessServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever bytes it is made of, percent-encoded or not."""
    chance = random.Random("names")
    for _ in range(300):
        name = mutated(b"alice", chance)
        if chance.random() < 0.7:
            name = quote(name, safe="").encode()
        head = b"GET /check/%b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % name
        with socket.create_connection(("127.0.0.1", server.port), 30) as line:
            line.sendall(head)
            [(status, _)] = answers(line, 1)
            assert status in (200, 400, 404, 429), (name, status)
    assert caplog.records == []
