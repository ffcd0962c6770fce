"""The HTTP server: the service, asked in HTTP/1.1."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable

from ..access import Token
from ..connections import Listener
from ..core import Service
from .access import Hosts
from .answers import Answers
from .bounds import Bounds
from .calls import Calls
from .connection import HttpConnection
from .faults import SOON, problem_of
from .pages import Pages, Pool
from .problem import Problem
from .router import Router, Routes

__all__ = ["HttpServer"]


class HttpServer(Listener):
    """Serves `service`: to those who have the `token`, if there is one, and under the names in
    `hosts`, if they are given."""

    def __init__(
        self,
        service: Service,
        *,
        bounds: Bounds | None = None,
        token: str | None = None,
        hosts: Iterable[str] | None = None,
        legacy_headers: bool = False,
        pool: Pool | None = None,
    ) -> None:
        self.http_bounds: Bounds = bounds or Bounds()
        super().__init__(self.http_bounds, asks_token=token is not None)
        self.answers: Answers = Answers(service.clock)
        self.observe: Callable[[float], None] = service.metrics.latency("http").observe
        self._pages = Pages(
            service, self.answers, self._gauges, lambda: self._router.is_stopping, pool
        )
        self._router = Router(
            Calls(service, self.answers),
            self._pages,
            self.answers,
            self.http_bounds,
            token=None if token is None else Token(token),
            hosts=None if hosts is None else Hosts(hosts),
            legacy=legacy_headers,
        )
        self.routes: Routes = Routes(self._router.route)
        self.problem: Callable[[Problem], bytes] = self.answers.problem
        self.counts: Callable[[], str] = self._pages.counts

    def connection(self, tls: ssl.SSLContext | None) -> HttpConnection:
        return HttpConnection(self, tls)

    async def stop(self) -> None:
        """Answer what is being asked, within the deadline, and close."""
        self._router.is_stopping = True
        self.routes.forget()
        await super().stop()

    def result(self, task: asyncio.Task[bytes]) -> bytes:
        if task.cancelled():
            return self.problem(Problem("stopping", "the service is being stopped", SOON))
        error = task.exception()
        return task.result() if error is None else self.failure(error)

    def failure(self, error: BaseException) -> bytes:
        """The reply for an exception."""
        return self.problem(problem_of(error))

    def tick(self) -> None:
        self.answers.tick()

    def _gauges(self) -> dict[str, int]:
        return {
            "connections": self.open_connections,
            "strangers": len(self.strangers.connections),
            "buffered_bytes": self.known.buffered + self.strangers.buffered,
            "in_flight": self.in_flight,
            "shed_total": self.shed,
        }
