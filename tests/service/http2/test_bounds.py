"""Whatever a client sends, memory and work stay within their bounds.

Each bound is tried alone, on a connection of its own, at times of the test's choice; test_floods.py
has the same attacks against a real server, with other clients beside them.
"""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import pytest

from penstock.service.http2 import ErrorCode, HeaderBlock, KnownPath
from penstock.service.http2._hpack import Encoder

from .frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADER_TABLE,
    HEADERS,
    INITIAL_WINDOW,
    OK,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    Talk,
    begin,
    block,
    call,
    frame,
    request,
    reset,
    settings,
    window,
)

CALM = ErrorCode.ENHANCE_YOUR_CALM


class Peak:
    """The most memory that a test took, beyond what there was at its beginning."""

    def __enter__(self) -> Peak:
        tracemalloc.start()
        self._before = tracemalloc.get_traced_memory()[0]
        return self

    def __exit__(self, *_: object) -> None:
        self.bytes = tracemalloc.get_traced_memory()[1] - self._before
        tracemalloc.stop()


# --- Frames that bring nothing forward ----------------------------------------------------------

CONTROL = {
    "pings": frame(PING, 0, 0, b"12345678"),
    "answers to pings that nobody sent": frame(PING, ACK, 0, b"12345678"),
    "settings": settings((3, 1)),
    "acknowledgements": frame(SETTINGS, ACK),
    "priorities": frame(PRIORITY, 0, 9, struct.pack(">IB", 3, 1)),
    "unknown frames": frame(200, 0, 0, b"?"),
    "windows of a byte": window(0, 1),
    "empty data": frame(DATA, 0, 1),
    "padding": frame(DATA, 8, 1, b"\x02\0\0"),
    "resets of a closed stream": reset(3),
    "farewells": frame(7, 0, 0, struct.pack(">II", 0, 0)),
}


@pytest.mark.parametrize("flood", CONTROL)
def test_a_flood_of_frames_that_bring_nothing_forward_is_ended(protocol: Any, flood: str) -> None:
    """After the burst; the answers to them take little memory until then."""
    client = Talk(protocol, control_burst=100, controls_per_s=10)
    client.send(request(1) + call(3) + reset(3))
    for _ in range(95):
        client.send(CONTROL[flood])
    assert not client.http2.ended
    with Peak() as peak:
        client.send(CONTROL[flood] * 5_000)
    assert client.goaway()[0] == CALM
    assert peak.bytes < 500_000


def test_too_many_pings_are_called_by_the_name_that_clients_of_grpc_know(protocol: Any) -> None:
    """They ping less often from then on."""
    client = Talk(protocol, control_burst=10)
    client.send(CONTROL["pings"] * 20)
    assert client.goaway() == (CALM, b"too_many_pings")


def test_time_and_answered_requests_fill_the_allowance(protocol: Any) -> None:
    """A client that pings now and then, or with its calls, may do so for ever."""
    client = Talk(protocol, control_burst=10, controls_per_s=1, controls_per_request=3)
    for number in range(1, 1_001, 2):
        client.send(call(number) + CONTROL["pings"] + window(0, 5) + window(number, 5))
        client.http2.respond(client.events.pop()[1], OK)
        client.received()
    for _ in range(500):
        client.now += 1_000
        client.send(CONTROL["pings"])
    assert not client.http2.ended


# --- Streams that come to nothing ---------------------------------------------------------------


def test_rapid_resets_are_ended(protocol: Any) -> None:
    """A request and its reset, over and over: never more than one at a time, and still a flood."""
    client = Talk(protocol, reset_burst=50, resets_per_s=10)
    client.send(b"".join(call(n) + reset(n) for n in range(1, 81, 2)))
    assert not client.http2.ended
    flood = b"".join(call(n) + reset(n) for n in range(1_001, 9_001, 2))
    with Peak() as peak:
        client.send(flood)
    assert client.goaway() == (CALM, b"too many streams were reset")
    assert peak.bytes < len(flood) + 500_000
    assert client.http2.streams == []


def test_resets_that_a_client_makes_us_send_count_as_its_own(protocol: Any) -> None:
    """Mistakes that concern one stream, one after the other."""
    client = Talk(protocol, reset_burst=50)
    client.send(b"".join(call(n) + window(n, 0) for n in range(1, 401, 2)))
    assert client.goaway()[0] == CALM


def test_malformed_requests_count_as_resets(protocol: Any) -> None:
    """They cost their reading, and nothing of them is kept."""
    client = Talk(protocol, reset_burst=50)
    client.send(b"".join(request(n, method="x") for n in range(1, 401, 2)))
    assert client.goaway()[0] == CALM


def test_a_client_that_is_mostly_served_may_give_up_now_and_then(protocol: Any) -> None:
    """Each answer earns a reset, and so does time."""
    client = Talk(protocol, reset_burst=5, resets_per_s=1)
    for number in range(1, 2_001, 4):
        client.send(call(number) + call(number + 2) + reset(number))
        client.http2.respond(client.events[-2][1], OK)
        client.received()
    assert not client.http2.ended
    for number in range(3_001, 3_201, 2):
        client.now += 1_000
        client.send(call(number) + reset(number))
    assert not client.http2.ended


