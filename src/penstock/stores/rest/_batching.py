"""Few HTTP calls for many tasks: what has to wait goes together.

An event loop has a handful of calls under way at once. Requests that come while all of them are
out wait, and the next call takes along as many as its backend allows: so a crowd on many keys
costs a few calls per round trip, and a lone request goes at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ..._queueing import Batch, LateError, QueuedCall
from ..._queueing.tasks import Pump, Reply
from .._sheet import ConnectionFailedError
from ..cas._requests import AnyRequest

__all__ = ["RequestBatcher"]


Send = Callable[[Sequence[AnyRequest], float], Awaitable[list[Any]]]


class _Asked(QueuedCall):
    """A request, and its answer: also an exception, which is then the answer of the request."""

    __slots__ = ("answer", "is_heard", "request")

    def __init__(self, request: AnyRequest, deadline: float) -> None:
        super().__init__(deadline)
        self.request = request
        self.answer: Any = None
        self.is_heard = False

    def is_answered(self) -> bool:
        return self.is_heard

    def fail(self, error: BaseException) -> None:
        self.hear(error)

    def hear(self, answer: Any) -> None:
        self.answer = answer
        self.is_heard = True
        self.in_flight = False


class RequestBatcher:
    """Belongs to one loop. `send` answers up to `most_requests` together."""

    def __init__(self, send: Send, most_calls: int, most_requests: int) -> None:
        self._send = send
        self._most_requests = most_requests
        self._pump: Pump[_Asked] = Pump(
            self._serve, _failed, most_calls=most_requests, most_batches=most_calls
        )

    @property
    def pending(self) -> int:
        """How many requests wait to be sent."""
        return self._pump.pending

    async def ask(self, requests: Sequence[AnyRequest], deadline: float) -> list[Any]:
        """For each request its answer, or the exception it met."""
        asked = [_Asked(request, deadline) for request in requests]
        replies = [self._pump.submit(one) for one in asked]
        self._pump.look()
        try:
            for one, reply in zip(asked, replies, strict=True):
                await _wait(one, reply)
        finally:
            for one in asked:
                if not one.done:
                    self._pump.withdraw(one)
        return [one.answer for one in asked]

    async def _serve(self, batch: Batch[_Asked]) -> None:
        asked = batch.take(self._most_requests)
        for one in asked:
            one.in_flight = True
        asked = [one for one in asked if not one.has_left]
        if asked:
            deadline = max(one.deadline for one in asked)
            answers = await self._send([one.request for one in asked], deadline)
            for one, answer in zip(asked, answers, strict=True):
                one.hear(answer)


async def _wait(asked: _Asked, reply: Reply) -> None:
    try:
        await reply.wait()
    except LateError as late:
        asked.hear(_late(late))


def _late(late: LateError) -> ConnectionFailedError:
    text = "no reply in time" if late.in_doubt else "too many requests ahead"
    return ConnectionFailedError(text, may_have_run=late.in_doubt)


def _failed(asked: _Asked, error: BaseException | None) -> BaseException:
    if isinstance(error, Exception):
        return error
    return ConnectionFailedError("interrupted", may_have_run=asked.in_flight)
