"""Messages between a supervisor and a worker.

One pair of sockets per worker, with a message in either direction whenever there is something to
say: pickled, after its length. Neither side ever waits for the other. What the other has not taken
yet is kept until it does, so one that is stopped stops nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import socket
from typing import Any

__all__ = ["Channel"]

_LENGTH_BYTES = 8


class Channel:
    """One end, to be used on one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Channel:
        return cls(*await asyncio.open_unix_connection(sock=end))

    def send(self, message: object) -> None:
        """Say something. If the other side is gone, nothing happens."""
        self.send_packed(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def send_packed(self, packed: bytes) -> None:
        """The same for a message that was pickled before, to be said to many."""
        if not self._writer.is_closing():
            self._writer.write(len(packed).to_bytes(_LENGTH_BYTES, "big") + packed)

    @property
    def untaken_bytes(self) -> int:
        """How much of what was said the other side has not taken yet."""
        return self._writer.transport.get_write_buffer_size()

    async def receive(self) -> Any:
        """The next message. Raises EOFError when the other side is gone."""
        try:
            length = await self._reader.readexactly(_LENGTH_BYTES)
            packed = await self._reader.readexactly(int.from_bytes(length, "big"))
        except (asyncio.IncompleteReadError, OSError):
            raise EOFError from None
        return pickle.loads(packed)

    def close(self) -> None:
        """The other side is told, by the end of what it receives."""
        self._writer.close()

    async def aclose(self) -> None:
        """The same, once what was said is taken."""
        self.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
