"""The connection of async calls: one per server and event loop, shared by all tasks.

The requests of all tasks are sent in order, and replies are paired with requests by their order.
Requests made in one turn of the loop are written together, so 50 tasks cost one system call instead
of 50. Two rules keep that from adding latency: on an idle connection a request is written at once,
and a large batch is written before the end of the turn, so that server and client work at the same
time.

A late reply must never be taken for that of a later request. So a request whose caller has given up
keeps its place in the queue until its reply arrives, and a connection with such a request takes no
new ones; those in flight may still be answered until their deadlines, then it is closed. If a
signal handler raised in the middle of a step, it is unknown which reply belongs to which request,
and the connection is closed at once.

Transactions need a connection to themselves. They use the same class, one request at a time.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from contextlib import suppress
from typing import Any, Protocol

from ...core import native
from ...core._loops import running_loop
from .._sheet import ConnectionFailedError
from ._requests import Address, Answer, Exchange, Pulse, late_reply, lost_reply, never_sent
from ._sync_connections import UNREADABLE, new_reader, pack, poller

__all__ = ["MultiplexedConnection"]


_BATCH = 16
_NEVER = float("inf")
# How often replies that have arrived are read before requests past their deadline are given up.
_TURNS = 64


class Waiting(Protocol):
    """An entry of the queue: an `Exchange`, or a check that compiled code sends and reads."""

    @property
    def answer(self) -> Answer: ...

    @property
    def deadline(self) -> float: ...

    def forget(self) -> None:
        """Tell nobody."""


def pair_replies(waiting: deque[Any], reader: Any, data: bytes) -> None:
    """Tell those in the queue the replies in `data`, in order. Has a compiled twin."""
    reader.feed(data)
    while (reply := reader.gets()) is not False:
        exchange = waiting[0]
        replies = exchange.replies
        replies.append(reply)
        if len(replies) == len(exchange.commands):
            if not exchange.answer.done():
                exchange.answer.set_result(replies)
            # The callback may have sent another request, which may have ended the connection.
            if waiting:
                waiting.popleft()


_pair_replies = pair_replies if native is None else native.pair_replies


class MultiplexedConnection(asyncio.Protocol):
    """A connection that pairs replies with requests."""

    def __init__(self, connection: Any, address: Address, pulse: Pulse) -> None:
        self.address = address
        self._pulse = pulse
        self.takes_requests: bool = True
        self.loop: asyncio.AbstractEventLoop = running_loop()
        # The writer is kept: it closes its transport when it is collected.
        self._writer = connection._writer
        connection._reader = connection._writer = None
        self._transport: asyncio.Transport = self._writer.transport
        self._transport.set_protocol(self)
        self._poll = poller(self._transport.get_extra_info("socket").fileno())
        self._reader = new_reader()
        self._waiting: deque[Waiting] = deque()
        self._unsent: list[bytes] = []
        self._flush_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._watched_until = _NEVER
        self._turns = 0

    def is_ready(self) -> bool:
        """Whether it takes requests, as far as can be known: False also when the server has hung up
        and the loop had no chance to tell us yet."""
        if not self.takes_requests:
            return False
        if self._waiting or not self._poll(0):
            return True
        self.close()
        return False

    def exchange(self, exchange: Exchange, deadline: float) -> asyncio.Future[list[Any]]:
        """The replies, or ConnectionFailedError."""
        if not self.takes_requests:
            raise never_sent(self.address)
        answer: asyncio.Future[list[Any]] = self.loop.create_future()
        exchange.wait(answer, deadline)
        self.send(exchange, pack(exchange.commands))
        return answer

    def send(self, exchange: Waiting, payload: bytes) -> None:
        """As `exchange`, with all of it prepared."""
        waiting, deadline = self._waiting, exchange.deadline
        try:
            if deadline < self._watched_until:
                self._watch(deadline)
            if not waiting:
                waiting.append(exchange)
                self._transport.write(payload)
                return
            waiting.append(exchange)
            self._unsent.append(payload)
            if not self._flush_due:
                self._flush_due = True
                self.loop.call_soon(self._flush_due_now)
            elif len(self._unsent) >= _BATCH:
                self._flush()
        except BaseException:
            # The caller gets this exception, and no answer later.
            exchange.forget()
            self._break()
            raise

    def close(self) -> None:
        """End it, with whatever is in flight."""
        self.takes_requests = False
        if not self.loop.is_closed():
            self._transport.abort()

    def hang_up(self) -> None:
        """Shut the sockets down without the loop, so that the server notices. Not every loop gives
        access to its sockets; then the server notices when they are collected."""
        with suppress(Exception):
            self._transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    def data_received(self, data: bytes) -> None:
        waiting = self._waiting
        if self.takes_requests:
            # Nothing is late here.
            self._pulse.answered_at = self.loop.time()
        try:
            _pair_replies(waiting, self._reader, data)
        except UNREADABLE as error:
            self._fail(lost_reply(self.address, f"not what was asked for: {error}"))
            return
        except BaseException:
            self._break()
            raise
        if not self.takes_requests and not waiting:
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
        self._timer = self.loop.call_at(deadline, self._expire)
        self._watched_until = deadline

    def _expire(self) -> None:
        """Give up requests that are past their deadline. One timer serves all requests of the
        connection. Replies that have arrived are read first: if the process was not scheduled for
        a while, the loop may run this before it reads them."""
        self._timer = None
        self._watched_until = _NEVER
        now = self.loop.time()
        if self._waiting and self._turns < _TURNS and self._poll(0):
            self._turns += 1
            self._watch(now)
            return
        self._turns = 0
        waiting = [exchange for exchange in self._waiting if not exchange.answer.done()]
        for exchange in waiting:
            if exchange.deadline <= now:
                self.takes_requests = False
                late = self._pulse.judge(late_reply(self.address), now)
                exchange.answer.set_exception(late)
        waiting = [exchange for exchange in waiting if not exchange.answer.done()]
        if waiting:
            self._watch(min(exchange.deadline for exchange in waiting))
        elif not self.takes_requests:
            self.close()

    def _break(self) -> None:
        """A signal handler raised in the middle of a step."""
        self.takes_requests = False
        self._fail(lost_reply(self.address, "interrupted by a signal handler"))

    def _fail(self, error: ConnectionFailedError) -> None:
        """The connection has ended. Requests that were never written have certainly not been
        run."""
        written = len(self._waiting) - len(self._unsent)
        self._unsent.clear()
        # First, so that no callback sends another request here.
        self.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for place, exchange in enumerate(self._waiting):
            if not exchange.answer.done():
                ran = place < written
                failure = ConnectionFailedError(str(error), may_have_run=ran, again=True)
                exchange.answer.set_exception(failure)
        self._waiting.clear()
