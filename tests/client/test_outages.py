"""Services that are away, that say nothing, or that hang up."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    StoreUnavailableError,
)
from penstock.stores.memory import MemoryStore
from tests.client.asking import asking
from tests.client.serving import RunningService


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def test_an_outage_is_answered_by_the_fail_mode(way: tuple[str, str]) -> None:
    """What settles, pauses or resets is always told of it."""
    url = f"{way[0]}://127.0.0.1:{free_port()}"
    with asking(url, "p", way[1]) as limiter:
        assert limiter.check("k").allowed
        assert limiter.check({"user": "u"}).allowed
        assert [each.allowed for each in limiter.check_many(["a", "b"])] == [True, True]
        assert limiter.forecast("k").spendable_now > 0
        charge = limiter.reserve("k")
        assert (charge.allowed, charge.id, limiter.on(charge, "settle", 1)) == (True, "", False)
        with pytest.raises(StoreUnavailableError):
            limiter.reset("k")
    with asking(url, "p", way[1], fail="closed") as limiter:
        assert limiter.check("k").retry_after_ms == 1_000
        assert not limiter.check({"user": "u"})
        assert limiter.forecast("k").spendable_now == 0
        assert not limiter.reserve("k")
    with (
        asking(url, "p", way[1], fail="error") as limiter,
        pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1"),
    ):
        limiter.check("k")


class BrokenStore(MemoryStore):
    """Answers nothing."""

    answers_at_once = False

    async def aapply(self, *args: Any) -> Any:
        raise StoreUnavailableError("the store is on holiday", reason="full")

    apply_all = aapply_all = aapply  # type: ignore[assignment]


def test_an_outage_of_the_services_own_store_is_one_too(way: tuple[str, str]) -> None:
    with (
        RunningService(store=BrokenStore(), fail="error") as service,
        asking(service.url(way[0]), "one", way[1], fail="error") as limiter,
        pytest.raises(StoreUnavailableError, match="store") as caught,
    ):
        limiter.check("k")
    if way[0] == "http":
        assert caught.value.reason == "full"


@contextmanager
def mute() -> Iterator[int]:
    """A port that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_call_ends_with_its_time(way: tuple[str, str]) -> None:
    """And says whether it may have been charged."""
    with mute() as port:
        url = f"{way[0]}://127.0.0.1:{port}"
        with asking(url, "p", way[1], fail="error", timeout_ms=200) as limiter:
            began = time.monotonic()
            with pytest.raises(StoreUnavailableError, match="may have been charged"):
                limiter.check("k")
            assert time.monotonic() - began < 10
            with pytest.raises(StoreUnavailableError) as caught:
                limiter.peek("k")
            assert "charged" not in str(caught.value)


def read_request(connection: socket.socket) -> None:
    """Head and body, which clients send in pieces."""
    with connection.makefile("rb") as file:
        length = 0
        while (line := file.readline()) != b"\r\n":
            assert line, "the client closed in the middle of a request"
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        assert len(file.read(length)) == length


class Closing:
    """An HTTP server that ends each connection after these replies, of which None is none."""

    def __init__(self, *connections: list[bytes | None]) -> None:
        self._connections = connections
        self.requests = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Closing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(30)
        self._server.close()

    def _serve(self) -> None:
        for replies in self._connections:
            connection, _ = self._server.accept()
            with connection:
                for reply in replies:
                    read_request(connection)
                    self.requests += 1
                    if reply is not None:
                        connection.sendall(reply)


def decision_reply() -> bytes:
    body = b'{"decision":{"allowed":true,"remaining":1,"limit":2,"reset_at":5,"retry_after_ms":0}}'
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_connection_that_the_server_closed_is_not_used_again(way: str) -> None:
    """It is noticed before anything is sent, so that each check is asked exactly once."""
    with (
        Closing([decision_reply()], [decision_reply()]) as server,
        asking(f"http://127.0.0.1:{server.port}", "p", way, fail="error") as limiter,
    ):
        assert limiter.check("k")
        time.sleep(0.05)
        assert limiter.check("k")
    assert server.requests == 2


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_check_whose_answer_was_lost_is_not_repeated(way: str) -> None:
    """It may have been charged. What spends nothing may be asked again, by whoever asks."""
    answered = decision_reply()
    with (
        Closing([answered, None], [answered]) as server,
        asking(f"http://127.0.0.1:{server.port}", "p", way, fail="error") as limiter,
    ):
        assert limiter.check("k")
        with pytest.raises(StoreUnavailableError, match="may have been charged"):
            limiter.check("k")
        assert limiter.peek("k")
    assert server.requests == 3


def test_a_peek_is_repeated_where_a_kept_connection_broke() -> None:
    """It spends nothing."""
    answered = decision_reply()
    with (
        Closing([answered, None], [answered]) as server,
        asking(f"http://127.0.0.1:{server.port}", "p", "sync", fail="error") as limiter,
    ):
        assert limiter.check("k")
        assert limiter.peek("k")
    assert server.requests == 3


@pytest.mark.parametrize("way", ["sync", "async"])
def test_an_address_of_something_else_is_told(way: str) -> None:
    """A web server that is no Penstock service."""
    reply = b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
    with (
        Closing([reply]) as server,
        asking(f"http://127.0.0.1:{server.port}", "p", way) as limiter,
        pytest.raises(ConfigInvalidError, match="Penstock service"),
    ):
        limiter.check("k")
