"""How much one client, and all of them together, may ask of a server.

Whatever a client can make grow has a number here: connections, bytes, requests and seconds. Those
who have not shown who they are, and probes, are strangers, with numbers of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

__all__ = ["UNIT_BYTES", "ConnectionBounds"]

UNIT_BYTES = 512
"""Work is counted in units: one per request, and one for so many bytes that it brings or gets."""

AnyBounds = TypeVar("AnyBounds", bound="ConnectionBounds")


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """The defaults are what `penstock serve` runs with."""

    connections: int = 16_384
    stranger_connections: int = 1_024
    """Beside `connections`. One more displaces the oldest of them."""

    system_bytes: int = 65_536
    """What the system is asked to hold of one connection, each way; it may take twice as much. That
    is also the most that is read at once. Left alone it would hold dozens of megabytes."""

    unread_bytes: int = 32_768
    """Of one connection, behind a request that is not answered yet; above it nothing is read, until
    half of it is left."""

    buffered_bytes: int = 64 * 2**20
    """Requests that are not whole or not answered and replies that are not taken, all connections
    together. Beyond it, whoever brings more than a little is turned away."""

    stranger_buffered_bytes: int = 16 * 2**20

    light_bytes: int = 2_048
    """Whoever brings no more than this brings little, and is served before those who bring more."""

    slice_units: int = 32
    """What one connection may do before the others are looked at; a stranger one request."""

    turn_units: int = 256
    """What all may do before the event loop goes on with other things, such as the gRPC server;
    those who bring more than a little, half of it."""

    stranger_turn_units: int = 16

    stranger_loop_share: float = 0.25
    """The part of the event loop's time in which strangers are served, however many there are."""

    in_flight: int = 1_024
    """Requests that wait for the store. More are shed, not queued."""

    handshake_s: float = 10.0
    """From a connection's beginning to the end of its TLS handshake."""

    write_s: float = 10.0
    """For a client to take what it was sent."""

    drain_s: float = 10.0
    """From the signal to the end, when stopping."""

    linger_s: float = 1.0
    """How long, when stopping, a quiet connection may still bring a request."""

    @property
    def all_connections(self) -> int:
        """Of strangers and others."""
        return self.connections + self.stranger_connections

    def within(self: AnyBounds, connections: int) -> AnyBounds:
        """The same with so many connections in all; strangers have a quarter of few."""
        strangers = max(1, min(self.stranger_connections, connections // 4))
        others = max(1, connections - strangers)
        return replace(self, connections=others, stranger_connections=strangers)
