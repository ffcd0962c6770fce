"""The HTTP door: it listens, keeps its connections in bounds and in time, and closes in order.

Stopping takes three steps: no new connections; every request that still comes is answered and is
its connection's last; what is left at the deadline is cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable

from ..core import Service
from .access import Token
from .answers import Answers
from .bounds import Bounds
from .calls import Calls
from .connection import Connection
from .faults import SOON, problem_of
from .pages import Pages, Pool
from .plan import Plans
from .planner import Planner
from .problem import Problem, ProblemError

__all__ = ["HttpDoor"]

_TICK_S = 0.25
_EXPIRED_AT_ONCE = 128
_BACKLOG = 2_048


class HttpDoor:
    """Serves `service` over HTTP/1.1."""

    def __init__(
        self,
        service: Service,
        *,
        bounds: Bounds | None = None,
        token: str | None = None,
        legacy_headers: bool = False,
        pool: Pool | None = None,
    ) -> None:
        self.bounds: Bounds = bounds or Bounds()
        self.answers: Answers = Answers(service.clock)
        self.observe: Callable[[float], None] = service.metrics.latency("http").observe
        self._connections: set[Connection] = set()
        self._held = 0
        self._in_flight = 0
        self._shed = 0
        self._pages = Pages(
            service, self.answers, self._gauges, lambda: self._planner.stopping, pool
        )
        self._planner = Planner(
            Calls(service, self.answers),
            self._pages,
            self.answers,
            self.bounds,
            Token(token),
            legacy_headers,
        )
        self.plans: Plans = Plans(self._planner.plan)
        self.problem: Callable[[Problem], bytes] = self.answers.problem
        self.counts: Callable[[], str] = self._pages.counts
        self.now: float = 0.0
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.TimerHandle | None = None

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
        self._tick()
        self._server = await self.loop.create_server(
            lambda: Connection(self),
            host,
            port,
            ssl=tls,
            backlog=_BACKLOG,
            reuse_port=shared or None,
            ssl_handshake_timeout=self.bounds.head_s if tls else None,
        )
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Answer what is being asked, within the deadline, and close."""
        self._planner.stopping = True
        self.plans.clear()
        if self._server is not None:
            self._server.close()
        deadline = self.loop.time() + self.bounds.drain_s
        while self._connections and self.loop.time() < deadline:
            await asyncio.sleep(0.02)
        for connection in list(self._connections):
            connection.abort()
        if self._ticker is not None:
            self._ticker.cancel()
        await asyncio.sleep(0)

    def admit(self, connection: Connection) -> bool:
        self._connections.add(connection)
        if len(self._connections) <= self.bounds.connections:
            return True
        self._shed += 1
        return False

    def forget(self, connection: Connection) -> None:
        self._connections.discard(connection)

    def hold(self, amount: int) -> None:
        """Reserve memory for a long body, or give it back."""
        if amount > 0 and self._held + amount > self.bounds.held_bytes:
            self._shed += 1
            raise ProblemError("overloaded", "too many long bodies at once", SOON)
        self._held += amount

    def enter(self) -> bool:
        """Whether one more request may wait for the store."""
        if self._in_flight >= self.bounds.in_flight:
            self._shed += 1
            return False
        self._in_flight += 1
        return True

    def leave(self) -> None:
        self._in_flight -= 1

    def result(self, task: asyncio.Task[bytes]) -> bytes:
        if task.cancelled():
            return self.problem(Problem("stopping", "the service is being stopped", SOON))
        error = task.exception()
        return task.result() if error is None else self.failure(error)

    def failure(self, error: BaseException) -> bytes:
        """The reply for an exception."""
        return self.problem(problem_of(error))

    def _gauges(self) -> dict[str, int]:
        return {
            "connections": len(self._connections),
            "in_flight": self._in_flight,
            "shed_total": self._shed,
        }

    def _tick(self) -> None:
        self.now = self.loop.time()
        self.answers.tick()
        self._expire(list(self._connections), 0)
        self._ticker = self.loop.call_later(_TICK_S, self._tick)

    def _expire(self, connections: list[Connection], start: int) -> None:
        """Close those that are out of time, some at once: ten thousand idle ones must not make
        the others wait for all of them."""
        for connection in connections[start : start + _EXPIRED_AT_ONCE]:
            # One connection's trouble must not stop the clock for the others.
            with contextlib.suppress(Exception):
                connection.expire(self.now, self._planner.stopping)
        start += _EXPIRED_AT_ONCE
        if start < len(connections):
            self.loop.call_soon(self._expire, connections, start)
