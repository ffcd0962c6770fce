"""The HTTP server, for HTTP/1.1 and HTTP/2 (`_http2.py`).

A request that can be answered at once is answered where it arrives: no task, no queue, one write
for all requests that came in together. A request that has to wait for a store delays those after
it on the same connection, so replies are always in order.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter
from typing import Any

from .._access import BearerToken
from .._core import Service
from .._deciding import Later, Told
from ..connections import UNIT_BYTES, ClientConnection, Http2Application, Http2Client, Listener
from ._answers import SOON, Answers, Problem, ProblemError, Work, problem_of
from ._calls import Calls
from ._head import Bounds, Hosts
from ._http2 import PREFACE, HttpRequests
from ._pages import Pages, Pool
from ._reader import Reader
from ._ready import ready_checks, whole_requests
from ._router import Route, Router, Routes

__all__ = ["HttpConnection", "HttpServer"]


# The part of the preface that looks like a head of HTTP/1.1; HTTP/2 validates the rest.
_PREFACE = PREFACE[: PREFACE.index(b"\r\n\r\n") + 4]
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_END = b"\r\n\r\n"
_END_CLOSING = b"\r\nConnection: close\r\n\r\n"


class HttpConnection(ClientConnection):
    """One client that speaks HTTP/1.1, or 1.0."""

    __slots__ = ("_has_begun", "_is_new", "_out", "_reader", "_server")

    def __init__(self, server: HttpServer, tls: ssl.SSLContext | None) -> None:
        self._reader = Reader(server.routes, server.http_bounds, self._begin_body)
        super().__init__(server, self._reader, tls)
        self._server = server
        # Output that is sent in one write.
        self._out: list[bytes] = []
        # Whether a timeout runs for an incomplete request.
        self._has_begun = False
        # Whether nothing was answered yet: the connection may still turn out to be HTTP/2.
        self._is_new = True

    def serve(self, units: int) -> int:
        """Answer requests, up to the first one that has to wait."""
        if self._is_new and self._agreed_on_http2():
            return self.hand_over(self._server.http2_client())
        if self.is_known and (held := self._reader.held) and (spent := self._answer_whole(held)):
            return spent
        out, reader, server, left = self._out, self._reader, self._server, units
        try:
            while (request := reader.take()) is not None:
                route, body = request
                if route.is_known is not self.is_known:
                    self._regroup(route)
                try:
                    answer = route.answer(body)
                    reply = answer if isinstance(answer, bytes) else self._begin(route, answer)
                except Exception as error:
                    reply = server.failure(error)
                self._has_begun = False
                if reply is None:
                    left -= 1
                    break
                left -= 1 + (len(body) + len(reply)) // UNIT_BYTES + reader.effort
                reader.effort = 0
                if self._reserved:
                    self.reserve(0)
                out.append(self._shape(route, reply) if route.shaped else reply)
                if left <= 0 or not reader.unread or self.is_blocked:
                    break
            else:
                left, reader.effort = left - reader.effort, 0
                self._await_rest()
        except Exception as error:
            if self._is_new and not out and reader.begins_with(_PREFACE):
                return self.hand_over(self._server.http2_client())
            # The end of the request is unknown, so there cannot be another.
            self._refuse(error)
            return units
        if left != units:
            self._is_new = False
        if out:
            self._out = []
            spent_s = perf_counter() - self.arrived
            for _ in out:
                server.observe(spent_s)
            self.send(out[0] if len(out) == 1 else b"".join(out))
        return units - left

    def _agreed_on_http2(self) -> bool:
        """Whether TLS has agreed on HTTP/2, and bytes have arrived; the HTTP/2 connection validates
        them."""
        return self._tls is not None and self._reader.unread > 0 and self._tls.protocol == "h2"

    def serve_whole(self, data: bytes) -> int:
        return self._answer_whole(data) if self._reader.is_idle else 0

    def _answer_whole(self, data: bytes) -> int:
        """Answer one request in compiled code, if it is complete and alone."""
        whole = self._server.whole
        if whole is None:
            return 0
        try:
            reply: Any = whole.answer(data)
        except Exception as error:
            reply = self._server.failure(error)
        if reply is None:
            return 0
        self._reader.drop()
        self._is_new = self._has_begun = False
        if type(reply) is not bytes:
            reply = self._begin_whole(reply)
            if reply is None:
                return 1
        self._server.observe(perf_counter() - self.arrived)
        self.send(reply)
        body_bytes: int = whole.body_bytes
        return 1 + (body_bytes + len(reply)) // UNIT_BYTES

    def _begin_whole(self, awaited: Any) -> bytes | None:
        """As `_begin`, for a request that compiled code has read."""
        server, began = self._server, self.arrived
        if not server.enter():
            return server.problem(Problem("overloaded", "try again soon", SOON))
        self.wait()

        def told(decision: Any, error: BaseException | None) -> None:
            server.leave()
            try:
                reply = server.failure(error) if error is not None else awaited.about(decision)
            except Exception as failure:
                reply = server.failure(failure)
            server.observe(perf_counter() - began)
            self.answered(reply)

        awaited.asked.begin(told)
        return None

    def patience_s(self, stopping: bool) -> float:
        bounds, phase = self._server.http_bounds, self._reader.phase
        if phase:
            return bounds.head_s if phase == "head" else bounds.request_s
        return bounds.linger_s if stopping else bounds.idle_s

    def give_up(self) -> None:
        if phase := self._reader.phase:
            self._refuse(ProblemError("request_timeout", f"the {phase} did not arrive in time"))
        else:
            self.close()

    def overloaded(self, detail: str) -> bytes:
        reply = self._server.problem(Problem("overloaded", detail, SOON))
        return reply.replace(_END, _END_CLOSING, 1)

    def _begin(self, route: Route, work: Work) -> bytes | None:
        """Start the call to the store. Returns a reply only if there are too many calls already."""
        server = self._server
        if route.needs_place and not server.enter():
            return server.problem(Problem("overloaded", "try again soon", SOON))
        self.wait()

        def replied(reply: bytes) -> None:
            self.answered(self._shape(route, reply) if route.shaped else reply)

        server.ask(route, work, self.arrived, replied)
        return None

    def _begin_body(self, route: Route, reserved: int, waits: bool) -> None:
        if route.is_known is not self.is_known:
            self._regroup(route)
        if reserved and not self.reserve(reserved):
            self._server.shed += 1
            raise ProblemError("overloaded", "too many long bodies at once", SOON)
        if waits:
            self._out.append(_CONTINUE)

    def _await_rest(self) -> None:
        """Start the timeout of an incomplete request, from its first byte."""
        if not self._has_begun and self._reader.phase:
            self._has_begun = True
            self.since: float = self._server.now

    def _regroup(self, route: Route) -> None:
        """Move it to the group of its request. A client that has presented the token stays known,
        whatever it asks for."""
        if route.is_known:
            if not self._server.promote(self):
                self._server.shed += 1
                raise ProblemError("overloaded", "too many connections", SOON)
        elif not self._server.asks_token:
            self._server.demote(self)

    def _shape(self, route: Route, reply: bytes) -> bytes:
        if route.bare:
            reply = reply[: reply.index(_END) + 4]
        if route.last:
            self.finish()
            reply = reply.replace(_END, _END_CLOSING, 1)
        return reply

    def _refuse(self, error: Exception) -> None:
        """Send the last reply, after those to earlier requests."""
        reply = self._server.failure(error).replace(_END, _END_CLOSING, 1)
        out, self._out = [*self._out, reply], []
        self.part(b"".join(out))


class HttpServer(Listener):
    """Serves `service` over HTTP: to clients that have the `token`, if there is one, and for the
    host names in `hosts`, if given. Calls of gRPC are answered by `grpc`, if given."""

    def __init__(
        self,
        service: Service,
        *,
        bounds: Bounds | None = None,
        token: str | None = None,
        hosts: Iterable[str] | None = None,
        legacy_headers: bool = False,
        pool: Pool | None = None,
        grpc: Http2Application | None = None,
    ) -> None:
        self.http_bounds: Bounds = bounds or Bounds()
        super().__init__(self.http_bounds, asks_token=token is not None)
        self.answers: Answers = Answers(service.clock)
        self.observe: Callable[[float], None] = service.metrics.latency("http").observe
        self._pages = Pages(
            service, self.answers, self._gauges, lambda: self._router.is_stopping, pool
        )
        self._pages.asks_token = token is not None
        calls = Calls(service, self.answers)
        ready = ready_checks(service, self.answers, self.http_bounds, calls.charges)
        self._router = Router(
            calls,
            self._pages,
            self.answers,
            self.http_bounds,
            token=None if token is None else BearerToken(token),
            hosts=None if hosts is None else Hosts(hosts),
            legacy=legacy_headers,
            ready=ready,
        )
        self.routes: Routes = Routes(self._router.route, self._router.for_client, self.http_bounds)
        self.whole: Any = whole_requests(self.routes, self.http_bounds) if ready else None
        self.problem: Callable[[Problem], bytes] = self.answers.problem
        self.counts: Callable[[], str] = self._pages.counts
        self.long_bodies: Callable[[], dict[str, int]] = self._router.long_bodies
        self._http2 = HttpRequests(self, grpc)

    def connection(self, tls: ssl.SSLContext | None) -> HttpConnection:
        if tls is not None:
            self._pages.scheme = "https"
        return HttpConnection(self, tls)

    def http2_client(self) -> Http2Client:
        """A connection that continues in HTTP/2. Its TLS filter, if any, is set later."""
        return Http2Client(self, self._http2, None)

    async def stop(self) -> None:
        """Answer requests in progress, within the deadline, and close."""
        self._router.is_stopping = True
        self.routes.forget()
        await super().stop()

    def ask(
        self, route: Route, work: Work, began: float, replied: Callable[[bytes], None]
    ) -> asyncio.Task[bytes] | None:
        """Start the call to the store, after a place was entered if one is needed; `replied` is
        called later. Returns the task, if it needs one."""

        def told(reply: bytes, error: BaseException | None) -> None:
            if route.needs_place:
                self.leave()
            self.observe(perf_counter() - began)
            replied(reply if error is None else self.failure(error))

        if isinstance(work, Later) and work.can_begin:
            work.begin(told)
            return None
        task = self.loop.create_task(work())
        task.add_done_callback(partial(_tell, told))
        return task

    def failure(self, error: BaseException) -> bytes:
        """The reply for an exception."""
        if isinstance(error, asyncio.CancelledError):
            return self.problem(Problem("stopping", "the service is being stopped", SOON))
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


def _tell(told: Told, task: asyncio.Task[bytes]) -> None:
    error = asyncio.CancelledError() if task.cancelled() else task.exception()
    told(None if error else task.result(), error)
