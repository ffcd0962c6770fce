"""A connection of HTTP/2, from the server's side: with a library as the client, and by hand."""

from __future__ import annotations

import random
import struct
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest

from penstock.service.http2 import ErrorCode, HeaderBlock, KnownPath
from penstock.service.http2._connection import PREFACE

from .frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADER_TABLE,
    HEADERS,
    INITIAL_WINDOW,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
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

OK = HeaderBlock([(b":status", b"200")])
STREAMING = {b"/test.Echo/Unary": KnownPath(7, streaming=True)}


class Library:
    """A client made of the h2 library, wired to a connection."""

    def __init__(self, protocol: Any, **options: Any) -> None:
        self.http2 = protocol.Http2Connection(protocol.Http2Options(**options), 0)
        config = h2.config.H2Configuration(client_side=True, header_encoding=None)
        self.client = h2.connection.H2Connection(config)
        self.client.initiate_connection()
        self.rng = random.Random("cuts")
        self.events: list[Any] = []
        self.bodies: dict[int, bytearray] = {}
        self.heads: dict[int, list[tuple[bytes, bytes]]] = {}
        self.trailers: dict[int, list[tuple[bytes, bytes]]] = {}
        self.ended: set[int] = set()

    def request(self, path: str = "/x", body: bytes | None = None, **fields: str) -> int:
        stream = self.client.get_next_available_stream_id()
        head = [
            (":method", "GET" if body is None else "POST"),
            *((":scheme", "http"), (":path", path), (":authority", "a")),
            *((name.replace("_", "-"), value) for name, value in fields.items()),
        ]
        self.client.send_headers(stream, head, end_stream=body is None)
        if body is not None:
            self.send(stream, body)
        return stream

    def send(self, stream: int, body: bytes) -> None:
        """As the server makes room."""
        while True:
            size = min(self.client.local_flow_control_window(stream), 16_384, len(body))
            self.client.send_data(stream, body[:size], end_stream=size == len(body))
            body = body[size:]
            if not body:
                return
            self.pump()

    def pump(self) -> None:
        """Carry bytes both ways, cut anywhere, until nobody has anything to say."""
        while True:
            out = self.client.data_to_send()
            while out:
                cut = self.rng.randrange(1, len(out) + 1)
                self.events += self.http2.feed(out[:cut], 0)
                out = out[cut:]
            while self.http2.pending:
                self.events += self.http2.feed(b"", 0)
            back = self.http2.take_outgoing()
            if not back:
                return
            for event in self.client.receive_data(back):
                self.hear(event)

    def hear(self, event: Any) -> None:
        if isinstance(event, h2.events.ResponseReceived):
            self.heads[event.stream_id] = list(event.headers)
        elif isinstance(event, h2.events.DataReceived):
            self.bodies.setdefault(event.stream_id, bytearray()).extend(event.data)
            length = event.flow_controlled_length
            self.client.acknowledge_received_data(length, event.stream_id)
        elif isinstance(event, h2.events.TrailersReceived):
            self.trailers[event.stream_id] = list(event.headers)
        elif isinstance(event, h2.events.StreamEnded):
            self.ended.add(event.stream_id)

    def requests(self) -> list[Any]:
        """Those that are there by now."""
        self.pump()
        found = [stream for kind, stream, _ in self.events if kind == "request"]
        self.events.clear()
        return found


def test_a_library_is_answered(protocol: Any) -> None:
    """Heads, fields of many kinds, an answer with its body."""
    client = Library(protocol)
    client.request("/a%20b?c=d", b"hello", cookie="a=1", x_a="é", authorization="Bearer t")
    (stream,) = client.requests()
    assert (stream.method, stream.path, stream.query) == ("POST", "/a%20b", "c=d")
    assert (stream.scheme, stream.authority, stream.body) == ("http", "a", b"hello")
    assert stream.get("authorization") == "Bearer t"
    assert stream.headers["x-a"] == "é".encode().decode("latin-1")
    head = HeaderBlock([(b":status", b"201")], [(b"x-b", b"c")])
    assert client.http2.respond(stream, head, b"world")
    client.pump()
    assert client.heads[1] == [(b":status", b"201"), (b"x-b", b"c")]
    assert client.bodies[1] == b"world"
    assert client.ended == {1}
    assert client.http2.streams == []


