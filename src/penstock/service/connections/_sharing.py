"""The bounds of clients, and how they share places, memory and the event loop.

Everything that a client can make grow has a bound: connections, bytes, requests and seconds.
Clients that share their bounds are a group. There are two: known clients, and strangers, which have
not presented the required token or certificate, or only ask for probes. Whatever strangers do, they
use up only their own share.

The event loop is shared in slices. A client that sends little is served where its bytes arrive, as
long as its group has units left, or first of all when there are units again; a stranger, once. A
client that sends more, or needs more than one slice, is queued, and nothing is read from it
meanwhile. The queue is served a few units at a time, one slice per connection in turn, and in
between the loop serves everything else. So a client that sends one request is answered at once,
beside any number of clients that send without end.

Slices alone do not bound what a crowd takes from others on the same loop: each turn of the loop
would include a slice of the crowd. So strangers are also limited to a part of the loop's time:
after a turn they rest, in proportion to how long the turn took.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from ._connection import ClientConnection


__all__ = ["UNIT_BYTES", "ClientGroup", "ConnectionBounds"]


UNIT_BYTES = 512
"""Work is counted in units: one per request, and one per this many bytes of request and reply."""

AnyBounds = TypeVar("AnyBounds", bound="ConnectionBounds")


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """The defaults are what `penstock serve` runs with."""

    connections: int = 16_384
    stranger_connections: int = 1_024
    """Beside `connections`. One more displaces the oldest of them."""

    system_bytes: int = 65_536
    """The size of the system's buffers of one connection, each way; the system may take twice as
    much. That is also the most that is read at once. By default it would be dozens of megabytes."""

    unread_bytes: int = 32_768
    """Of one connection, behind a request that is not answered yet; above it nothing is read, until
    half of it is left."""

    buffered_bytes: int = 64 * 2**20
    """Bytes of unanswered requests and unread replies, for all connections together. Beyond it,
    clients that send more than a little are rejected."""

    stranger_buffered_bytes: int = 16 * 2**20

    light_bytes: int = 2_048
    """A connection that sends no more than this sends little, and is served before the others."""

    slice_units: int = 32
    """The units that one connection may use before the others are served; a stranger one request
    over HTTP/1.1."""

    turn_units: int = 256
    """The units that all connections may use before the event loop does other things, such as
    serving other listeners; half of it for clients that send more than a little."""

    stranger_turn_units: int = 16

    stranger_loop_share: float = 0.25
    """The part of the event loop's time in which strangers are served, however many there are."""

    in_flight: int = 1_024
    """Requests that wait for the store. More are shed, not queued."""

    handshake_s: float = 10.0
    """From a connection's beginning to the end of its TLS handshake."""

    write_s: float = 10.0
    """The time for a client to read a reply."""

    drain_s: float = 10.0
    """The time from the signal to stop to the end."""

    linger_s: float = 1.0
    """How long, when stopping, an idle connection may still send a request."""

    @property
    def all_connections(self) -> int:
        """The number of connections of both groups."""
        return self.connections + self.stranger_connections

    def within(self: AnyBounds, connections: int) -> AnyBounds:
        """The same with so many connections in all; strangers have a quarter of few."""
        strangers = max(1, min(self.stranger_connections, connections // 4))
        others = max(1, connections - strangers)
        return replace(self, connections=others, stranger_connections=strangers)


_log = logging.getLogger("penstock.service")

# A turn takes milliseconds. If one took longer, the process was stopped or the machine busy, and
# strangers should not rest for that time.
_MAX_REST_S = 1.0


class ClientGroup:
    """The clients that share their bounds. `connections` are in order of age, the oldest first;
    `buffered` is the size of their bytes. `units` is what may still be used in this turn of the
    loop. `arrivals` are connections that should have been served at once but found no units,
    `queue` the others that wait. `answering_s` is the time that answers which had to wait have
    taken since the last turn."""

    __slots__ = (
        "_is_due",
        "_loop",
        "_rest_per_work",
        "answering_s",
        "arrivals",
        "buffered",
        "connections",
        "max_buffered",
        "max_connections",
        "queue",
        "slice_units",
        "turn_units",
        "units",
    )

    def __init__(
        self,
        *,
        connections: int,
        buffered_bytes: int,
        slice_units: int,
        turn_units: int,
        loop_share: float = 1.0,
    ) -> None:
        self.max_connections: int = connections
        self.max_buffered: int = buffered_bytes
        self.slice_units: int = slice_units
        self.turn_units: int = turn_units
        self.units: int = turn_units
        self.connections: dict[ClientConnection, None] = {}
        self.arrivals: deque[ClientConnection] = deque()
        self.queue: deque[ClientConnection] = deque()
        self.buffered: int = 0
        self.answering_s: float = 0.0
        self._rest_per_work = 1.0 / loop_share - 1.0
        self._loop: asyncio.AbstractEventLoop
        self._is_due = False

    @property
    def is_full(self) -> bool:
        """Whether all the memory that the group may have is in use."""
        return self.buffered > self.max_buffered

    def live_on(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def enqueue(self, connection: ClientConnection, queue: deque[ClientConnection]) -> None:
        """Add the connection to the queue."""
        queue.append(connection)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        """Serve a part of the queues. Schedules the next turn at once, or after a rest."""
        if not self.arrivals and not self.queue:
            self._is_due = False
            return
        began = perf_counter()
        self.units = self._work_off(self.arrivals, self.turn_units)
        self._work_off(self.queue, self.turn_units // 2)
        if self._rest_per_work:
            worked_s = perf_counter() - began + self.answering_s
            self.answering_s = 0.0
            rest_s = min(worked_s * self._rest_per_work, _MAX_REST_S)
            self._loop.call_later(rest_s, self._take_turn)
        else:
            self._loop.call_soon(self._take_turn)

    def _work_off(self, queue: deque[ClientConnection], units: int) -> int:
        while queue and units > 0:
            units -= self._serve(queue.popleft())
        return units

    def _serve(self, connection: ClientConnection) -> int:
        try:
            return connection.serve_queued()
        except Exception:
            # An error in one connection must not keep the others in the queue.
            _log.exception("a connection failed and is ended")
            connection.abort()
            return 1
