"""Turns HTTP/2 requests into calls: authorization, places for calls, deadlines and endings.

An unauthorized call is refused before its message is read, and so is every call while there is no
place left. A call whose deadline has passed before it is served is refused before it can spend
anything: under load, its client no longer waits for the answer. If a call is cancelled, or its
deadline passes while it waits for the store, its task is cancelled. If the store calls back, there
is no task: a request that was sent to the store cannot be withdrawn, and the call keeps its place
until the store has answered.

When the server is being closed, HTTP/2 names the last calls that are accepted. These are answered
like any other: they were sent before their client could know, and libraries do not repeat refused
calls.

A unary call that can be answered at once is answered where it arrives: no task, no timer, one write
for all calls that arrived together. It keeps its place until its reply has been read: a client may
send calls and grant no window for replies, which would then be kept as long as the connection
lasts. Such connections are detected periodically, and closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from time import perf_counter
from typing import Any

from google.protobuf.message import Message

from .._access import BearerToken
from .._deciding import Later
from .._metrics import GrpcReplies
from ..connections import ConnectionBounds, Http2Client
from ..http2 import HeaderBlock, Http2Connection, Http2Options, KnownPath, Room
from ._open_calls import (
    DeadlineError,
    Places,
    RefusedCall,
    StreamingCall,
    WaitingCall,
    exhausted,
    grpc_error,
    too_late,
)
from ._protocol import (
    GrpcError,
    Status,
    answer_plainly,
    is_grpc,
    plain_call,
    read_call,
    read_message,
    refuse,
    reply,
    send_status,
    too_large,
)

__all__ = [
    "ARRIVAL_S",
    "CALLS_PER_CONNECTION",
    "MAX_MESSAGE_BYTES",
    "MAX_STREAMS",
    "GrpcCalls",
    "Streaming",
    "Unary",
]

MAX_MESSAGE_BYTES = 5 * 1024 * 1024
"""Enough for a batch of 1,000 keys of 4,096 bytes."""

MAX_STREAMS = 256
"""The number of calls without a time limit, for each kind of them."""

CALLS_PER_CONNECTION = 128
"""Open calls of one connection; further ones wait in the client's library."""

ARRIVAL_S = 10.0
"""How long the message of a call may take to arrive; a quarter of a second more before it is
noticed."""

# Replies below this are not worth compressing.
_COMPRESSED_BYTES = 1_024
_GRACE_S = 0.1
_PREFIX_BYTES = 5

_log = logging.getLogger("penstock.service.grpc")


class Method:
    """A method of the server. `is_public`: no token is needed. `for_operators`: refused if the
    server has no token. `guard` returns the reason if a caller is not authorized."""

    places: Places
    max_bytes: int = MAX_MESSAGE_BYTES
    is_public: bool = False
    for_operators: bool = False
    guard: Callable[[Http2Client, Any], GrpcError | None] | None = None


class Unary(Method):
    """One message in and one out. `answer` returns the response, or a `Later`, or a coroutine of
    it."""

    def __init__(
        self,
        parse: Callable[[bytes], Any],
        answer: Callable[[Any], Message | Later[Message] | Coroutine[Any, Any, Message]],
        places: Places,
        observe: Callable[[float], None] | None = None,
    ) -> None:
        self.parse = parse
        self.answer = answer
        self.places = places
        self.observe = observe


class Streaming(Method):
    """Messages in and out, without a time limit. The call ends, with OK, when the coroutine
    returns."""

    def __init__(
        self, serve: Callable[[StreamingCall], Coroutine[Any, Any, None]], places: Places
    ) -> None:
        self.serve = serve
        self.places = places


_STRANGER = GrpcError(
    Status.UNAUTHENTICATED,
    "this service wants a token, as metadata 'authorization: Bearer <token>'",
)
_LEAVING = GrpcError(Status.UNAVAILABLE, "this service is stopping; ask another one")
_NO_TOKEN = GrpcError(
    Status.UNAUTHENTICATED,
    "this is for operators, who have a token; start the service with --token-file or "
    "PENSTOCK_TOKEN",
)
_LATE = GrpcError(Status.DEADLINE_EXCEEDED, "the deadline passed before the call was answered")
_NO_GRPC = GrpcError(Status.INTERNAL, "a call has the content type application/grpc")
_NO_CALL_TEXT = b"this port speaks gRPC: a call has the content type application/grpc\n"
_NO_CALL = HeaderBlock(
    (
        (b":status", b"415"),
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", b"%d" % len(_NO_CALL_TEXT)),
    )
)


