"""The HTTP API over HTTP/2, with the calls of gRPC on the same connections.

A request is converted to the head that it would have in HTTP/1.1, so that one router handles both,
and the reply is converted back. A client shows that it speaks HTTP/2 by the first bytes of its
connection, with or without TLS.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..connections import Http2Application, Http2Client
from ..http2 import PREFACE, HeaderBlock, Http2Connection, Http2Options, KnownPath, Room
from ._answers import SOON, Problem, ProblemError, Work

if TYPE_CHECKING:
    from ._router import Route
    from ._server import HttpServer

__all__ = ["PREFACE", "HttpRequests"]

_ANY_PATH = -1
_CONTINUE = HeaderBlock(((b":status", b"100"),))
_REPEATED = frozenset({b"content-type", b"cache-control", b"x-content-type-options"})
_FAULTS = {
    "body_too_large": ("body_too_large", "more bytes than are read here"),
    "head_too_large": ("head_too_large", "more headers than are read here"),
    "request_timeout": ("request_timeout", "the body did not arrive in time"),
    "no_room": ("overloaded", "too many long bodies at once"),
}


class HttpRequests:
    """The HTTP server as an application of HTTP/2; `grpc`, if given, answers its calls."""

    def __init__(self, server: HttpServer, grpc: Http2Application | None) -> None:
        self._server = server
        self._grpc = grpc
        bounds = server.http_bounds
        paths = {
            path.encode(): KnownPath(_ANY_PATH, size) for path, size in server.long_bodies().items()
        }
        calls = {} if grpc is None else grpc.options.routes
        self.options: Http2Options = Http2Options(
            routes={**paths, **calls},
            room=Room(bounds.buffered_bytes),
            concurrent_streams=128,
            header_list_bytes=2 * bounds.head_bytes,
            header_fields=bounds.head_fields + 8,
            body_bytes=bounds.body_bytes,
            turn_requests=bounds.slice_units,
            head_ms=int(bounds.head_s * 1000),
            request_ms=int(bounds.request_s * 1000),
            write_ms=int(bounds.write_s * 1000),
        )

    def connect(self, options: Http2Options, now_ms: int) -> Http2Connection:
        if self._grpc is None:
            return Http2Connection(options, now_ms)
        return self._grpc.connect(options, now_ms)

    def begin(self, client: Http2Client, stream: Any) -> None:
        if self._grpc is not None and _is_call(stream):
            self._grpc.begin(client, stream)
        elif stream.get("expect") == "100-continue":
            client.http2.send_head(stream, _CONTINUE, interim=True)

    def answer(self, client: Http2Client, stream: Any) -> None:
        if self._grpc is not None and _is_call(stream):
            self._grpc.answer(client, stream)
            return
        try:
            if stream.fault:
                code, detail = _FAULTS[stream.fault]
                raise ProblemError(code, detail)
            self._ask(client, stream)
        except Exception as error:
            self._reply(client, stream, self._server.failure(error))

    def receive(self, client: Http2Client, stream: Any) -> None:
        if self._grpc is not None:
            self._grpc.receive(client, stream)

    def cancel(self, stream: Any) -> None:
        if stream.context is not None:
            stream.context.cancel()

    def _ask(self, client: Http2Client, stream: Any) -> None:
        server = self._server
        route, _ = server.routes.find(_head_of(stream))
        if not client.regroup(route.is_known):
            server.shed += 1
            raise ProblemError("overloaded", "too many connections", SOON)
        body = stream.body
        if len(body) > route.max_bytes:
            raise ProblemError("body_too_large", f"at most {route.max_bytes} bytes are read here")
        answer = route.answer(body)
        if isinstance(answer, bytes):
            server.observe(perf_counter() - client.arrived)
            self._reply(client, stream, answer)
        else:
            self._wait(client, stream, route, answer)

    def _wait(self, client: Http2Client, stream: Any, route: Route, work: Work) -> None:
        server = self._server
        if route.needs_place and not server.enter():
            raise ProblemError.of(Problem("overloaded", "try again soon", SOON))

        def replied(reply: bytes) -> None:
            stream.context = None
            if not stream.closed:
                self._reply(client, stream, reply)
                client.flush_soon()

        stream.context = server.ask(route, work, client.arrived, replied)

    def _reply(self, client: Http2Client, stream: Any, reply: bytes) -> None:
        head, body = _fields_of(reply)
        client.http2.respond(stream, head, b"" if stream.method == "HEAD" else body)


def _is_call(stream: Any) -> bool:
    if stream.route >= 0:
        return True
    return (stream.get("content-type") or "").startswith("application/grpc")


def _head_of(stream: Any) -> bytes:
    """The head of the request, as it would be in HTTP/1.1."""
    target = f"{stream.path}?{stream.query}" if stream.query else stream.path
    lines = [f"{stream.method} {target} HTTP/1.1".encode()]
    if stream.authority:
        lines.append(b"host: " + stream.authority.encode())
    lines += [
        b"%b: %b" % (name, value)
        for name, value in stream.fields
        # The client does not wait for 100 Continue here, and the host is there already.
        if name not in (b"host", b"expect", b"te")
    ]
    return b"\r\n".join([*lines, b"", b""])


def _fields_of(reply: bytes) -> tuple[HeaderBlock, bytes]:
    """A reply of HTTP/1.1 as fields and a body."""
    head, _, body = reply.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    repeated, others = [(b":status", first.split(b" ")[1])], []
    for line in lines:
        name, _, value = line.partition(b":")
        field = name.lower(), value.strip()
        if field[0] in _REPEATED:
            repeated.append(field)
        elif field[0] not in (b"connection", b"keep-alive"):
            others.append(field)
    return HeaderBlock(repeated, others), body
