"""What a client does wrong, and how much of the connection that ends."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from penstock.service.http2 import ErrorCode
from penstock.service.http2._frames import PREFACE

from .frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    STREAMING,
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
