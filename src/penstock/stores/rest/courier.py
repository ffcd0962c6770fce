"""Few HTTP calls for many tasks: what has to wait goes together.

An event loop has a handful of calls under way at once. Requests that come while all of them are
out wait, and the next call takes along as many as its backend allows: so a crowd on many keys
costs a few calls per round trip, and a lone request goes at once.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ..cas.requests import LinkError, Request

__all__ = ["Courier"]

Send = Callable[[Sequence[Request], float], Awaitable[list[Any]]]


class _Parcel:
    __slots__ = ("answer", "deadline", "request")

    def __init__(self, request: Request, deadline: float, answer: asyncio.Future[Any]) -> None:
        self.request = request
        self.deadline = deadline
        self.answer = answer

    def deliver(self, answer: Any) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


class Courier:
    """Belongs to one loop. `send` answers up to `most_requests` together."""

    def __init__(self, send: Send, most_calls: int, most_requests: int) -> None:
        self._send = send
        self._most_calls = most_calls
        self._most_requests = most_requests
        self._queue: deque[_Parcel] = deque()
        self._senders: set[asyncio.Task[None]] = set()

    async def ask(self, requests: Sequence[Request], deadline: float) -> list[Any]:
        """For each request its answer, or the exception it met."""
        loop = asyncio.get_running_loop()
        parcels = [_Parcel(request, deadline, loop.create_future()) for request in requests]
        self._queue.extend(parcels)
        idle = self._most_calls - len(self._senders)
        for _ in range(min(idle, -(-len(self._queue) // self._most_requests))):
            sender = loop.create_task(self._work())
            self._senders.add(sender)
            sender.add_done_callback(self._senders.discard)
        left_s = max(0.0, deadline - time.monotonic())
        await asyncio.wait([parcel.answer for parcel in parcels], timeout=left_s)
        return [self._answer(parcel) for parcel in parcels]

    def _answer(self, parcel: _Parcel) -> Any:
        if parcel.answer.done():
            return parcel.answer.result()
        parcel.answer.cancel()
        if parcel in self._queue:
            self._queue.remove(parcel)
            return LinkError("too many requests ahead", may_have_run=False)
        return LinkError("no reply in time", may_have_run=True)

    async def _work(self) -> None:
        while self._queue:
            size = min(len(self._queue), self._most_requests)
            parcels = [self._queue.popleft() for _ in range(size)]
            answers: list[Any] = [LinkError("interrupted", may_have_run=True)] * size
            try:
                deadline = max(parcel.deadline for parcel in parcels)
                answers = await self._send([parcel.request for parcel in parcels], deadline)
            except Exception as error:
                answers = [error] * size
            finally:
                for parcel, answer in zip(parcels, answers, strict=True):
                    parcel.deliver(answer)
