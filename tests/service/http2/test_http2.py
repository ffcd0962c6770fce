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

from penstock.service.http2 import ErrorCode, HeaderBlock

from .frames import (
    ACK,
    DATA,
    END_STREAM,
    HEADER_TABLE,
    HEADERS,
    INITIAL_WINDOW,
    OK,
    PADDED,
    PING,
    RST_STREAM,
    SETTINGS,
    STREAMING,
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
from .library import Library


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


def test_a_client_whose_body_is_too_long_gets_a_moment_to_stop_by_itself(protocol: Any) -> None:
    """Some lose the answer when a reset comes right behind it. One that has ended its request in
    between, or has reset it, is not told at all."""
    stop = struct.pack(">I", ErrorCode.NO_ERROR)
    client = Talk(protocol, body_bytes=10)
    for stream_id in (1, 3, 5):
        ((_, stream, _),) = client.send(request(stream_id) + frame(DATA, 0, stream_id, b"x" * 11))
        assert stream.fault == "body_too_large"
        client.http2.respond(stream, OK, b"no")
    assert RST_STREAM not in [kind for kind, *_ in client.received()]
    client.send(frame(DATA, END_STREAM, 3, b"last") + reset(5) + frame(DATA, 0, 1, b"more"))
    client.http2.expire(900)
    assert client.received() == []
    client.http2.expire(1_100)
    assert client.received() == [(RST_STREAM, 0, 1, stop)]
    client.http2.expire(2_200)
    assert client.received() == []


def test_only_so_many_requests_are_let_run_on(protocol: Any) -> None:
    client = Talk(protocol, body_bytes=10)
    for stream_id in range(1, 23, 2):
        ((_, stream, _),) = client.send(request(stream_id) + frame(DATA, 0, stream_id, b"x" * 11))
        client.http2.respond(stream, OK, b"no")
    told = [stream_id for kind, _, stream_id, _ in client.received() if kind == RST_STREAM]
    assert told == [17, 19, 21]


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