def test_bodies_larger_than_the_windows_pass_both_ways(protocol: Any) -> None:
    """A megabyte up, which is given back as it arrives, and one down, as the client takes it."""
    client = Library(protocol, body_bytes=2**20)
    body = random.Random("body").randbytes(2**20)
    client.request("/x", body)
    (stream,) = client.requests()
    assert stream.body == body
    assert client.http2.respond(stream, OK, body)
    client.pump()
    assert client.bodies[1] == body
    assert not client.http2.blocked


def test_streams_that_wait_for_room_take_turns(protocol: Any) -> None:
    """A small answer does not wait for the end of a large one that began before it."""
    client = Talk(protocol)
    for stream_id in (1, 3):
        client.send(request(stream_id, end=True))
    first, second = (event[1] for event in client.events)
    client.http2.respond(first, OK, b"a" * 200_000)
    client.http2.respond(second, OK, b"b" * 20_000)
    client.received()
    client.send(window(1, 300_000) + window(0, 60_000))
    order = [(stream, len(payload)) for kind, _, stream, payload in client.received()]
    assert [stream for stream, _ in order] == [1, 3, 1, 3, 1]
    assert sum(size for stream, size in order if stream == 3) == 20_000


def test_answers_end_with_trailers(protocol: Any) -> None:
    """Also if they have to wait behind a body."""
    client = Library(protocol)
    client.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 5})
    client.request()
    (stream,) = client.requests()
    assert client.http2.send_head(stream, OK)
    assert client.http2.send_data(stream, b"0123456789")
    assert client.http2.send_trailers(stream, HeaderBlock([(b"x-sum", b"45")]))
    assert client.http2.blocked
    client.pump()
    assert client.bodies[1] == b"0123456789"
    assert client.trailers[1] == [(b"x-sum", b"45")]
    assert client.ended == {1}


def test_a_request_may_have_trailers(protocol: Any) -> None:
    """They are read, and not kept."""
    client = Library(protocol)
    head = {":method": "POST", ":scheme": "http", ":path": "/x", ":authority": "a"}
    client.client.send_headers(1, list(head.items()))
    client.client.send_data(1, b"body")
    client.client.send_headers(1, [("x-sum", "1")], end_stream=True)
    (stream,) = client.requests()
    assert (stream.body, stream.ended) == (b"body", True)


def test_an_interim_answer_comes_before_the_final_one(protocol: Any) -> None:
    """100 Continue, for a client that waits for it."""
    client = Talk(protocol, routes=STREAMING)
    ((_, stream, _),) = client.send(request(1, (b"expect", b"100-continue")))
    assert client.http2.send_head(stream, HeaderBlock([(b":status", b"100")]), interim=True)
    assert not stream.head_sent
    assert client.http2.send_head(stream, OK)
    assert [kind for kind, *_ in client.received()] == [HEADERS, HEADERS]


def test_fields_longer_than_a_frame_go_out_in_several(protocol: Any) -> None:
    """HEADERS and CONTINUATION, which a library puts together again."""
    client = Library(protocol)
    client.client.update_settings({h2.settings.SettingCodes.MAX_HEADER_LIST_SIZE: 100_000})
    client.request()
    (stream,) = client.requests()
    long = b"\x01" * 40_000
    assert client.http2.respond(stream, HeaderBlock([(b":status", b"200")], [(b"x", long)]))
    client.pump()
    assert client.heads[1][1] == (b"x", long)


def test_a_streaming_route_is_handed_over_with_its_head(protocol: Any) -> None:
    """Its body comes in pieces, and room for more is made when they are taken."""
    client = Talk(protocol, routes=STREAMING)
    ((kind, stream, _),) = client.send(request(1))
    assert (kind, stream.route, stream.ended) == ("head", 7, False)
    piece = frame(DATA, 0, 1, b"x" * 16_000)
    assert [event[0] for event in client.send(piece * 3)] == ["data"] * 3
    assert client.received() == []
    assert len(client.http2.take_body(stream)) == 48_000
    assert client.received() == [(WINDOW_UPDATE, 0, 1, struct.pack(">I", 48_000))]
    assert [event[0] for event in client.send(frame(DATA, END_STREAM, 1, b"y"))] == ["data", "end"]


