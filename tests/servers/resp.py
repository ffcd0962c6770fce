"""The Redis protocol in one page, so that checking a server needs no client library."""

from __future__ import annotations

import socket
from typing import BinaryIO, TypeAlias

from .process import HOST, NotReady, RefusedError

Reply: TypeAlias = "str | int | list[Reply] | None"


def call(port: int, *words: str | int, timeout: float = 2.0) -> Reply:
    """Send one command over a connection of its own."""
    with socket.create_connection((HOST, port), timeout) as connection:
        connection.sendall(_encode(words))
        with connection.makefile("rb") as stream:
            return _read(stream)


def call_text(port: int, *words: str | int) -> str:
    reply = call(port, *words)
    if not isinstance(reply, str):
        raise NotReady(f"{words[0]} answered {reply!r}")
    return reply


def _encode(words: tuple[str | int, ...]) -> bytes:
    parts = [str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)


def _read(stream: BinaryIO) -> Reply:
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionError("the server closed the connection before its reply ended")
    kind, rest = line[:1], line[1:-2].decode()
    if kind == b"-":
        raise RefusedError(rest)
    if kind == b":":
        return int(rest)
    if kind == b"$":
        return None if rest == "-1" else stream.read(int(rest) + 2)[:-2].decode(errors="replace")
    if kind == b"*":
        return None if rest == "-1" else [_read(stream) for _ in range(int(rest))]
    return rest
