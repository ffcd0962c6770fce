"""What clients share: places, memory and the event loop.

Clients that share one allowance of all three are a group. There are two: those that are known, and
strangers, who have not shown the token or certificate that is asked for, or only probe. Whatever
strangers do, they use up their own share.

The loop is shared out in slices. Whoever brings little is served where it arrives, as long as the
group has units left, or else first of all when there are units again; a stranger, once. Whoever
brings more, or goes beyond one slice, is queued, and nothing is read from it meanwhile. The queue
is worked off a few units at a time, each connection a slice in turn, and in between the loop looks
at everything else. So a client that sends one request is answered at once, beside any number that
send without end.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .connection import Connection

__all__ = ["ClientGroup", "LoopShare"]

_log = logging.getLogger("penstock.service")


class ClientGroup:
    """`connections` are the group's, the oldest first; `buffered` is what their bytes take up.
    `units` is what may still be done before the loop goes on. `arrivals` are those that should
    have been served at once and found no units, `queue` the others that wait to be served."""

    __slots__ = (
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
    ) -> None:
        self.max_connections = connections
        self.max_buffered = buffered_bytes
        self.slice_units = slice_units
        self.turn_units = self.units = turn_units
        self.connections: dict[Connection, None] = {}
        self.arrivals: deque[Connection] = deque()
        self.queue: deque[Connection] = deque()
        self.buffered = 0

    @property
    def is_full(self) -> bool:
        """Whether all the memory that the group may have is in use."""
        return self.buffered > self.max_buffered


class LoopShare:
    """Works off the queues of `groups`, between other things that the loop has to do."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *groups: ClientGroup) -> None:
        self._loop = loop
        self._groups = groups
        self._due = False

    def queue(self, connection: Connection, queue: deque[Connection]) -> None:
        """Let the connection be served when those before it have been."""
        queue.append(connection)
        if not self._due:
            self._due = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._due = False
        for group in self._groups:
            group.units = self._work_off(group.arrivals, group.turn_units)
            self._work_off(group.queue, group.turn_units // 2)
        if not self._due and any(group.arrivals or group.queue for group in self._groups):
            self._due = True
            self._loop.call_soon(self._run)

    def _work_off(self, queue: deque[Connection], units: int) -> int:
        while queue and units > 0:
            units -= self._serve(queue.popleft())
        return units

    def _serve(self, connection: Connection) -> int:
        try:
            return connection.serve_queued()
        except Exception:
            # One connection's trouble must not keep the others in the queue.
            _log.exception("a connection failed and is ended")
            connection.abort()
            return 1