def test_an_answer_before_the_end_of_the_request_ends_both(protocol: Any) -> None:
    """The client is told to stop; what it sent meanwhile is no mistake."""
    client = Talk(protocol, routes=STREAMING)
    ((_, stream, _),) = client.send(request(1))
    client.http2.respond(stream, OK, b"no")
    assert client.received()[-1] == (RST_STREAM, 0, 1, struct.pack(">I", ErrorCode.NO_ERROR))
    client.send(frame(DATA, 0, 1, b"late") + frame(HEADERS, 5, 1, block()) + reset(1))
    assert client.received() == []
    assert not client.http2.ended


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


def test_pings_and_settings_are_answered_inside(protocol: Any) -> None:
    """Without an event; the answer to our own ping is one."""
    client = Talk(protocol)
    assert client.send(frame(PING, 0, 0, b"12345678") + settings((3, 5))) == []
    assert client.received() == [(PING, ACK, 0, b"12345678"), (SETTINGS, ACK, 0, b"")]
    client.http2.ping(b"abcdefgh")
    client.received()
    assert client.send(frame(PING, ACK, 0, b"abcdefgh")) == [("pong", None, b"abcdefgh")]
    with pytest.raises(ValueError, match="8 bytes"):
        client.http2.ping(b"short")


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


def test_changed_windows_hold_for_open_streams(protocol: Any) -> None:
    """They may become negative, and then have to be made up for (section 6.9.2)."""
    client = Talk(protocol)
    ((_, stream, _),) = client.send(request(1, end=True))
    client.http2.send_head(stream, OK)
    client.http2.send_data(stream, b"x" * 100)
    client.send(settings((INITIAL_WINDOW, 50)))
    client.http2.send_data(stream, b"y" * 10, end=True)
    client.received()
    client.send(window(1, 50))
    assert client.received() == []
    client.send(settings((INITIAL_WINDOW, 55)))
    data = [payload for kind, _, _, payload in client.received() if kind == DATA]
    assert data == [b"y" * 5]


def test_trailers_need_no_room(protocol: Any) -> None:
    """Not even where a window has become negative."""
    client = Talk(protocol)
    ((_, stream, _),) = client.send(request(1, end=True))
    client.http2.send_head(stream, OK)
    client.http2.send_data(stream, b"x" * 100)
    client.send(settings((INITIAL_WINDOW, 50)))
    client.received()
    assert client.http2.send_trailers(stream, HeaderBlock([(b"grpc-status", b"0")]))
    ((kind, flags, *_),) = client.received()
    assert (kind, flags & END_STREAM) == (HEADERS, END_STREAM)


def test_the_clients_table_size_is_kept(protocol: Any) -> None:
    """A client that wants no table gets fields spelled out, and is told so first."""
    client = Talk(protocol, begin((HEADER_TABLE, 0)))
    client.send(call(1) + call(3))
    head = HeaderBlock([(b":status", b"200"), (b"x-a", b"b")])
    for _, stream, _ in client.events:
        client.http2.respond(stream, head)
    first, second = (payload for *_, payload in client.received())
    assert first == b"\x20" + second


