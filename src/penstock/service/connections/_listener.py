"""Listens on a port, assigns clients to their group, and enforces timeouts.

Stopping takes three steps: accept no new connections; answer every request that still arrives, as
the last of its connection; and close what is left at the deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from abc import ABC, abstractmethod

from ._connection import ClientConnection
from ._sharing import ClientGroup, ConnectionBounds
from ._tls import FreedMemory

__all__ = ["Listener"]


_TICK_S = 0.25
_EXPIRED_AT_ONCE = 128
_BACKLOG = 1_024


class Listener(ABC):
    """A port with one protocol. `asks_token`: a client is a stranger until it has sent a request
    with the token; otherwise only until its TLS handshake is done, if there is one.

    `now` is the loop's time, and `shed` counts requests and connections refused by overload."""

    def __init__(self, bounds: ConnectionBounds, *, asks_token: bool) -> None:
        self.bounds = bounds
        self.light_bytes: int = bounds.light_bytes
        self.asks_token = asks_token
        self.known: ClientGroup = ClientGroup(
            connections=bounds.connections,
            buffered_bytes=bounds.buffered_bytes,
            slice_units=bounds.slice_units,
            turn_units=bounds.turn_units,
        )
        self.strangers: ClientGroup = ClientGroup(
            connections=bounds.stranger_connections,
            buffered_bytes=bounds.stranger_buffered_bytes,
            slice_units=1,
            turn_units=bounds.stranger_turn_units,
            loop_share=bounds.stranger_loop_share,
        )
        self.in_flight: int = 0
        self.shed: int = 0
        self.now: float = 0.0
        self.is_stopping: bool = False
        self.freed_memory: FreedMemory = FreedMemory()
        self._tls: ssl.SSLContext | None = None
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.TimerHandle | None = None

    @abstractmethod
    def connection(self, tls: ssl.SSLContext | None) -> ClientConnection:
        """A connection that speaks the protocol."""

    @abstractmethod
    def tick(self) -> None:
        """Called four times a second."""

    async def start(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        shared: bool = False,
    ) -> int:
        """Listen. Returns the port, which the system chooses if it is 0. With `shared` other
        processes may listen on the same port."""
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        for group in (self.known, self.strangers):
            group.live_on(self.loop)
        self._tls = tls
        self._tick()
        self._server = await self.loop.create_server(
            lambda: self.connection(tls),
            host,
            port,
            backlog=_BACKLOG,
            reuse_port=shared or None,
            start_serving=False,
        )
        for listening in self._server.sockets:
            # Accepted sockets inherit the option.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.bounds.system_bytes)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.bounds.system_bytes)
        await self._server.start_serving()
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Answer requests in progress, within the deadline, and close. Calls to the store for
        clients that have disconnected are awaited too: closing the store would count as an
        outage."""
        self.close_listening()
        deadline = self.loop.time() + self.bounds.drain_s
        while (self.open_connections or self.in_flight) and self.loop.time() < deadline:
            await asyncio.sleep(0.02)
        await self.cut()

    def close_listening(self) -> None:
        """Accept no more connections."""
        self.is_stopping = True
        if self._server is not None:
            self._server.close()

    async def cut(self) -> None:
        """Close the remaining connections."""
        for connection in self._connections():
            connection.abort()
        if self._ticker is not None:
            self._ticker.cancel()
        await asyncio.sleep(0)

    @property
    def open_connections(self) -> int:
        return len(self.known.connections) + len(self.strangers.connections)

    def admit(self, connection: ClientConnection) -> None:
        """Admit a client that has connected."""
        if self.asks_token or self._tls is not None or not self.promote(connection):
            self.demote(connection)

    def admit_verified(self, connection: ClientConnection) -> None:
        """Admit a client after its TLS handshake, which has verified its certificate if
        required."""
        if not self.asks_token:
            self.promote(connection)

    def promote(self, connection: ClientConnection) -> bool:
        """Move it to the known clients, if there is a place."""
        if len(self.known.connections) >= self.bounds.connections:
            return False
        connection.join(self.known, is_known=True)
        return True

    def demote(self, connection: ClientConnection) -> None:
        """Move it to the strangers, of which the oldest is closed if there are too many."""
        connection.join(self.strangers, is_known=False)
        strangers = self.strangers.connections
        while len(strangers) > self.bounds.stranger_connections:
            oldest = next(iter(strangers))
            del strangers[oldest]
            self.shed += 1
            oldest.displace()

    def enter(self) -> bool:
        """Whether one more request may wait for the store."""
        if self.in_flight >= self.bounds.in_flight:
            self.shed += 1
            return False
        self.in_flight += 1
        return True

    def leave(self) -> None:
        self.in_flight -= 1

    def _connections(self) -> list[ClientConnection]:
        return [*self.known.connections, *self.strangers.connections]

    def _tick(self) -> None:
        self.now = self.loop.time()
        self.tick()
        self.freed_memory.trim()
        self._expire(self._connections(), 0)
        self._ticker = self.loop.call_later(_TICK_S, self._tick)

    def _expire(self, connections: list[ClientConnection], start: int) -> None:
        """Close connections that are out of time, some at a time: ten thousand idle ones must not
        delay the others."""
        for connection in connections[start : start + _EXPIRED_AT_ONCE]:
            # An error in one connection must not stop the timeouts of the others.
            with contextlib.suppress(Exception):
                connection.expire(self.now, self.is_stopping)
        start += _EXPIRED_AT_ONCE
        if start < len(connections):
            self.loop.call_soon(self._expire, connections, start)
