"""Servers that answer slowly, without end, or with something that is no answer.

A call has one deadline and reads a bounded number of bytes. A malformed answer is an outage of the
service: `store_unavailable`, or the fail mode.
"""

from __future__ import annotations

import json
import random
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc
import pytest

from penstock import PenstockError, StoreUnavailableError
from tests.client.asking import Asked, asking
from tests.client.serving import still
from tests.client.test_outages import Closing, decision_reply, read_request
from tests.servers.proxy import FaultProxy

SYNC_AND_ASYNC = pytest.mark.parametrize("way", ["sync", "async"])
GOOD: dict[str, Any] = {
    "allowed": True,
    "limit": 2,
    "remaining": 1,
    "reset_at": 5,
    "retry_after_ms": 0,
}


@contextmanager
def sending(send: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """The URL of a server that reads one request per connection and then runs `send`, which has to
    stop when the event is set."""
    stopped = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)

        def serve() -> None:
            while not stopped.is_set():
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    continue
                connection.settimeout(5)
                with connection:
                    try:
                        read_request(connection)
                        send(connection, stopped)
                    except OSError:
                        pass  # The client has closed the connection.

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            stopped.set()
            thread.join(30)


def drip(data: bytes) -> Callable[[socket.socket, threading.Event], None]:
    """Sends a byte every 20 ms, and begins again at the end."""

    def send(connection: socket.socket, stopped: threading.Event) -> None:
        while True:
            for at in range(len(data)):
                connection.sendall(data[at : at + 1])
                if stopped.wait(0.02):
                    return

    return send


@SYNC_AND_ASYNC
@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"x" * 50_000,
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 50_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 10_000,
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
    ids=["body", "head", "chunks", "interim heads"],
)
def test_a_slow_answer_ends_with_the_deadline_of_the_call(data: bytes, way: str) -> None:
    with (
        sending(drip(data)) as url,
        asking(url, "p", way, fail="error", timeout_ms=300) as limiter,
    ):
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError, match="may have been charged"):
            limiter.check("k")
        assert 0.25 < time.monotonic() - began < 5


def endless(head: bytes, more: bytes) -> Callable[[socket.socket, threading.Event], None]:
    def send(connection: socket.socket, stopped: threading.Event) -> None:
        connection.sendall(head)
        while not stopped.is_set():
            connection.sendall(more)

    return send


CHUNK = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"


@SYNC_AND_ASYNC
@pytest.mark.parametrize(
    ("head", "more"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65_536),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", CHUNK),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n", b"x" * 65_536),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffff\r\n", b"x" * 65_536),
        (b"HTTP/1.1 200 OK\r\n", b"X-Field: x\r\n" * 5_000),
        (b"HTTP/1.1 200 OK\r\nX: ", b"x" * 65_536),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 2_000),
    ],
    ids=[
        "until closed",
        "chunked",
        "declared",
        "long chunk",
        "fields",
        "one field",
        "interim heads",
    ],
)
def test_an_endless_answer_is_refused_within_bounded_memory(
    head: bytes, more: bytes, way: str
) -> None:
    with (
        sending(endless(head, more)) as url,
        asking(url, "p", way, fail="error", timeout_ms=3_000) as limiter,
    ):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(StoreUnavailableError):
            limiter.check("k")
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


@SYNC_AND_ASYNC
def test_a_compressed_answer_is_not_expanded(way: str) -> None:
    """The client asks for no compression, and a short body could expand to gigabytes."""
    reply = (
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00"
    )
    with (
        Closing([reply]) as server,
        asking(f"http://127.0.0.1:{server.port}", "p", way, fail="error") as limiter,
        pytest.raises(StoreUnavailableError, match="not a JSON object"),
    ):
        limiter.check("k")


