"""A client that writes frames by hand, to do what a library would not."""

from __future__ import annotations

import struct
from typing import Any

from penstock.service.http2._frames import PREFACE
from penstock.service.http2._hpack import Encoder, HeaderBlock
from penstock.service.http2._streams import KnownPath

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY = range(8)
WINDOW_UPDATE, CONTINUATION = 8, 9
ACK = END_STREAM = 1
END_HEADERS, PADDED = 4, 8
INITIAL_WINDOW, HEADER_TABLE = 4, 1

OK = HeaderBlock([(b":status", b"200")])
STREAMING = {b"/test.Echo/Unary": KnownPath(7, streaming=True)}


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    size = struct.pack(">I", len(payload))[1:]
    return size + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Kind, flags, stream and payload of each frame."""
    found = []
    while data:
        size = int.from_bytes(data[:3], "big")
        stream = int.from_bytes(data[5:9], "big")
        found.append((data[3], data[4], stream, data[9 : 9 + size]))
        assert len(data) >= 9 + size
        data = data[9 + size :]
    return found


def settings(*pairs: tuple[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))


def window(stream: int, amount: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", amount))


def reset(stream: int, code: int = 8) -> bytes:
    return frame(RST_STREAM, 0, stream, struct.pack(">I", code))


def begin(*pairs: tuple[int, int]) -> bytes:
    """The preface, settings, and the acknowledgement of the server's."""
    return PREFACE + settings(*pairs) + frame(SETTINGS, ACK)


FIELDS = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/test.Echo/Unary"),
    (b":authority", b"localhost"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)


def block(*extra: tuple[bytes, bytes], **changed: str | None) -> bytes:
    """The fields of a call, spelled out; `path="/x"` changes one, `path=None` leaves it out."""
    pairs = []
    for name, value in FIELDS:
        key = name.decode().strip(":").replace("-", "_")
        if key not in changed:
            pairs.append((name, value))
        elif changed[key] is not None:
            pairs.append((name, changed[key].encode()))  # type: ignore[union-attr]
    return Encoder().encode(HeaderBlock((), (*pairs, *extra)))


def request(
    stream: int, *extra: tuple[bytes, bytes], end: bool = False, **changed: str | None
) -> bytes:
    flags = END_HEADERS | (END_STREAM if end else 0)
    return frame(HEADERS, flags, stream, block(*extra, **changed))


def call(stream: int, message: bytes = b"") -> bytes:
    """A whole unary call."""
    body = b"\0" + struct.pack(">I", len(message)) + message
    return request(stream) + frame(DATA, END_STREAM, stream, body)


class Talk:
    """A connection of one implementation, spoken to directly, at a time of the test's choice."""

    def __init__(self, protocol: Any, start: bytes | None = None, **options: Any) -> None:
        self.options = protocol.Http2Options(**options)
        self.http2 = protocol.Http2Connection(self.options, 0)
        self.now = 0
        self.events: list[Any] = []
        self.http2.take_outgoing()
        self.send(begin() if start is None else start)
        self.http2.take_outgoing()
        self.events.clear()

    def send(self, data: bytes) -> list[Any]:
        """Feed all of it, turn by turn. Returns the events."""
        events = list(self.http2.feed(data, self.now))
        while self.http2.pending:
            self.taken += self.http2.take_outgoing()
            events += self.http2.feed(b"", self.now)
        self.events += events
        return events

    taken = b""

    def received(self) -> list[tuple[int, int, int, bytes]]:
        """The frames that go out."""
        data, self.taken = self.taken + self.http2.take_outgoing(), b""
        return frames(data)

    def goaway(self) -> tuple[int, bytes]:
        """The code and text of the last frame, which says that it is over."""
        kind, _, _, payload = self.received()[-1]
        assert kind == GOAWAY
        assert self.http2.ended
        return int.from_bytes(payload[4:8], "big"), payload[8:]
