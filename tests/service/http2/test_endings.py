"""How requests and connections of HTTP/2 end: by either side, at once or after open requests."""

from __future__ import annotations

import struct
from typing import Any

from penstock.service.http2 import ErrorCode

from .frames import (
    ACK,
    DATA,
    GOAWAY,
    OK,
    PING,
    Talk,
    call,
    frame,
    request,
    reset,
)


def test_nothing_is_sent_for_a_request_that_is_over(protocol: Any) -> None:
    """The server learns of it, and its answer goes nowhere."""
    client = Talk(protocol)
    ((_, stream, _),) = client.send(call(1))
    assert client.send(reset(1)) == [("reset", stream, ErrorCode.CANCEL)]
    client.received()
    assert not client.http2.respond(stream, OK, b"late")
    assert not client.http2.send_data(stream, b"late")
    assert not client.http2.send_trailers(stream, OK)
    assert not client.http2.reset(stream, 8)
    assert client.http2.outgoing == 0


def test_a_shutdown_serves_what_is_on_its_way(protocol: Any) -> None:
    """First it is announced, with a ping; its answer sets the last request."""
    client = Talk(protocol)
    client.send(call(1))
    client.http2.shutdown()
    (goaway, ping) = client.received()
    assert goaway == (GOAWAY, 0, 0, struct.pack(">II", 2**31 - 1, 0))
    assert len(client.send(call(3))) == 1
    client.send(frame(PING, ACK, 0, ping[3]))
    assert client.received() == [(GOAWAY, 0, 0, struct.pack(">II", 3, 0))]
    # What comes afterwards is the client's to send elsewhere, without a word.
    assert client.send(call(5)) == []
    assert client.received() == []
    assert not client.http2.drained
    for _, stream, _ in client.events[:2]:
        assert client.http2.respond(stream, OK)
    assert client.http2.drained


def test_a_shutdown_that_nobody_answers_is_finished_by_a_second_call(protocol: Any) -> None:
    """A third one says nothing."""
    client = Talk(protocol)
    client.http2.shutdown()
    client.received()
    client.http2.shutdown()
    client.http2.shutdown()
    assert client.received() == [(GOAWAY, 0, 0, struct.pack(">II", 0, 0))]
    assert client.http2.drained


def test_a_connection_that_is_lost_takes_its_requests_with_it(protocol: Any) -> None:
    """Those that were handed over are reported; the room they held is given back."""
    room = protocol.Room(10_000)
    client = Talk(protocol, held_bytes=10, room=room)
    client.send(call(1, b"x" * 100) + request(3) + frame(DATA, 0, 3, b"y" * 50))
    assert room.taken == 105 + 50 - 10
    assert [(kind, stream.id) for kind, stream, _ in client.http2.lost()] == [("reset", 1)]
    assert room.taken == 0
    assert client.http2.feed(call(5), 0) == []


def test_closing_says_why(protocol: Any) -> None:
    """And ends every request at once."""
    client = Talk(protocol)
    client.send(call(1))
    events = client.http2.close(ErrorCode.ENHANCE_YOUR_CALM, b"go away")
    assert [(kind, value) for kind, _, value in events] == [("reset", 11)]
    assert client.goaway() == (11, b"go away")
    assert client.http2.close() == []


def test_the_farewell_of_a_client_is_heard(protocol: Any) -> None:
    """Open requests are served all the same."""
    client = Talk(protocol)
    client.send(call(1))
    assert client.send(frame(GOAWAY, 0, 0, struct.pack(">II", 0, 2))) == [("goaway", None, 2)]
    assert client.http2.respond(client.events[0][1], OK)