def test_an_answer_that_has_arrived_is_used_after_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process may not have been scheduled between the arrival and the deadline."""
    real, passed = time.monotonic, [0.0]
    arrived = threading.Event()

    def send(connection: socket.socket, stopped: threading.Event) -> None:
        connection.sendall(decision_reply())
        arrived.set()
        stopped.wait()

    real_settimeout = socket.socket.settimeout

    def settimeout(sock: socket.socket, value: float | None) -> None:
        """Called before each read: the first one finds the reply there and the deadline passed."""
        if arrived.wait(0.2):
            passed[0] = 3_600.0
        real_settimeout(sock, value)

    with (
        sending(send) as url,
        asking(url, "p", "sync", fail="error", timeout_ms=2_000) as limiter,
    ):
        monkeypatch.setattr(time, "monotonic", lambda: real() + passed[0])
        monkeypatch.setattr(socket.socket, "settimeout", settimeout)
        assert limiter.check("k").allowed
        assert passed[0]


def json_reply(fields: object) -> bytes:
    body = json.dumps(fields).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


CALLS: dict[str, Callable[[Asked], Any]] = {
    "check": lambda limiter: limiter.check("k"),
    "verdict": lambda limiter: limiter.check({"user": "u"}),
    "check_many": lambda limiter: limiter.check_many(["a", "b"]),
    "verdicts": lambda limiter: limiter.check_many([{"user": "a"}, {"user": "b"}]),
    "peek": lambda limiter: limiter.peek("k"),
    "forecast": lambda limiter: limiter.forecast("k"),
    "reserve": lambda limiter: limiter.reserve("k"),
    "debit": lambda limiter: limiter.debit("k"),
}
WRONG = [
    {"decision": {**GOOD, "allowed": "false"}},
    {"decision": {**GOOD, "allowed": 1}},
    {"decision": {**GOOD, "allowed": None}},
    {"decision": {**GOOD, "limit": "2"}},
    {"decision": {**GOOD, "limit": True}},
    {"decision": {**GOOD, "remaining": -1}},
    {"decision": {**GOOD, "reset_at": 1.5}},
    {"decision": {**GOOD, "retry_after_ms": 7}},
    {"decision": {**GOOD, "allowed": False}},
    {"decision": {**GOOD, "limit": 10**30}},
    {"decision": [1, 2, 3, 4, 5]},
    {"decision": None},
    {"decisions": GOOD},
    {"decisions": []},
    {"decisions": [GOOD]},
    {"decisions": [GOOD, None]},
    {"decisions": [GOOD, GOOD, GOOD]},
    {"limits": [GOOD], "shadows": []},
    {"limits": {"user": GOOD}, "shadows": "user"},
    {"limits": {"user": GOOD}, "shadows": [1]},
    {"limits": {"user": GOOD}},
    {"limits": {"user": {}}, "shadows": []},
    {"verdicts": [{"limits": {"user": GOOD}, "shadows": []}]},
    {"verdicts": [1, 2]},
    {"forecast": {"spendable_now": -3, "next_replenish_at": 1, "full_at": 1}},
    {"forecast": {"spendable_now": 3}},
    {"decision": GOOD, "charge_id": 5, "charged_at": 1, "starts_at": 1, "ttl_ms": 0},
    {"decision": GOOD, "charge_id": "c", "charged_at": "1", "starts_at": 1, "ttl_ms": 0},
    {},
]


@SYNC_AND_ASYNC
@pytest.mark.parametrize("call", CALLS)
def test_an_answer_of_a_wrong_shape_is_an_outage(call: str, way: str) -> None:
    replies: list[bytes | None] = [json_reply(fields) for fields in WRONG]
    if call in ("check", "peek", "debit"):
        # The fields of a charge are wrong for `reserve` only.
        replies = [json_reply(each) for each in WRONG if "charge_id" not in each]
    with (
        Closing(replies) as server,
        asking(f"http://127.0.0.1:{server.port}", "p", way, fail="error") as limiter,
    ):
        for _ in replies:
            with pytest.raises(StoreUnavailableError, match="compatible version"):
                CALLS[call](limiter)
    assert server.requests == len(replies)


@SYNC_AND_ASYNC
def test_the_fail_mode_decides_on_a_malformed_answer(way: str) -> None:
    wrong = json_reply({"decision": {**GOOD, "allowed": "false"}})
    with (
        Closing([wrong]) as server,
        asking(f"http://127.0.0.1:{server.port}", "p", way, fail="closed") as limiter,
    ):
        assert limiter.check("k").retry_after_ms == 1_000


@SYNC_AND_ASYNC
@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5_000, b"\xff\xfe", b"NaN", b"null"]
)
def test_json_that_cannot_be_read_is_an_outage(body: bytes, way: str) -> None:
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    refused = reply.replace(b"200 OK", b"500 Bad")
    with (
        Closing([reply, refused]) as server,
        asking(f"http://127.0.0.1:{server.port}", "p", way, fail="error") as limiter,
    ):
        for _ in range(2):
            with pytest.raises(StoreUnavailableError):
                limiter.check("k")


def outcome_of(call: Callable[[], object]) -> str:
    """The code of the error that a call raises; "" if it returns."""
    try:
        call()
    except PenstockError as error:
        return error.code
    return ""


@contextmanager
def grpc_server(reply: Callable[[], bytes]) -> Iterator[str]:
    """The URL of a gRPC server that answers every call with these bytes."""

    class Handler(grpc.GenericRpcHandler):
        def service(self, _details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(lambda *_: reply())

    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


@SYNC_AND_ASYNC
def test_random_messages_over_grpc_are_answers_or_outages(way: str) -> None:
    randomness = random.Random(11)
    with (
        grpc_server(lambda: randomness.randbytes(randomness.randrange(0, 24))) as url,
        asking(url, "p", way, fail="error") as limiter,
    ):
        outcomes = [
            outcome_of(partial(call, limiter)) for _ in range(50) for call in CALLS.values()
        ]
    assert set(outcomes) == {"", "store_unavailable"}


@SYNC_AND_ASYNC
def test_random_bytes_over_http_are_outages(way: str) -> None:
    """Heads, and bodies that were cut or altered."""
    randomness = random.Random(12)
    good = decision_reply()

    def broken() -> bytes:
        altered = bytearray(good)
        for _ in range(randomness.randrange(1, 6)):
            altered[randomness.randrange(len(altered))] = randomness.randrange(256)
        return bytes(altered[: randomness.randrange(1, len(altered) + 1)])

    def send(connection: socket.socket, _stopped: threading.Event) -> None:
        connection.sendall(broken())

    with sending(send) as url, asking(url, "p", way, fail="error", timeout_ms=5_000) as limiter:
        outcomes = [outcome_of(lambda: limiter.check("k")) for _ in range(150)]
    # The status may have become that of a mistake, such as 400.
    assert set(outcomes) <= {"", "store_unavailable", "config_invalid", "not_implemented"}
    assert "store_unavailable" in outcomes


@SYNC_AND_ASYNC
def test_grpc_connects_within_the_timeout_of_the_call(way: str) -> None:
    """A server that is further away than the 100 ms between two attempts to connect."""
    with still() as service:
        port = int(service.url("grpc").rpartition(":")[2])
        with (
            FaultProxy(port) as proxy,
            asking(f"grpc://127.0.0.1:{proxy.port}", "one", way, fail="error") as limiter,
        ):
            proxy.delay(250)
            assert limiter.check("far-away").allowed
