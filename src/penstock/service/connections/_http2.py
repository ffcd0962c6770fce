"""A connection that speaks HTTP/2: its bytes, its slices, and when its replies are written.

Requests of one connection are served concurrently, so nothing here waits for an answer. What an
`Http2Application` sends is collected, and written at once at the end of a slice or, for answers
that had to wait for a store, in the next turn of the event loop.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterable, Sequence
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from ..http2 import ErrorCode, Http2Connection, Http2Options
from ._connection import ClientConnection
from ._sharing import UNIT_BYTES

if TYPE_CHECKING:
    from ._listener import Listener

__all__ = ["Http2Application", "Http2Client"]

_PING_EVERY_S = 60.0
_PING_TIMEOUT_S = 20.0
_PING = b"penstock"
_IDLE_S = 300.0

_log = logging.getLogger("penstock.service")


class Http2Application(Protocol):
    """Answers the requests of HTTP/2 connections."""

    options: Http2Options

    def connect(self, options: Http2Options, now_ms: int) -> Http2Connection:
        """The protocol of a new connection. One with a method `serve` answers some requests by
        itself, of clients that are authenticated."""

    def begin(self, client: Http2Client, stream: Any) -> None:
        """Handle the head of a request whose body has not arrived yet; start a streaming one. It
        may be refused before its body arrives."""

    def answer(self, client: Http2Client, stream: Any) -> None:
        """Answer a request. If it is invalid, `stream.fault` says why."""

    def receive(self, client: Http2Client, stream: Any) -> None:
        """Handle more input of a streaming request, or its end."""

    def cancel(self, stream: Any) -> None:
        """Stop work on a request: the client has cancelled it, or disconnected."""


class _Inbox:
    """The bytes that have arrived and were not fed to the protocol yet."""

    __slots__ = ("_http2", "waiting")

    def __init__(self, http2: Http2Connection) -> None:
        self._http2 = http2
        self.waiting = b""

    @property
    def unread(self) -> int:
        return len(self.waiting) + self._http2.buffered

    @property
    def has_more(self) -> bool:
        return bool(self.waiting) or self._http2.pending

    def feed(self, data: bytes) -> None:
        self.waiting = self.waiting + data if self.waiting else data

    def take(self) -> bytes:
        data, self.waiting = self.waiting, b""
        return data

    def rest(self) -> bytes:
        return self.waiting

    def forget(self) -> None:
        self.waiting = b""


class Http2Client(ClientConnection):
    """One client that speaks HTTP/2. Applications answer with `http2`; `has_asked` says whether it
    has made a request that needs authentication."""

    __slots__ = ("_application", "_arrivals", "_is_due", "_pinged", "_serve", "has_asked", "http2")

    def __init__(
        self, listener: Listener, application: Http2Application, tls: ssl.SSLContext | None
    ) -> None:
        self.http2: Http2Connection = application.connect(application.options, _now_ms())
        self._serve: Callable[..., Any] | None = getattr(self.http2, "serve", None)
        self._arrivals = _Inbox(self.http2)
        super().__init__(listener, self._arrivals, tls)
        self._application = application
        # Whether a write is scheduled for the next turn of the loop.
        self._is_due = False
        # The time of a ping that has not been answered.
        self._pinged = 0.0
        self.has_asked: bool = False

    # For an application to call.

    def flush_soon(self) -> None:
        """Write output in the next turn of the event loop, together with the answers to other
        requests that are ready by then."""
        if not self._is_due:
            self._is_due = True
            self._listener.loop.call_soon(self._flush_due)

    @property
    def host(self) -> str:
        """The address of the client; "" if it has no network address."""
        name = self._transport.get_extra_info("peername")
        return name[0] if isinstance(name, tuple) else ""

    def regroup(self, is_known: bool) -> bool:
        """Move it to the group of its request. A client that has made a request that needs
        authentication stays known. Returns False if the group has no place."""
        if is_known:
            self.has_asked = True
            return self.is_known or self._listener.promote(self)
        if self.is_known and not self.has_asked and not self._listener.asks_token:
            self._listener.demote(self)
        return True

    def end(self, code: ErrorCode, text: bytes = b"") -> None:
        """Close the connection now; its requests are cancelled."""
        self._handle(self.http2.close(code, text))
        self._flush()

    def shut_down(self) -> None:
        """Accept no more requests, and close when those in progress are answered. A second call
        does not wait for the client to acknowledge that."""
        self.http2.shutdown()
        self._flush()

    # The methods of a connection.

    def serve(self, units: int) -> int:
        return self._read(self._arrivals.take(), perf_counter())

    def serve_whole(self, data: bytes) -> int:
        http2, arrived = self.http2, self.arrived
        if self._arrivals.waiting or http2.pending:
            return 0
        if self._serve is not None:
            told = self._serve(data, arrived, arrived, self.has_asked and self.is_known)
            if type(told) is bytes:
                self._pinged = 0.0
                self.since: float = self._listener.now
                self._transport.write(told)
                return 1 + http2.event_count + len(data) // UNIT_BYTES
            spent = self._go_through(told, len(data))
        else:
            spent = self._read(data, arrived)
        if self._state or http2.buffered:
            self._settle(served=True)
        return spent

    def patience_s(self, stopping: bool) -> float:
        return inf if self.http2.open_streams or stopping else _IDLE_S

    def give_up(self) -> None:
        self.end(ErrorCode.NO_ERROR)

    def overloaded(self, detail: str) -> bytes:
        self._handle(self.http2.close(ErrorCode.ENHANCE_YOUR_CALM, detail.encode()))
        return self.http2.take_outgoing()

    def expire(self, now: float, stopping: bool) -> None:
        if not self.http2.ended:
            self._handle(self.http2.expire(_now_ms()))
            self._look_for_signs_of_life()
            if stopping:
                self.http2.shutdown()
            self._flush()
        super().expire(now, stopping)

    def connection_lost(self, exc: Exception | None) -> None:
        self._handle(self.http2.lost())
        super().connection_lost(exc)

    # The inside.

    def _read(self, data: bytes, now_s: float) -> int:
        """Read input. Returns the units used, at least one."""
        if self._serve is None:
            return self._go_through(self.http2.feed(data, int(now_s * 1000)), len(data))
        told = self._serve(data, now_s, self.arrived, self.has_asked and self.is_known)
        if type(told) is bytes:
            self.send(told)
            told = ()
        return self._go_through(told, len(data))

    def _go_through(self, events: Sequence[Any], size: int) -> int:
        """Handle the events of so many bytes. Returns the units used."""
        self._pinged = 0.0
        # Requests that compiled code has answered are counted, too.
        count = self.http2.event_count
        if events:
            self._handle(events)
        self._flush()
        return 1 + count + size // UNIT_BYTES

    def _handle(self, events: Iterable[Any]) -> None:
        for kind, stream, _ in events:
            try:
                self._pass_on(kind, stream)
            except Exception:  # noqa: PERF203 - those behind it are to be answered
                _log.exception("a request failed and is reset")
                self.http2.reset(stream, ErrorCode.INTERNAL_ERROR)

    def _pass_on(self, kind: str, stream: Any) -> None:
        application = self._application
        if kind == "request":
            # It may have been cancelled in the same read.
            if not stream.closed:
                application.answer(self, stream)
        elif kind == "partial" or kind == "head":
            if not stream.closed:
                application.begin(self, stream)
        elif kind == "data" or kind == "end":
            application.receive(self, stream)
        elif kind == "reset":
            application.cancel(stream)

    def _flush(self) -> None:
        if self._tls is not None and not self._tls.is_established:
            return
        http2 = self.http2
        out = http2.take_outgoing()
        if http2.ended or http2.drained:
            self.part(out)
        elif out:
            self.send(out)

    def _flush_due(self) -> None:
        self._is_due = False
        self._flush()
        if self._charged and not self._transport.is_closing():
            self._settle()

    def _look_for_signs_of_life(self) -> None:
        """Detect a peer that has vanished, by a ping."""
        now = perf_counter()
        if self._pinged:
            if now - self._pinged > _PING_TIMEOUT_S:
                self._handle(self.http2.close())
                self.abort()
        elif self.http2.open_streams and now - self.arrived > _PING_EVERY_S:
            self._pinged = now
            self.http2.ping(_PING)


def _now_ms() -> int:
    return int(perf_counter() * 1000)
