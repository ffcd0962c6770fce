"""Frames of HTTP/2 (RFC 9113, sections 4, 6 and 7): numbers, errors, and how to write them."""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

from ._hpack import Encoder, HeaderBlock

__all__ = [
    "ACK",
    "CONTINUATION",
    "DATA",
    "DEFAULT_WINDOW",
    "ENABLE_PUSH",
    "END_HEADERS",
    "END_STREAM",
    "FRAME_HEAD",
    "GOAWAY",
    "HEADERS",
    "HEADER_TABLE_SIZE",
    "INITIAL_WINDOW_SIZE",
    "LAST_STREAM",
    "MAX_CONCURRENT_STREAMS",
    "MAX_FRAME",
    "MAX_FRAME_SIZE",
    "MAX_HEADER_LIST_SIZE",
    "MAX_WINDOW",
    "PADDED",
    "PING",
    "PREFACE",
    "PRIORITIZED",
    "PRIORITY",
    "PUSH_PROMISE",
    "RST_STREAM",
    "SETTING",
    "SETTINGS",
    "WINDOW_UPDATE",
    "ErrorCode",
    "FrameWriter",
    "Http2Error",
    "StreamResetError",
    "check_dependency",
    "is_valid_setting",
    "protocol_error",
    "require_client_stream",
    "require_size",
    "unpadded",
]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client of HTTP/2 sends first. No request of HTTP/1.1 begins like this."""

MAX_FRAME = 16_384
MAX_WINDOW = 2**31 - 1
DEFAULT_WINDOW = 65_535
LAST_STREAM = 2**31 - 1
FRAME_HEAD = Struct(">HBBBI")
SETTING = Struct(">HI")

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY = range(8)
WINDOW_UPDATE, CONTINUATION = 8, 9
ACK = END_STREAM = 0x01
END_HEADERS, PADDED, PRIORITIZED = 0x04, 0x08, 0x20

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 1, 2, 3, 4
MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 5, 6


class ErrorCode(IntEnum):
    """Section 7."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class Http2Error(Exception):
    """A mistake after which the two sides no longer agree: it ends the connection."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class StreamResetError(Exception):
    """A mistake that concerns one stream, which is reset for it."""

    def __init__(self, stream_id: int, code: ErrorCode) -> None:
        super().__init__()
        self.stream_id = stream_id
        self.code = code


class FrameWriter:
    """What is to be sent, in the order in which it was written, in one buffer: `out`."""

    __slots__ = ("encoder", "out")

    def __init__(self) -> None:
        self.encoder: Encoder = Encoder()
        self.out: bytearray = bytearray()

    def take(self) -> bytes:
        """All of it."""
        out = bytes(self.out)
        self.out.clear()
        return out

    def settings(self, *pairs: tuple[int, int]) -> None:
        self.frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*pair) for pair in pairs))

    def fields(self, stream_id: int, block: HeaderBlock, end: bool) -> None:
        data = self.encoder.encode(block)
        kind, flags = HEADERS, END_STREAM if end else 0
        while len(data) > MAX_FRAME:
            self.frame(kind, flags, stream_id, data[:MAX_FRAME])
            data = data[MAX_FRAME:]
            kind, flags = CONTINUATION, 0
        self.frame(kind, flags | END_HEADERS, stream_id, data)

    def window_update(self, stream_id: int, amount: int) -> None:
        self.frame(WINDOW_UPDATE, 0, stream_id, amount.to_bytes(4, "big"))

    def rst_stream(self, stream_id: int, code: int) -> None:
        self.frame(RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))

    def goaway(self, last_id: int, code: int, text: bytes) -> None:
        numbers = last_id.to_bytes(4, "big") + code.to_bytes(4, "big")
        self.frame(GOAWAY, 0, 0, numbers + text)

    def frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        self.out += FRAME_HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream_id)
        self.out += payload


def protocol_error(text: str) -> Http2Error:
    return Http2Error(ErrorCode.PROTOCOL_ERROR, text)


def require_client_stream(stream_id: int) -> None:
    if not stream_id & 1:
        raise protocol_error("a frame of a stream has one that no client opens")


def require_size(payload: bytes, size: int) -> None:
    if len(payload) != size:
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "a frame is not of the size of its type")


def unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise protocol_error("the padding is longer than its frame")
    return payload[1 : len(payload) - payload[0]]


def check_dependency(stream_id: int, priority: bytes) -> None:
    if int.from_bytes(priority[:4], "big") & LAST_STREAM == stream_id:
        raise protocol_error("a stream that depends on itself")


def is_valid_setting(number: int, value: int) -> bool:
    if number == ENABLE_PUSH:
        return value <= 1
    return number != MAX_FRAME_SIZE or MAX_FRAME <= value < 2**24
