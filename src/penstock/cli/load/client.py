"""One connection of the generator: it sends a request, reads the whole answer, is free again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import cast

__all__ = ["Client"]

_LONGEST_HEAD = 65_536

Answered = Callable[["Client", int, str], None]
"""Called with the status and, where it is not a decision, what the answer says; 0 for an answer
that did not come."""


class Client(asyncio.Protocol):
    """HTTP/1.1, one request at a time."""

    def __init__(self, answered: Answered, lost: Callable[[Client], None]) -> None:
        self._answered = answered
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._data = b""
        self._busy = False
        self.since: float = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def ask(self, request: bytes, since: float) -> None:
        """Send a request whose waiting began at `since`."""
        assert self._transport is not None
        self._busy = True
        self.since = since
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            if len(self._data) > _LONGEST_HEAD:
                self._give_up("an answer without an end of its head")
            return
        head = self._data[:end]
        length = _length_of(head)
        if length is None or not head.startswith(b"HTTP/1."):
            self._give_up("an answer that is not HTTP/1.1 with a Content-Length")
            return
        whole = end + 4 + length
        if len(self._data) < whole:
            return
        body, self._data = self._data[end + 4 : whole], self._data[whole:]
        if b"\r\nconnection: close" in head.lower():
            self.close()
        self._busy = False
        status = int(head[9:12])
        self._answered(self, status, "" if status in (200, 429) else _said(status, body))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._busy:
            self._give_up("a connection that ended before the answer")
        self._lost(self)

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abandon(self) -> None:
        """Cut the connection, whatever is under way."""
        self._busy = False
        if self._transport is not None:
            self._transport.abort()

    def _give_up(self, why: str) -> None:
        self._busy = False
        self.close()
        self._answered(self, 0, why)


def _length_of(head: bytes) -> int | None:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length" and value.strip().isdigit():
            return int(value)
    return None


def _said(status: int, body: bytes) -> str:
    """A refusal in its own words, if it has some."""
    try:
        detail = json.loads(body)["detail"]
    except (ValueError, KeyError, TypeError):
        return f"status {status}"
    return f"status {status}: {str(detail)[:200]}"
