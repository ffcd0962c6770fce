"""Messages between a supervisor and its workers.

There is one pair of sockets per worker. A message is pickled and sent after its length. Neither
side waits for the other: what the other has not read yet is buffered, so that a stopped process
stops no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import socket
from dataclasses import dataclass
from typing import Any

__all__ = [
    "Channel",
    "Counted",
    "Failed",
    "Hangup",
    "Started",
    "TakenUp",
    "Totalled",
    "Unreadable",
    "WorkerReport",
]


_LENGTH_BYTES = 8


class Channel:
    """One end of the connection, for use on one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Channel:
        return cls(*await asyncio.open_unix_connection(sock=end))

    def send(self, message: object) -> None:
        """Send a message. Does nothing if the other side is gone."""
        self.send_packed(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def send_packed(self, packed: bytes) -> None:
        """Send a message that is already pickled, for several receivers."""
        if not self._writer.is_closing():
            self._writer.write(len(packed).to_bytes(_LENGTH_BYTES, "big") + packed)

    @property
    def untaken_bytes(self) -> int:
        """How many sent bytes the other side has not read yet."""
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
        """Close the channel; the other side receives EOFError."""
        self._writer.close()

    async def aclose(self) -> None:
        """Close the channel, and wait until everything is sent."""
        self.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


@dataclass(frozen=True, slots=True)
class Counted:
    """The metrics of a worker: the policies whose counts have changed, None for those that are no
    longer counted separately, and all other metrics as on `/metrics`."""

    policies: dict[str, tuple[int, ...] | None]
    text: str


@dataclass(frozen=True, slots=True)
class Started:
    """From a worker: it serves. `lines` is the banner."""

    lines: list[str]


@dataclass(frozen=True, slots=True)
class Failed:
    """Why a worker does not serve. `mistake`: the configuration is invalid; `again`: it ended
    without a report, so another attempt may succeed."""

    problem: str
    mistake: bool = False
    again: bool = False


@dataclass(frozen=True, slots=True)
class TakenUp:
    """From a worker: it serves the policies with this digest."""

    digest: str


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """From a worker: its metrics. `wants_total` asks for the sums over all workers."""

    counted: Counted
    wants_total: bool = False


@dataclass(frozen=True, slots=True)
class Unreadable:
    """From the supervisor: why the policy file cannot be served."""

    problem: str


@dataclass(frozen=True, slots=True)
class Hangup:
    """From the supervisor: read the certificates again."""


@dataclass(frozen=True, slots=True)
class Totalled:
    """From the supervisor: the metrics of all workers."""

    body: bytes
