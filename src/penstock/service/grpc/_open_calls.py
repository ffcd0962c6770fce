"""Open calls: how many there may be, what they wait for, and the status for each exception.

Errors are one table; the rest of the server only raises. The text of our own exceptions is written
for callers and sent with the status. That of any other exception is not sent: it is a bug of ours,
and logged with its traceback. RESOURCE_EXHAUSTED has the time to wait (`retry_trailers`), unless
waiting does not help.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from itertools import cycle
from typing import Any

from google.protobuf.message import DecodeError, Message

from ...adapters._headers import retry_trailers
from ...core._errors import (
    ConfigInvalidError,
    OverloadedError,
    QueueFullError,
    StoreUnavailableError,
    UnsupportedError,
)
from .._core import UnknownPolicyError
from .._deciding import Later, Told
from ..connections import Http2Client
from ..http2 import ErrorCode
from ._protocol import CallHead, GrpcError, MessageReader, Status, send_message

__all__ = [
    "MAX_CONCURRENT",
    "SMALL_MESSAGE_BYTES",
    "TAKING_S",
    "DeadlineError",
    "Places",
    "RefusedCall",
    "StreamingCall",
    "UnknownServiceError",
    "WaitingCall",
    "exhausted",
    "grpc_error",
    "too_late",
]


_log = logging.getLogger("penstock.service.grpc")

_MAX_TEXT = 500


class DeadlineError(Exception):
    """The caller's deadline had passed before the call was served. Internal to this server: the
    caller gets a status of the protocol."""


class UnknownServiceError(Exception):
    """A health probe asked for a service that is not served here."""


# The first matching class counts: an unknown policy is also an invalid one.
_STATUSES: tuple[tuple[type[Exception], Status], ...] = (
    (UnknownPolicyError, Status.NOT_FOUND),
    (ConfigInvalidError, Status.INVALID_ARGUMENT),
    (UnsupportedError, Status.UNIMPLEMENTED),
    (OverloadedError, Status.RESOURCE_EXHAUSTED),
    (StoreUnavailableError, Status.UNAVAILABLE),
    (QueueFullError, Status.RESOURCE_EXHAUSTED),
    (DeadlineError, Status.DEADLINE_EXCEEDED),
    (UnknownServiceError, Status.NOT_FOUND),
)


def grpc_error(error: BaseException) -> GrpcError:
    """The `GrpcError` for an exception."""
    if isinstance(error, GrpcError):
        return error
    if isinstance(error, DecodeError):
        return GrpcError(Status.INVALID_ARGUMENT, "the request is no message of the expected type")
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            return _ours(status, error)
    _log.error("a call failed", exc_info=error)
    return GrpcError(Status.INTERNAL, "the service failed to answer; its log says why")


def _ours(status: Status, error: BaseException) -> GrpcError:
    text = str(error)[:_MAX_TEXT]
    if status is Status.RESOURCE_EXHAUSTED:
        return exhausted(text)
    if isinstance(error, StoreUnavailableError):
        return GrpcError(status, text, trailing=(("reason", error.reason),))
    return GrpcError(status, text)


def exhausted(text: str) -> GrpcError:
    """RESOURCE_EXHAUSTED, with the time after which to retry."""
    pushback, (_, details) = retry_trailers(text, next(_RETRY_MS))
    assert isinstance(details, bytes)
    return GrpcError(Status.RESOURCE_EXHAUSTED, text, details, (pushback,))


# About a second, random, so that callers that were refused together do not retry together.
_RETRY_MS = cycle(range(500, 1_500, 61))


SMALL_MESSAGE_BYTES = 16_384
"""The same for calls of strangers, and for streaming calls."""

MAX_CONCURRENT = 4_096
"""Calls in progress, over all connections; one more is answered RESOURCE_EXHAUSTED."""

TAKING_S = 10.0
"""How long a client may take to read a reply."""


class Places:
    """The places of calls. `taken` is the number of calls in progress, including those that have
    ended while the store still works for them. `answering` has the calls whose reply is not read
    yet, with the time since then, the oldest first."""

    def __init__(self, limit: int = MAX_CONCURRENT, taking_s: float = TAKING_S) -> None:
        self.limit = limit
        self.taking_s = taking_s
        self.taken: int = 0
        self.answering: dict[Any, tuple[float, Http2Client]] = {}

    def look_through(self, now: float) -> None:
        """Free the places of replies that were read, and close connections that do not read
        theirs."""
        taken = [stream for stream in self.answering if stream.closed]
        for stream in taken:
            del self.answering[stream]
        self.taken -= len(taken)
        late = {client for since, client in self.answering.values() if now - since > self.taking_s}
        if late:
            _log.warning("ending %d connections whose clients take no replies", len(late))
        for client in late:
            client.end(ErrorCode.ENHANCE_YOUR_CALM, b"replies were not taken")


class WaitingCall:
    """A call that waits for the store, and the timer of its deadline. Either a task runs it, or the
    store calls back; in that case a cancelled call ignores the result when it arrives."""

    __slots__ = ("_over", "_told", "is_late", "task", "timer")

    def __init__(self) -> None:
        self.task: asyncio.Task[Any] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.is_late = False
        self._told: Told | None = None
        self._over: Callable[[], None]

    def work(
        self,
        work: Later[Any] | Coroutine[Any, Any, Any],
        told: Told,
        over: Callable[[], None],
    ) -> None:
        """Start; `told` is called once, later. So is `over`, when all work for the call has ended:
        before `told`, unless it was cancelled."""
        self._told, self._over = told, over
        if isinstance(work, Later):
            if work.can_begin:
                work.begin(self._heard)
                return
            work = work()
        self.task = asyncio.get_running_loop().create_task(work)
        self.task.add_done_callback(self._done)

    def expire(self) -> None:
        self.is_late = True
        self.cancel()

    def cancel(self) -> None:
        if self.task is None:
            self._tell(None, asyncio.CancelledError())
        else:
            self.task.cancel()

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()

    def _done(self, task: asyncio.Task[Any]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self._heard(None if error else task.result(), error)

    def _heard(self, result: Any, error: BaseException | None) -> None:
        self._over()
        self._tell(result, error)

    def _tell(self, result: Any, error: BaseException | None) -> None:
        if self._told is not None:
            told, self._told = self._told, None
            told(result, error)


class RefusedCall:
    """A call that was refused before it has arrived completely. The status is sent when it has, or
    after a moment: the most common client library reports a status that arrives before its message
    is sent as INTERNAL."""

    __slots__ = ("_refuse", "_stream")

    def __init__(self, refuse: Callable[[], None], stream: Any) -> None:
        self._refuse = refuse
        self._stream = stream

    def receive(self) -> None:
        if self._stream.ended:
            self.refuse()

    def refuse(self) -> None:
        if not self._stream.closed:
            self._refuse()

    def cancel(self) -> None:
        """There is nothing to stop."""


class StreamingCall(WaitingCall):
    """A streaming call."""

    __slots__ = ("_arrived", "_client", "_messages", "_reader", "_stream")

    def __init__(self, client: Http2Client, stream: Any, call: CallHead) -> None:
        super().__init__()
        self._client = client
        self._stream = stream
        self._reader = MessageReader(call.encoding, SMALL_MESSAGE_BYTES)
        # None after the last one; an error for a message that could not be read.
        self._messages: deque[bytes | GrpcError | None] = deque()
        self._arrived = asyncio.Event()

    def receive(self) -> None:
        """Read the messages that have arrived."""
        self._arrived.set()

    async def read(self) -> bytes | None:
        """The next message; None after the last. Bytes stay in the protocol until they are needed,
        so that flow control bounds what a client can send."""
        while not self._messages:
            self._arrived.clear()
            self._take()
            if not self._messages:
                await self._arrived.wait()
        message = self._messages[0]
        if isinstance(message, bytes):
            self._messages.popleft()
        elif message is not None:
            raise message
        return message

    def _take(self) -> None:
        try:
            self._messages += self._reader.feed(self._client.http2.take_body(self._stream))
            if self._stream.ended:
                self._reader.finish()
                self._messages.append(None)
        except GrpcError as error:
            self._messages.append(error)
        self._client.flush_soon()

    async def first(self, within_s: float) -> bytes:
        """The first message, which has a deadline to arrive."""
        try:
            message = await asyncio.wait_for(self.read(), within_s)
        except asyncio.TimeoutError:
            raise too_late(within_s) from None
        if message is None:
            raise ConfigInvalidError("the call came without a message")
        return message

    def write(self, message: Message) -> None:
        send_message(self._client.http2, self._stream, message.SerializeToString())
        self._client.flush_soon()


def too_late(within_s: float) -> DeadlineError:
    return DeadlineError(f"no message within {within_s:g} s")
