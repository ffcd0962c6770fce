"""A protocol of the smallest kind, spoken by a real server: a line comes in, a line goes out.

`echo`   the line comes back
`long N` so many bytes come back
`last N` so many bytes come back, and then nothing more
`wait`   the answer comes when the test says so
`known`  the client has shown who it is
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.service.connections import (
    UNIT_BYTES,
    ClientConnection,
    ClientGroup,
    ConnectionBounds,
    Listener,
)
from tests.support.loops import LoopThread


class LineInbox:
    """Bytes up to the last line that was taken."""

    def __init__(self) -> None:
        self._data = b""
        self.unread = 0
        self.has_more = False

    def feed(self, data: bytes) -> None:
        self._data += data
        self._look()

    def forget(self) -> None:
        self._data = b""
        self._look()

    def take(self) -> bytes | None:
        line, end, rest = self._data.partition(b"\n")
        if not end:
            return None
        self._data = rest
        self._look()
        return line

    def _look(self) -> None:
        self.unread = len(self._data)
        self.has_more = b"\n" in self._data


class LineConnection(ClientConnection):
    """Answers lines, and notes in the server's log who was answered, in order."""

    def __init__(self, server: LineServer, tls: ssl.SSLContext | None) -> None:
        self.lines = LineInbox()
        self._server = server
        super().__init__(server, self.lines, tls)

    def serve(self, units: int) -> int:
        done, out = 0, b""
        while done < units and not self.is_blocked and (line := self.lines.take()) is not None:
            reply = self._reply(line)
            done += 1 + len(reply) // UNIT_BYTES
            out += reply
        if out:
            self.send(out)
        return done

    def _reply(self, line: bytes) -> bytes:
        word, _, rest = line.partition(b" ")
        self._server.served.append(rest if word == b"echo" else word)
        if word == b"known":
            self._server.promote(self)
        elif word == b"wait":
            self.wait()
            self._server.waiting.append(self)
            return b""
        elif word in (b"long", b"last"):
            if word == b"last":
                self.finish()
            return b"x" * int(rest) + b"\n"
        return line + b"\n"

    def patience_s(self, stopping: bool) -> float:
        return 0.2 if stopping else 60.0

    def give_up(self) -> None:
        self.close()

    def overloaded(self, detail: str) -> bytes:
        return b"too much\n"


class WatchedGroup(ClientGroup):
    """`peak` is the most that it ever held."""

    __slots__ = ("peak",)

    def __init__(self, bounds: ConnectionBounds) -> None:
        self.peak = 0
        super().__init__(
            connections=bounds.connections,
            buffered_bytes=bounds.buffered_bytes,
            slice_units=bounds.slice_units,
            turn_units=bounds.turn_units,
        )

    @property
    def buffered(self) -> int:  # type: ignore[override]
        return ClientGroup.buffered.__get__(self)  # type: ignore[attr-defined]

    @buffered.setter
    def buffered(self, amount: int) -> None:
        self.peak = max(self.peak, amount)
        ClientGroup.buffered.__set__(self, amount)  # type: ignore[attr-defined]


class LineServer(Listener):
    """`served` is what was answered, in order."""

    def __init__(self, bounds: ConnectionBounds, asks_token: bool) -> None:
        super().__init__(bounds, asks_token=asks_token)
        self.known: WatchedGroup = WatchedGroup(bounds)
        self.served: list[bytes] = []
        self.waiting: list[LineConnection] = []

    def connection(self, tls: ssl.SSLContext | None) -> LineConnection:
        return LineConnection(self, tls)

    def tick(self) -> None:
        """Nothing has to be done regularly."""

    def answer_all(self) -> int:
        """Answer those that wait. Returns how many there were."""
        waiting, self.waiting = self.waiting, []
        for connection in waiting:
            connection.answered(b"waited\n")
        return len(waiting)


class Lines(LoopThread):
    """The server in a thread of its own."""

    def __init__(
        self,
        bounds: ConnectionBounds | None = None,
        *,
        asks_token: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._make = lambda: LineServer(bounds or ConnectionBounds(drain_s=1.0), asks_token)
        self._tls = tls

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        self.server = self._make()
        self.port = await self.server.start("127.0.0.1", 0, tls=self._tls)
        yield
        await self.server.stop()

    def hold_up(self) -> threading.Event:
        """Stop the loop, until the event that is returned is set."""
        go_on, stopped = threading.Event(), threading.Event()

        def stop() -> None:
            stopped.set()
            go_on.wait(20)

        self.loop.call_soon_threadsafe(stop)
        assert stopped.wait(20)
        return go_on