class GrpcCalls:
    """The methods of a server, by full name, as an application of HTTP/2."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        replies: GrpcReplies,
        *,
        token: BearerToken | None,
        bounds: ConnectionBounds,
        arrival_s: float = ARRIVAL_S,
    ) -> None:
        self._methods = list(methods.values())
        self._replies = replies
        self._token = token
        self._arrival_s = arrival_s
        self._waiting: set[WaitingCall] = set()
        # Answers common checks in compiled code, before they get here.
        self.ready: Any = None
        self.routes: dict[bytes, KnownPath] = {
            name.encode(): KnownPath(
                number, method.max_bytes + _PREFIX_BYTES, isinstance(method, Streaming)
            )
            for number, (name, method) in enumerate(methods.items())
        }
        self.options: Http2Options = Http2Options(
            routes=self.routes,
            room=Room(bounds.buffered_bytes),
            concurrent_streams=CALLS_PER_CONNECTION,
            turn_requests=bounds.slice_units,
            request_ms=int(arrival_s * 1000),
            # `Places` detects and ends calls that take longer.
            write_ms=3_600_000,
        )

    # As an application of HTTP/2.

    def connect(self, options: Http2Options, now_ms: int) -> Http2Connection:
        if self.ready is None:
            return Http2Connection(options, now_ms)
        connection: Http2Connection = self.ready.connect(options, now_ms)
        return connection

    def begin(self, client: Http2Client, stream: Any) -> None:
        error = self._refusal(client, stream)
        if error is not None or not is_grpc(stream):
            refused = RefusedCall(partial(self._refuse, client, stream, error or _NO_GRPC), stream)
            stream.context = refused
            asyncio.get_running_loop().call_later(_GRACE_S, refused.refuse)
        elif stream.streaming:
            self._begin_streaming(client, stream, self._methods[stream.route])

    def answer(self, client: Http2Client, stream: Any) -> None:
        if stream.fault:
            self._refuse(client, stream, self._fault(stream.fault))
        elif isinstance(stream.context, Exception):
            # It was checked already, in compiled code.
            self._refuse(client, stream, grpc_error(stream.context))
        elif (error := self._refusal(client, stream)) is not None:
            self._refuse(client, stream, error)
        else:
            self._answer(client, stream, self._methods[stream.route])

    def receive(self, client: Http2Client, stream: Any) -> None:
        if stream.context is not None:
            stream.context.receive()

    def cancel(self, stream: Any) -> None:
        if stream.context is not None:
            stream.context.cancel()

    # What the server calls.

    @property
    def at_work(self) -> int:
        """The number of calls in progress, over all connections of all servers that use this
        object."""
        return len(self._waiting)

    async def stop(self) -> None:
        """Cancel all calls in progress."""
        waiting = list(self._waiting)
        for each in waiting:
            each.cancel()
        tasks = [each.task for each in waiting if each.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    # Who may call.

    def _refusal(self, client: Http2Client, stream: Any) -> GrpcError | None:
        """The reason to refuse a call before its message is read, if there is one."""
        if stream.route < 0:
            return GrpcError(Status.UNIMPLEMENTED, f"there is no method {stream.path[:200]}")
        method: Method = self._methods[stream.route]
        if not method.is_public:
            if self._token is None:
                if method.for_operators:
                    return _NO_TOKEN
            elif not self._token.accept(authorization := stream.get("authorization")):
                return _STRANGER
            elif self.ready is not None:
                self.ready.authorization = authorization.encode()
        if method.guard is not None and (error := method.guard(client, stream)) is not None:
            return error
        if method.places.taken >= method.places.limit:
            return self._shed("too many calls are at work here; ask again in a moment")
        if not (client.has_asked and client.is_known) and not client.regroup(not method.is_public):
            return self._shed("too many connections are open here; ask again in a moment")
        return None

    def _shed(self, text: str) -> GrpcError:
        self._replies.shed += 1
        return exhausted(text)

    def _fault(self, fault: str) -> GrpcError:
        if fault == "request_timeout":
            return grpc_error(too_late(self._arrival_s))
        if fault == "no_room":
            return exhausted("too many long messages are under way; ask again in a moment")
        return too_large(_FAULTS[fault])

    def _refuse(self, client: Http2Client, stream: Any, error: GrpcError) -> None:
        if is_grpc(stream) or _is_cut_off(stream):
            self._replies.codes[error.status.name] += 1
            refuse(client.http2, stream, error)
        else:
            client.http2.respond(
                stream, _NO_CALL, b"" if stream.method == "HEAD" else _NO_CALL_TEXT
            )
        client.flush_soon()

    # Calls.

    def _answer(self, client: Http2Client, stream: Any, method: Any) -> None:
        began = perf_counter()
        compress = False
        try:
            plain = plain_call(stream, method.max_bytes)
            if plain is None:
                timeout_ms, message, compress = _special_call(stream, method.max_bytes)
            else:
                timeout_ms, message = plain
            if timeout_ms is not None:
                timeout_ms -= int((began - client.arrived) * 1000)
                if timeout_ms <= 0:
                    raise DeadlineError("the deadline passed before the call could be answered")
            answer = method.answer(method.parse(message))
        except Exception as error:
            self._refuse(client, stream, grpc_error(error))
            return
        if isinstance(answer, Message):
            self._send(client, stream, method, compress, began, answer)
        else:
            ended = partial(self._send, client, stream, method, compress, began)
            self._wait(client, stream, method, WaitingCall(), answer, timeout_ms, ended)

    def _send(
        self,
        client: Http2Client,
        stream: Any,
        method: Any,
        compress: bool,
        began: float,
        answer: Message,
    ) -> None:
        message = answer.SerializeToString()
        if compress and len(message) >= _COMPRESSED_BYTES:
            reply(client.http2, stream, message, compress=True)
        else:
            answer_plainly(client.http2, stream, message)
        now = perf_counter()
        if method.observe is not None:
            method.observe(now - began)
        self._replies.codes["OK"] += 1
        if not stream.closed:
            method.places.taken += 1
            method.places.answering[stream] = now, client

    def _begin_streaming(self, client: Http2Client, stream: Any, method: Any) -> None:
        try:
            head = read_call(stream)
        except GrpcError as error:
            self._refuse(client, stream, error)
            return
        call = StreamingCall(client, stream, head)
        ended = partial(self._streamed, client, stream)
        self._wait(client, stream, method, call, method.serve(call), head.timeout_ms, ended)

    def _streamed(self, client: Http2Client, stream: Any, _: None) -> None:
        send_status(client.http2, stream, Status.OK)
        self._replies.codes["OK"] += 1

    def _wait(
        self,
        client: Http2Client,
        stream: Any,
        method: Method,
        waiting: WaitingCall,
        work: Later[Any] | Coroutine[Any, Any, Any],
        timeout_ms: int | None,
        ended: Callable[[Any], None],
    ) -> None:
        """Run the call, until its deadline; `ended` gets its result."""
        method.places.taken += 1
        stream.context = waiting
        self._waiting.add(waiting)
        if timeout_ms is not None:
            loop = asyncio.get_running_loop()
            waiting.timer = loop.call_later(timeout_ms / 1000, waiting.expire)

        def over() -> None:
            self._waiting.discard(waiting)
            method.places.taken -= 1

        def told(result: Any, error: BaseException | None) -> None:
            waiting.stop_timer()
            stream.context = None
            if stream.closed:
                return
            if error is None:
                ended(result)
                client.flush_soon()
            else:
                self._refuse(client, stream, _ended_with(error, waiting.is_late))

        waiting.work(work, told, over)


_FAULTS = {
    "body_too_large": "the message has more bytes than are read here",
    "head_too_large": "the metadata of a call has at most 16,384 bytes here",
}


def _is_cut_off(stream: Any) -> bool:
    """Whether a call has more metadata than is read. The content type may be in the rest: some
    libraries send it last."""
    cut_off: bool = stream.fault == "head_too_large" and stream.route >= 0
    return cut_off


def _ended_with(error: BaseException, is_late: bool) -> GrpcError:
    """The error of a call that failed."""
    if isinstance(error, asyncio.CancelledError):
        return _LATE if is_late else _LEAVING
    return grpc_error(error)


def _special_call(stream: Any, max_bytes: int) -> tuple[int | None, bytes, bool]:
    """The deadline and the message of a call, and whether its reply is compressed."""
    call = read_call(stream)
    message = read_message(stream.body, call.encoding, max_bytes)
    return call.timeout_ms, message, call.encoding == "gzip" and call.accepts_gzip
