"""One client's connection: requests in, replies out, in order.

A request that can be answered at once is answered where it arrives: no task, no queue, one write
for all that came in together. One that has to wait for a store holds up those behind it on the
same connection, so replies never overtake each other; when the bytes behind it become many they
are left unread, and the client's own flow control does the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from time import perf_counter
from typing import TYPE_CHECKING, Any

from .faults import problem_of
from .plan import Plan
from .problem import Problem
from .reader import Reader

if TYPE_CHECKING:
    from .door import HttpDoor

__all__ = ["Connection"]

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_END = b"\r\n\r\n"
_END_CLOSING = b"\r\nConnection: close\r\n\r\n"


class Connection(asyncio.Protocol):
    """`since` is when it last changed: became idle, began a request, was told to wait."""

    __slots__ = (
        "_door",
        "_ending",
        "_heard_all",
        "_out",
        "_reader",
        "_stalled",
        "_task",
        "_transport",
        "since",
    )

    def __init__(self, door: HttpDoor) -> None:
        self._door = door
        self._reader = Reader(door.plans, door.bounds, door.hold, self._urge)
        self._transport: asyncio.Transport
        self._out: list[bytes] = []
        self._task: asyncio.Task[bytes] | None = None
        self._stalled = False
        self._ending = False
        # Whether the client has said all that it wants.
        self._heard_all = False
        self.since: float = door.now

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        if not self._door.admit(self):
            self._refuse(Problem("overloaded", "too many connections", ("Retry-After: 1",)))

    def connection_lost(self, exc: Exception | None) -> None:
        self._ending = True
        self._reader.release()
        self._door.forget(self)

    def data_received(self, data: bytes) -> None:
        if self._ending:
            return
        if self._reader.feed(data):
            self.since = self._door.now
        if self._task is None and not self._stalled:
            self._pump()
        elif self._reader.buffered > self._door.bounds.body_bytes:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """A client that has said all it wants still gets its answers, where the transport can."""
        self._heard_all = True
        busy = self._task is not None or self._stalled
        if not busy or not self._transport.can_write_eof():
            self._ending = True
            return False
        return True

    def pause_writing(self) -> None:
        self._stalled = True
        self.since = self._door.now

    def resume_writing(self) -> None:
        self._stalled = False
        if self._task is None:
            self._go_on()

    def expire(self, now: float, stopping: bool) -> None:
        """Part with a client that is too slow, or has been quiet for too long."""
        bounds, age_s = self._door.bounds, now - self.since
        if self._stalled:
            if age_s > bounds.write_s:
                self._transport.abort()
        elif self._task is not None:
            return
        elif self._ending:
            unread = self._transport.get_write_buffer_size() > 0
            if age_s > (bounds.write_s if unread else bounds.linger_s):
                self._transport.abort()
        elif phase := self._reader.phase:
            if age_s > (bounds.head_s if phase == "head" else bounds.request_s):
                self._refuse(Problem("request_timeout", f"the {phase} did not arrive in time"))
        elif age_s > (bounds.linger_s if stopping else bounds.idle_s):
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def _pump(self) -> None:
        """Answer what is there, up to the first request that has to wait."""
        began = perf_counter()
        out, reader, door = self._out, self._reader, self._door
        try:
            while (request := reader.take()) is not None:
                plan, body = request
                try:
                    answer = plan.answer(body)
                    reply = answer if isinstance(answer, bytes) else self._begin(plan, answer)
                except Exception as error:
                    reply = door.failure(error)
                if reply is None:
                    break
                out.append(self._shape(plan, reply) if plan.shaped else reply)
                if not reader.more or self._ending:
                    break
        except Exception as error:
            # Where the request ends is not known, so there is no next one.
            self._refuse(problem_of(error))
            return
        if out:
            self._send(b"".join(out))
            spent = perf_counter() - began
            for _ in out:
                door.observe(spent)
            out.clear()

    def _begin(self, plan: Plan, work: Coroutine[Any, Any, bytes]) -> bytes | None:
        """Let the store be asked. Returns a reply only if there is too much of that already."""
        door = self._door
        if not door.enter():
            work.close()
            return door.problem(Problem("overloaded", "try again soon", ("Retry-After: 1",)))
        began = perf_counter()
        self._task = task = door.loop.create_task(work)

        def answered(done: asyncio.Task[bytes]) -> None:
            door.leave()
            self._task = None
            answer = door.result(done)
            self._send(self._shape(plan, answer) if plan.shaped else answer)
            door.observe(perf_counter() - began)
            if not self._stalled and (self._reader.buffered or self._heard_all):
                self._go_on()

        task.add_done_callback(answered)
        return None

    def _go_on(self) -> None:
        if self._ending or self._transport.is_closing():
            return
        self._transport.resume_reading()
        self._pump()
        if self._heard_all and self._task is None and not self._stalled:
            # What is left, if anything, is a request that will never be whole.
            self._ending = True
            self._transport.close()

    def _send(self, reply: bytes) -> None:
        transport = self._transport
        if not transport.is_closing():
            self.since = self._door.now
            transport.write(reply)
            if self._ending:
                transport.close()

    def _shape(self, plan: Plan, reply: bytes) -> bytes:
        if plan.bare:
            reply = reply[: reply.index(_END) + 4]
        if plan.last:
            self._ending = True
            reply = reply.replace(_END, _END_CLOSING, 1)
        return reply

    def _refuse(self, problem: Problem) -> None:
        """The last word. What the client is still sending is read and thrown away for a moment:
        to close on unread bytes could destroy the reply on its way."""
        self._ending = True
        self.since = self._door.now
        self._reader.release()
        reply = self._door.problem(problem).replace(_END, _END_CLOSING, 1)
        self._transport.write(b"".join([*self._out, reply]))
        self._out.clear()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def _urge(self) -> None:
        self._out.append(_CONTINUE)