# What is wrong, and the code that it ends the connection or the stream with.
ENDS_CONNECTION = {
    "no settings first": (PREFACE + frame(PING, 0, 0, b"12345678"), ErrorCode.PROTOCOL_ERROR),
    "another preface": (b"GET / HTTP/1.1\r\n", ErrorCode.PROTOCOL_ERROR),
    "a frame too long": (begin() + b"\x00\x40\x01\x00\x00" + b"\0" * 4, ErrorCode.FRAME_SIZE_ERROR),
    "data before a request": (begin() + frame(DATA, 0, 1, b"x"), ErrorCode.PROTOCOL_ERROR),
    "data for no stream": (begin() + frame(DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
    "a request with an even number": (begin() + request(2), ErrorCode.PROTOCOL_ERROR),
    "a request below the last": (begin() + request(5) + request(3), ErrorCode.PROTOCOL_ERROR),
    "a frame within fields": (
        begin() + frame(HEADERS, 0, 1, block()) + frame(PING, 0, 0, b"12345678"),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "fields of another stream within": (
        begin() + frame(HEADERS, 0, 1, block()) + frame(CONTINUATION, 4, 3, b""),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a continuation of nothing": (begin() + frame(CONTINUATION, 4, 1), ErrorCode.PROTOCOL_ERROR),
    "padding longer than its frame": (
        begin() + request(1) + frame(DATA, PADDED, 1, b"\x05abcd"),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "fields that are none": (
        begin() + frame(HEADERS, 4, 1, b"\xff" * 9),
        ErrorCode.COMPRESSION_ERROR,
    ),
    "a stream that depends on itself": (
        begin() + frame(PRIORITY, 0, 1, struct.pack(">IB", 1, 0)),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a short priority": (begin() + frame(PRIORITY, 0, 1, b"1234"), ErrorCode.FRAME_SIZE_ERROR),
    "a short reset": (begin() + request(1) + frame(RST_STREAM, 0, 1), ErrorCode.FRAME_SIZE_ERROR),
    "a reset before a request": (begin() + reset(1), ErrorCode.PROTOCOL_ERROR),
    "half a setting": (begin() + frame(SETTINGS, 0, 0, b"123"), ErrorCode.FRAME_SIZE_ERROR),
    "settings of a stream": (begin() + frame(SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR),
    "an acknowledgement with text": (
        begin() + frame(SETTINGS, 1, 0, b"x"),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    "a push that is neither on nor off": (begin((2, 2)), ErrorCode.PROTOCOL_ERROR),
    "a window beyond all bounds": (begin((4, 2**31)), ErrorCode.FLOW_CONTROL_ERROR),
    "frames too small": (begin((5, 16_383)), ErrorCode.PROTOCOL_ERROR),
    "a promise from a client": (begin() + frame(PUSH_PROMISE, 4, 1), ErrorCode.PROTOCOL_ERROR),
    "a short ping": (begin() + frame(PING, 0, 0, b"1"), ErrorCode.FRAME_SIZE_ERROR),
    "a ping of a stream": (begin() + frame(PING, 0, 1, b"12345678"), ErrorCode.PROTOCOL_ERROR),
    "a short farewell": (begin() + frame(GOAWAY, 0, 0, b"1"), ErrorCode.FRAME_SIZE_ERROR),
    "no more room for the connection": (begin() + window(0, 0), ErrorCode.PROTOCOL_ERROR),
    "too much room for the connection": (
        begin() + window(0, 2**31 - 1),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "room for a stream that is not open": (begin() + window(1, 1), ErrorCode.PROTOCOL_ERROR),
    "fields for a closed stream": (
        begin() + call(1) + reset(1) + request(1),
        ErrorCode.STREAM_CLOSED,
    ),
    "open windows beyond all bounds": (
        begin() + request(1) + window(1, 2**31 - 1 - 65_535) + settings((4, 65_536)),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
}


@pytest.mark.parametrize("case", ENDS_CONNECTION)
def test_what_both_sides_cannot_agree_on_ends_the_connection(protocol: Any, case: str) -> None:
    """With the code that the RFC has for it, whether it comes at once or byte by byte."""
    data, code = ENDS_CONNECTION[case]
    for size in (len(data), 1):
        client = Talk(protocol, b"")
        for at in range(0, len(data), size):
            client.send(data[at : at + size])
        assert client.goaway()[0] == code
        assert client.events[-1] == ("closed", None, code)
        assert client.send(call(9)) == []


ENDS_STREAM = {
    "no method": (request(1, method=None), ErrorCode.PROTOCOL_ERROR),
    "a method in lower case": (request(1, method="post"), ErrorCode.PROTOCOL_ERROR),
    "no scheme": (request(1, scheme=None), ErrorCode.PROTOCOL_ERROR),
    "an unknown scheme": (request(1, scheme="gopher"), ErrorCode.PROTOCOL_ERROR),
    "no path": (request(1, path=None), ErrorCode.PROTOCOL_ERROR),
    "an empty path": (request(1, path=""), ErrorCode.PROTOCOL_ERROR),
    "a path without a slash": (request(1, path="x"), ErrorCode.PROTOCOL_ERROR),
    "a fragment": (request(1, path="/a#b"), ErrorCode.PROTOCOL_ERROR),
    "a bad escape": (request(1, path="/a%2"), ErrorCode.PROTOCOL_ERROR),
    "a space in the path": (request(1, path="/a b"), ErrorCode.PROTOCOL_ERROR),
    "a tunnel with a path": (request(1, method="CONNECT"), ErrorCode.PROTOCOL_ERROR),
    "two hosts": (request(1, (b"host", b"other")), ErrorCode.PROTOCOL_ERROR),
    "a name in capitals": (request(1, (b"X-A", b"b")), ErrorCode.PROTOCOL_ERROR),
    "an empty name": (request(1, (b"", b"b")), ErrorCode.PROTOCOL_ERROR),
    "a pseudo-field at the end": (request(1, (b":path", b"/")), ErrorCode.PROTOCOL_ERROR),
    "an unknown pseudo-field": (request(1, (b":x", b"y")), ErrorCode.PROTOCOL_ERROR),
    "a field of a connection": (request(1, (b"connection", b"close")), ErrorCode.PROTOCOL_ERROR),
    "te for something else": (request(1, (b"te", b"gzip")), ErrorCode.PROTOCOL_ERROR),
    "a line end in a value": (request(1, (b"x", b"a\r\nb")), ErrorCode.PROTOCOL_ERROR),
    "a NUL in a value": (request(1, (b"x", b"a\0b")), ErrorCode.PROTOCOL_ERROR),
    "a space around a length": (
        request(1, (b"content-length", b" 5")),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "two lengths": (
        request(1, (b"content-length", b"1"), (b"content-length", b"1")),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a length that is none": (request(1, (b"content-length", b"+1")), ErrorCode.PROTOCOL_ERROR),
    "a length and no body": (
        request(1, (b"content-length", b"1"), end=True),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a body longer than its length": (
        request(1, (b"content-length", b"1")) + frame(DATA, 0, 1, b"ab"),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a body shorter than its length": (
        request(1, (b"content-length", b"3")) + frame(DATA, END_STREAM, 1, b"ab"),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "data behind the end": (call(1) + frame(DATA, 0, 1, b"x"), ErrorCode.STREAM_CLOSED),
    "fields behind the end": (call(1) + request(1), ErrorCode.STREAM_CLOSED),
    "trailers that are not the end": (
        request(1) + frame(HEADERS, END_HEADERS, 1, b"\x00\x01x\x01y"),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a pseudo-field among trailers": (request(1) + request(1, end=True), ErrorCode.PROTOCOL_ERROR),
    "no more room for a stream": (request(1) + window(1, 0), ErrorCode.PROTOCOL_ERROR),
    "too much room for a stream": (request(1) + window(1, 2**31 - 1), ErrorCode.FLOW_CONTROL_ERROR),
}


@pytest.mark.parametrize("case", ENDS_STREAM)
def test_a_mistake_in_one_request_ends_that_one(protocol: Any, case: str) -> None:
    """The connection goes on, and so does its table of fields."""
    data, code = ENDS_STREAM[case]
    client = Talk(protocol)
    client.send(data)
    assert client.received() == [(RST_STREAM, 0, 1, struct.pack(">I", code))]
    assert [kind for kind, *_ in client.events] in ([], ["request", "reset"])
    ((kind, stream, _),) = client.send(call(3))
    assert (kind, stream.id) == ("request", 3)


def test_more_data_than_there_is_room_for_ends_the_stream(protocol: Any) -> None:
    """What the connection has room for is given back at once, and cannot run out."""
    client = Talk(protocol, routes=STREAMING)
    client.send(request(1) + frame(DATA, 0, 1, b"x" * 16_000) * 4)
    client.send(frame(DATA, 0, 1, b"x" * 1_536))
    assert client.received() == [(RST_STREAM, 0, 1, struct.pack(">I", 3))]
    assert client.events[-1][0] == "reset"


def test_a_tunnel_is_a_request_without_a_path(protocol: Any) -> None:
    """It is for the server to refuse."""
    client = Talk(protocol)
    data = request(1, method="CONNECT", path=None, scheme=None, end=True)
    ((_, stream, _),) = client.send(data)
    assert (stream.method, stream.path, stream.authority) == ("CONNECT", "", "localhost")


def test_the_host_stands_in_for_a_missing_authority(protocol: Any) -> None:
    """As in requests that a proxy has translated."""
    client = Talk(protocol)
    ((_, stream, _),) = client.send(request(1, (b"host", b"a:1"), end=True, authority=None))
    assert stream.authority == "a:1"


def test_padding_is_no_part_of_a_body(protocol: Any) -> None:
    """And counts as data that was sent."""
    client = Talk(protocol)
    padded = frame(DATA, PADDED | END_STREAM, 1, b"\x03abc\0\0\0")
    ((_, stream, _),) = client.send(request(1) + padded)
    assert stream.body == b"abc"


def test_a_connection_does_not_depend_on_how_its_bytes_are_cut(protocol: Any) -> None:
    """Byte by byte, the same events, but for requests that are announced, and the same bytes."""
    data = begin() + call(1, b"a" * 50) + frame(PING, 0, 0, b"12345678") + request(3, end=True)
    data += settings((4, 10)) + window(0, 5) + request(5) + reset(5) + frame(99, 0, 0, b"?")

    def run(size: int) -> Any:
        http2 = protocol.Http2Connection(protocol.Http2Options(), 0)
        events = []
        for at in range(0, len(data), size):
            events += [
                (kind, stream and stream.id, value)
                for kind, stream, value in http2.feed(data[at : at + size], 0)
                if kind != "partial"
            ]
        return events, http2.take_outgoing()

    assert run(1) == run(7) == run(len(data))


def test_windows_below_what_clients_begin_with_are_refused(protocol: Any) -> None:
    """A client may use the default before it has read our settings."""
    with pytest.raises(ValueError, match="65,535"):
        protocol.Http2Options(stream_window=1_000)
    with pytest.raises(ValueError, match="65,535"):
        protocol.Http2Options(connection_window=1_000)


def test_a_request_whose_rest_is_not_there_is_announced(protocol: Any) -> None:
    """Once, at the end of the turn that brought its head; not if all of it came together."""
    talk = Talk(protocol)
    assert [kind for kind, _, _ in talk.send(call(1))] == ["request"]
    [(kind, stream, _)] = talk.send(request(3))
    assert (kind, stream.id, stream.path) == ("partial", 3, "/test.Echo/Unary")
    assert talk.send(frame(DATA, 0, 3, b"a")) == []
    assert talk.http2.open_streams == 2
    assert talk.http2.buffered == 6
    [(kind, stream, _)] = talk.send(frame(DATA, END_STREAM, 3, b"b"))
    assert (kind, stream.body) == ("request", b"ab")


def test_an_announced_request_may_be_answered_before_its_body_has_come(protocol: Any) -> None:
    """The client is told that it need not send the rest, and what still comes is ignored."""
    talk = Talk(protocol)
    [(_, stream, _)] = talk.send(request(1))
    assert talk.http2.respond(stream, HeaderBlock([(b":status", b"401")]))
    assert [kind for kind, _, _, _ in talk.received()] == [HEADERS, RST_STREAM]
    assert talk.send(frame(DATA, END_STREAM, 1, b"late")) == []
    assert talk.http2.buffered == 0


def test_options_may_ask_about_the_server_as_a_whole(protocol: Any) -> None:
    """By a star in the place of a path, which no other method has."""
    talk = Talk(protocol)
    [(kind, stream, _)] = talk.send(request(1, end=True, method="OPTIONS", path="*"))
    assert (kind, stream.method, stream.path, stream.query) == ("request", "OPTIONS", "*", "")
    for number, changed in enumerate([{"method": "GET"}, {"path": "*?a"}, {"path": "**"}], 1):
        fields = {"method": "OPTIONS", "path": "*", **changed}
        assert talk.send(request(2 * number + 1, end=True, **fields)) == []
    assert [kind for kind, *_ in talk.received()] == [RST_STREAM] * 3
