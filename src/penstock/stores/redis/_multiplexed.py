"""The connection of async calls: one per server and event loop, shared by all tasks.

A task's request is appended to what others have to say, and replies are paired with requests by
their order. Requests made in one turn of the loop leave in one write, so 50 tasks cost one system
call instead of 50. Two rules keep that from adding latency: on a quiet connection a request is
written at once, and a batch leaves before the end of the turn when it is large, so that server
and client work at the same time.

A late reply must never meet a later request. So a request whose caller has given up keeps its
place in the queue until its reply comes, and a connection on which one was given up takes no new
requests; those in flight may still be answered, each until its own deadline, then it is closed.
Nor may a reply meet another's request: where a signal handler raised between the two halves of a
step, nobody knows how they pair, and the connection ends at once.

Transactions need a connection to themselves. They use the same class, one request at a time.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from contextlib import suppress
from typing import Any, Protocol

from .._sheet import ConnectionFailedError
from ._requests import Address, late_reply, lost_reply
from ._sync_connections import ProtocolError, new_reader, poller

__all__ = ["Answer", "MultiplexedConnection"]


_BATCH = 16
_NEVER = float("inf")


class Answer(Protocol):
    """What is told the replies to a request: a future, or what goes on where they arrive."""

    def done(self) -> bool: ...

    def set_result(self, result: list[Any], /) -> None: ...

    def set_exception(self, error: ConnectionFailedError, /) -> None: ...


class _Nobody:
    """Has been told already."""

    def done(self) -> bool:
        return True

    def set_result(self, _replies: list[Any]) -> None: ...

    def set_exception(self, _error: ConnectionFailedError) -> None: ...


_NOBODY = _Nobody()


class _Waiter:
    """A request's place in the queue of a connection."""

    __slots__ = ("answer", "count", "deadline", "replies")

    def __init__(self, answer: Answer, count: int, deadline: float) -> None:
        self.answer = answer
        self.count = count
        self.deadline = deadline
        self.replies: list[Any] = []


class MultiplexedConnection(asyncio.Protocol):
    """A connection that pairs replies with requests."""

    def __init__(self, connection: Any, address: Address) -> None:
        self.address = address
        self.takes_requests: bool = True
        self._loop = asyncio.get_running_loop()
        # The writer is kept: it closes its transport when it is collected.
        self._writer = connection._writer
        connection._reader = connection._writer = None
        self._transport: asyncio.Transport = self._writer.transport
        self._transport.set_protocol(self)
        self._poll = poller(self._transport.get_extra_info("socket").fileno())
        self._reader = new_reader()
        self._waiters: deque[_Waiter] = deque()
        self._unsent: list[bytes] = []
        self._flush_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._watched_until = _NEVER

    def exchange(self, payload: bytes, count: int, deadline: float) -> asyncio.Future[list[Any]]:
        """The replies to `payload`, which holds `count` commands, or
        ConnectionFailedError."""
        answer: asyncio.Future[list[Any]] = self._loop.create_future()
        self.send(payload, count, deadline, answer)
        return answer

    def send(self, payload: bytes, count: int, deadline: float, answer: Answer) -> None:
        """As `exchange`, with somebody else to be told."""
        was_quiet = not self._waiters
        waiter = _Waiter(answer, count, deadline)
        try:
            self._waiters.append(waiter)
            if deadline < self._watched_until:
                self._watch(deadline)
            if was_quiet:
                self._transport.write(payload)
                return
            self._unsent.append(payload)
            if not self._flush_due:
                self._flush_due = True
                self._loop.call_soon(self._flush_due_now)
            elif len(self._unsent) >= _BATCH:
                self._flush()
        except BaseException:
            # Who asked hears of it by this.
            waiter.answer = _NOBODY
            self._break()
            raise

    def is_stale(self) -> bool:
        """True when the server has hung up and the loop had no chance to tell us yet."""
        return not self._waiters and bool(self._poll(0))

    def close(self) -> None:
        """End it, with whatever is in flight."""
        self.takes_requests = False
        if not self._loop.is_closed():
            self._transport.abort()

    def hang_up(self) -> None:
        """Tell the server that nobody is there any more, without the loop. Not every loop lends
        its sockets for that; then the server hears it when they are collected."""
        with suppress(Exception):
            self._transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    def data_received(self, data: bytes) -> None:
        waiters, gets = self._waiters, self._reader.gets
        try:
            self._reader.feed(data)
            while (reply := gets()) is not False:
                waiter = waiters[0]
                waiter.replies.append(reply)
                if len(waiter.replies) == waiter.count:
                    if not waiter.answer.done():
                        waiter.answer.set_result(waiter.replies)
                    # Who is told may ask again, and that may have ended the connection.
                    if waiters:
                        waiters.popleft()
        except (ProtocolError, IndexError) as error:
            self._fail(lost_reply(self.address, f"not what was asked for: {error}"))
            return
        except BaseException:
            self._break()
            raise
        if not self.takes_requests and not waiters:
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(lost_reply(self.address, error))

    def _flush_due_now(self) -> None:
        self._flush_due = False
        try:
            self._flush()
        except BaseException:
            self._break()
            raise

    def _flush(self) -> None:
        if self._unsent and not self._transport.is_closing():
            self._transport.write(b"".join(self._unsent))
            self._unsent.clear()

    def _watch(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._expire)
        self._watched_until = deadline

    def _expire(self) -> None:
        """Give up on what is late. One timer serves all requests of the connection."""
        self._timer = None
        self._watched_until = _NEVER
        now = self._loop.time()
        waiting = [waiter for waiter in self._waiters if not waiter.answer.done()]
        for waiter in waiting:
            if waiter.deadline <= now:
                self.takes_requests = False
                waiter.answer.set_exception(late_reply(self.address))
        waiting = [waiter for waiter in waiting if not waiter.answer.done()]
        if waiting:
            self._watch(min(waiter.deadline for waiter in waiting))
        elif not self.takes_requests:
            self.close()

    def _break(self) -> None:
        """A signal handler raised in the middle of a step."""
        self.takes_requests = False
        self._fail(lost_reply(self.address, "interrupted by a signal handler"))

    def _fail(self, error: ConnectionFailedError) -> None:
        """Nothing will be heard any more. What was never written certainly was not run."""
        written = len(self._waiters) - len(self._unsent)
        self._unsent.clear()
        # First, so that nobody who is told asks here again.
        self.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for place, waiter in enumerate(self._waiters):
            if not waiter.answer.done():
                ran = place < written
                failure = ConnectionFailedError(str(error), may_have_run=ran, again=True)
                waiter.answer.set_exception(failure)
        self._waiters.clear()
