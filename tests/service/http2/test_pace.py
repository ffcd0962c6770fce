"""Clients that are slow, and how much of the loop one connection may take at once."""

from __future__ import annotations

import tracemalloc
from typing import Any

from penstock.service.http2 import ErrorCode, HeaderBlock, KnownPath
from penstock.service.http2._hpack import Encoder

from .frames import (
    CONTINUATION,
    DATA,
    HEADERS,
    OK,
    PING,
    Talk,
    begin,
    block,
    call,
    frame,
    request,
)

PINGED = frame(PING, 0, 0, b"12345678")


def test_a_connection_that_says_nothing_is_ended(protocol: Any) -> None:
    """No preface, or no acknowledgement of our settings."""
    for start in (b"", begin()[:-9]):
        client = Talk(protocol, start, settings_ms=5_000)
        assert client.http2.expire(5_000) == []
        assert client.http2.expire(5_001)[-1] == ("closed", None, ErrorCode.SETTINGS_TIMEOUT)


def test_a_frame_that_trickles_in_is_ended(protocol: Any) -> None:
    """From its first byte on; and so is a block of fields over many frames."""
    for start, pieces in (
        (b"\0", [bytes((byte,)) for byte in frame(DATA, 0, 1, b"x" * 50)[1:]]),
        (frame(HEADERS, 0, 13, block()), [frame(CONTINUATION, 0, 13, b"")] * 14),
    ):
        client = Talk(protocol, head_ms=10_000)
        client.send(request(11) + start)
        for piece in pieces[:10]:
            client.now += 1_000
            client.send(piece)
            client.events += client.http2.expire(client.now)
        assert not client.http2.ended
        client.now += 1_000
        client.events += client.http2.expire(client.now)
        assert client.events[-1] == ("closed", None, ErrorCode.ENHANCE_YOUR_CALM)


def test_frames_that_arrive_slowly_but_whole_are_not_ended(protocol: Any) -> None:
    """The time counts for each of them, not for all."""
    client = Talk(protocol, routes={b"/test.Echo/Unary": KnownPath(1, streaming=True)})
    data = request(1) + frame(DATA, 0, 1, b"abc") * 20
    for at in range(0, len(data), 3):
        client.now += 1_000 if at > 200 else 1
        client.send(data[at : at + 3])
        assert client.http2.expire(client.now) == []


def test_a_request_that_does_not_end_is_handed_over_as_late(protocol: Any) -> None:
    """A streaming one may take its time."""
    routes = {b"/slow": KnownPath(1, streaming=True)}
    client = Talk(protocol, routes=routes, request_ms=30_000)
    client.send(request(1) + frame(DATA, 0, 1, b"x") + request(3, path="/slow"))
    assert client.http2.expire(30_000) == []
    ((kind, stream, _),) = client.http2.expire(30_001)
    assert (kind, stream.id, stream.fault, stream.body) == ("request", 1, "request_timeout", b"")
    assert client.http2.expire(60_000) == []


def test_a_turn_ends_after_so_many_requests(protocol: Any) -> None:
    """The rest is read when it is asked for; nothing is lost."""
    client = Talk(protocol, turn_requests=10)
    data = b"".join(call(number) for number in range(1, 71, 2))
    sizes = [len(client.http2.feed(data, 0))]
    while client.http2.pending:
        sizes.append(len(client.http2.feed(b"", 0)))
    assert sizes == [10, 10, 10, 5]


def test_a_turn_ends_after_so_many_bytes(protocol: Any) -> None:
    """Frames without events cost time, too."""
    client = Talk(protocol, turn_bytes=1_000, control_burst=100_000)
    assert client.http2.feed(PINGED * 1_000, 0) == []
    turns = 1
    while client.http2.pending:
        client.http2.feed(b"", 0)
        turns += 1
    assert turns == 17
    assert client.http2.outgoing == 17_000


def test_nothing_is_read_while_too_much_waits_to_be_written(protocol: Any) -> None:
    """A client that sends and does not read stops there."""
    client = Talk(protocol, outgoing_bytes=500, control_burst=100_000)
    client.http2.feed(PINGED * 1_000, 0)
    for _ in range(5):
        assert client.http2.pending
        assert client.http2.feed(b"", 0) == []
        assert 500 <= client.http2.outgoing < 520
    client.http2.take_outgoing()
    client.http2.feed(b"", 0)
    assert client.http2.outgoing >= 500


def test_an_idle_connection_takes_little_memory(protocol: Any) -> None:
    """After many calls of a client that fills its table; transports come on top."""
    # Of the interpreted one, the interpreter's own objects are the most.
    most = 8_192 if protocol.__name__ == "penstock.accel._http2" else 40_000

    def used() -> Any:
        client = Talk(protocol)
        encoder = Encoder()
        for number in range(1, 401, 2):
            extra = (b"x-%d" % (number % 50), b"v" * 30)
            head = HeaderBlock(
                [
                    *((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/x")),
                    *((b":authority", b"a"), extra),
                ]
            )
            client.send(frame(HEADERS, 5, number, encoder.encode(head)))
            client.http2.respond(client.events.pop()[1], OK, b"hello")
            client.received()
        return client.http2

    used()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    kept = [used() for _ in range(8)]
    each = (tracemalloc.get_traced_memory()[0] - before) / len(kept)
    tracemalloc.stop()
    assert each < most, each