def test_requests_beyond_the_concurrent_ones_are_refused(protocol: Any) -> None:
    """With the code that says that they were not looked at; the table of fields stays right."""
    client = Talk(protocol, concurrent_streams=3)
    encoder = Encoder()
    head = HeaderBlock(
        [
            *((b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/x")),
            *((b":authority", b"a"), (b"x-repeated", b"y")),
        ]
    )
    for number in range(1, 11, 2):
        client.send(frame(HEADERS, END_HEADERS, number, encoder.encode(head)))
    refused = struct.pack(">I", ErrorCode.REFUSED_STREAM)
    assert client.received() == [(RST_STREAM, 0, n, refused) for n in (7, 9)]
    client.send(frame(DATA, END_STREAM, 7, b"on its way") + frame(DATA, END_STREAM, 1))
    (_, stream, _) = client.events.pop()
    client.http2.respond(stream, OK)
    client.send(frame(HEADERS, END_HEADERS | END_STREAM, 11, encoder.encode(head)))
    assert client.events[-1][1].get("x-repeated") == "y"


# --- Fields -------------------------------------------------------------------------------------


def test_fields_that_never_end_are_ended(protocol: Any) -> None:
    """CONTINUATION after CONTINUATION, with text or without."""
    for piece in (b"", b"\x00\x01a\x7f\x00" + b"b" * 127, b"x" * 10_000):
        client = Talk(protocol)
        with Peak() as peak:
            client.send(frame(HEADERS, 0, 1, block()))
            client.send(frame(CONTINUATION, 0, 1, piece) * 200)
        assert client.goaway() == (CALM, b"a block of fields is too long")
        assert peak.bytes < 200 * len(piece) * 2 + 200_000


def test_fields_may_come_in_several_frames(protocol: Any) -> None:
    """As many as the bounds allow."""
    client = Talk(protocol)
    whole = block((b"x", b"y" * 5_000))
    client.send(frame(HEADERS, END_STREAM, 1, whole[:100]))
    for at in range(100, len(whole), 1_000):
        client.send(frame(CONTINUATION, 0, 1, whole[at : at + 1_000]))
    client.send(frame(CONTINUATION, END_HEADERS, 1))
    assert len(client.events[-1][1].get("x")) == 5_000


def test_a_giant_list_of_fields_is_handed_over_as_too_large(protocol: Any) -> None:
    """One byte each refers to a field of 4,000; the connection and its table go on."""
    client = Talk(protocol)
    big = b"\x40\x01a\x7f\x91\x1e" + b"b" * 3_984
    with Peak() as peak:
        client.send(frame(HEADERS, END_HEADERS, 1, block() + big))
        client.send(frame(HEADERS, END_HEADERS, 3, block() + b"\xbe" * 400))
    assert peak.bytes < 500_000
    _, (kind, stream, _) = client.events
    assert (kind, stream.id, stream.fault) == ("request", 3, "head_too_large")
    assert stream.path == "/test.Echo/Unary"
    assert client.http2.respond(stream, HeaderBlock([(b":status", b"431")]))
    client.send(frame(HEADERS, END_HEADERS | END_STREAM, 5, block() + b"\xbe"))
    assert len(client.events[-1][1].get("a")) == 3_984
    client.send(frame(HEADERS, END_HEADERS, 7, block() + b"\xbe" * 10_000))
    assert client.goaway() == (ErrorCode.COMPRESSION_ERROR, b"a block of too many fields")


def test_games_with_the_size_of_our_table_are_bounded(protocol: Any) -> None:
    """A client may say that it keeps less, never more than was announced."""
    client = Talk(protocol)
    with Peak() as peak:
        for number in range(1, 401, 2):
            size = b"\x20" if number % 4 == 1 else b"\x20\x3f\xe1\x1f"
            added = b"\x40\x01a\x7f\x00" + b"b" * 127
            client.send(frame(HEADERS, 5, number, size + block() + added * 30))
            client.http2.respond(client.events.pop()[1], OK)
            client.received()
    assert peak.bytes < 500_000
    client.send(frame(HEADERS, 5, 3_001, b"\x3f\xe2\x1f" + block()))
    assert client.goaway()[0] == ErrorCode.COMPRESSION_ERROR


def test_games_with_the_size_of_its_own_table_are_bounded(protocol: Any) -> None:
    """Settings that change it all the time are told of in front of the next answer, once."""
    client = Talk(protocol, control_burst=10_000)
    client.send(call(1))
    with Peak() as peak:
        for size in [0, 2**32 - 1, 100, 4_096] * 500:
            client.send(settings((HEADER_TABLE, size)))
        client.http2.respond(client.events.pop()[1], HeaderBlock([(b"x", b"y")]))
    *_, (_, _, _, payload) = client.received()
    assert payload.startswith(b"\x20\x3f\xe1\x1f\x40")
    assert peak.bytes < 500_000


# --- Bodies -------------------------------------------------------------------------------------


def test_a_body_beyond_the_bound_of_its_path_is_handed_over_as_too_large(protocol: Any) -> None:
    """At once if its length is announced; what still comes is not kept."""
    routes = {b"/test.Echo/Unary": KnownPath(1, 20)}
    client = Talk(protocol, routes=routes)
    client.send(request(1, (b"content-length", b"21")))
    client.send(request(3) + frame(DATA, 0, 3, b"x" * 21))
    assert [(s.id, s.fault, s.body) for _, s, _ in client.events] == [
        (1, "body_too_large", b""),
        (3, "body_too_large", b""),
    ]
    client.send(frame(DATA, 0, 3, b"x" * 16_000) * 4)
    assert client.http2.respond(client.events[1][1], HeaderBlock([(b":status", b"413")]))
    # It is given no more room, and told to stop if it does not by itself.
    assert [kind for kind, *_ in client.received()] == [HEADERS]
    client.http2.expire(1_100)
    assert [kind for kind, *_ in client.received()] == [RST_STREAM]


def test_bodies_share_the_room_of_all_connections(protocol: Any) -> None:
    """What finds none is handed over as such; what is done gives it back."""
    room = protocol.Room(30_000)
    options: dict[str, Any] = {"room": room, "held_bytes": 1_000}
    first, second = Talk(protocol, **options), Talk(protocol, **options)
    first.send(request(1) + frame(DATA, 0, 1, b"x" * 16_000) + frame(DATA, 0, 1, b"x" * 10_000))
    assert room.taken == 25_000
    second.send(request(1) + frame(DATA, 0, 1, b"x" * 10_000))
    assert second.events[-1][1].fault == "no_room"
    second.send(request(3) + frame(DATA, END_STREAM, 3, b"x" * 500))
    assert second.events[-1][1].fault == ""
    first.send(frame(DATA, END_STREAM, 1))
    first.http2.respond(first.events.pop()[1], OK)
    assert room.taken == 0


def test_bodies_of_many_streams_are_bounded_together(protocol: Any) -> None:
    """Each within its own bound, and all of them within the connection's and the shared room."""
    client = Talk(protocol, room=protocol.Room(100_000))
    with Peak() as peak:
        for number in range(1, 401, 2):
            client.send(request(number) + frame(DATA, 0, number, b"x" * 16_000))
    faults = [stream.fault for _, stream, _ in client.events]
    assert faults.count("no_room") == 200 - 10
    assert peak.bytes < 1_500_000


# --- Answers that nobody takes ------------------------------------------------------------------


def test_answers_that_wait_are_bounded(protocol: Any) -> None:
    """A client that makes no room loses what is beyond the bound, and only that."""
    client = Talk(protocol, begin((INITIAL_WINDOW, 0)), pending_bytes=50_000, room=protocol.Room(0))
    for number in range(1, 201, 2):
        client.send(call(number))
    with Peak() as peak:
        kept = [client.http2.respond(s, OK, b"x" * 10_000) for _, s, _ in client.events]
    assert kept == [True] * 5 + [False] * 95
    assert peak.bytes < 500_000
    assert len(client.http2.streams) == 5


def test_answers_beyond_the_share_of_a_connection_wait_in_the_shared_room(protocol: Any) -> None:
    """A client that asks much at once gets all of it; what it has taken is room for others."""
    room = protocol.Room(60_000)
    client = Talk(protocol, begin(), pending_bytes=10_000, room=room)
    for number in range(1, 25, 2):
        client.send(call(number))
    streams = [stream for _, stream, _ in client.events]
    kept = [client.http2.respond(stream, OK, b"x" * 11_000) for stream in streams]
    # The client makes room for 65,535 bytes, and 70,000 may wait.
    assert kept == [True] * 12
    assert room.taken == 12 * 11_000 - 65_535 - 10_000
    client.send(window(0, 40_000))
    assert room.taken == 12 * 11_000 - 65_535 - 10_000 - 40_000
    client.send(window(0, 100_000))
    assert room.taken == 0
    sent = [payload for kind, _, _, payload in client.received() if kind == DATA]
    assert sum(map(len, sent)) == 12 * 11_000
    client.send(call(25) + call(27))
    for _, stream, _ in client.events[-2:]:
        client.http2.respond(stream, OK, b"x" * 60_000)
    assert room.taken > 0
    client.http2.lost()
    assert room.taken == 0


def test_an_answer_that_is_not_taken_in_time_is_given_up(protocol: Any) -> None:
    """However many windows of a byte are opened meanwhile; others on the connection go on."""
    client = Talk(protocol, begin((INITIAL_WINDOW, 0)), write_ms=10_000)
    client.send(call(1) + call(3))
    slow, other = (stream for _, stream, _ in client.events)
    client.http2.respond(slow, OK, b"x" * 1_000)
    for _ in range(11):
        client.now += 1_000
        client.send(window(1, 1))
        client.events += client.http2.expire(client.now)
    assert client.events[-1] == ("reset", slow, ErrorCode.CANCEL)
    assert not client.http2.blocked
    assert client.http2.respond(other, OK)
    assert not client.http2.ended
