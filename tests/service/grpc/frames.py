"""A client that speaks HTTP/2 by hand, to do what a library would not."""

from __future__ import annotations

import asyncio
import struct

_HEADERS, _SETTINGS, _WINDOW = 1, 4, 8
_END_STREAM, _END_HEADERS = 1, 4
_INITIAL_WINDOW = 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    size = struct.pack(">I", len(payload))[1:]
    return size + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _field(name: str, value: str) -> bytes:
    return b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()


def headers(path: str, *extra: tuple[str, str]) -> bytes:
    """Those of a call, in the plainest form that the protocol has."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "test",
        "te": "trailers",
        "content-type": "application/grpc",
        **dict(extra),
    }
    return b"".join(_field(name, value) for name, value in fields.items())


class Deaf:
    """A client that asks and, if it is deaf, grants no room for replies."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._stream = 1

    @classmethod
    async def connect(cls, port: int, deaf: bool = True) -> Deaf:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        window = struct.pack(">HI", _INITIAL_WINDOW, 0 if deaf else 65_535)
        settings = frame(_SETTINGS, 0, 0, window)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)
        return cls(reader, writer)

    def call(self, path: str, message: bytes, *extra: tuple[str, str]) -> None:
        body = b"\0" + struct.pack(">I", len(message)) + message
        head = frame(_HEADERS, _END_HEADERS, self._stream, headers(path, *extra))
        self.writer.write(head + frame(0, _END_STREAM, self._stream, body))
        self._stream += 2

    def close(self) -> None:
        self.writer.close()

    async def closed(self) -> None:
        """Until the server has ended the connection; its settings and pings are acknowledged."""
        try:
            while True:
                head = await self.reader.readexactly(9)
                payload = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
                if head[3] in (_SETTINGS, 6) and not head[4] & 1:
                    echo = payload if head[3] == 6 else b""
                    self.writer.write(frame(head[3], 1, 0, echo))
        except (asyncio.IncompleteReadError, ConnectionError):
            self.close()
