"""What is written once for sync and async callers: flows, and blocks that end.

A flow is a generator: it yields a request, is sent the answer, and returns the result. It holds
all the decisions (what to ask next, what to retry, what to give up on) and does no I/O, so it can
be read, and tested, without a network. Two shells run it: `drive` serves each request by a plain
call, `adrive` by an awaited one. An exception of the server side is thrown into the flow at the
`yield`, where it may be handled like any other answer.

`Closing` and `Settling` are the `with` and `async with` of what is closed and of what is settled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from types import TracebackType

    from ._decision import Decision

__all__ = ["Closing", "Flow", "Settling", "adrive", "drive"]


Req = TypeVar("Req")
R = TypeVar("R")

Flow = Generator[Req, Any, R]
"""A generator that yields requests, is sent their answers, and returns the result."""


def drive(flow: Flow[Req, R], serve: Callable[[Req], Any]) -> R:
    """Run the flow to its end, serving its requests by blocking calls."""
    try:
        request = next(flow)
        while True:
            try:
                answer = serve(request)
            except Exception as error:  # noqa: PERF203
                request = flow.throw(error)
            else:
                request = flow.send(answer)
    except StopIteration as finished:
        result: R = finished.value
        return result
    finally:
        flow.close()


async def adrive(flow: Flow[Req, R], serve: Callable[[Req], Awaitable[Any]]) -> R:
    """Run the flow to its end, awaiting each answer. Cancelling the task closes the flow."""
    try:
        request = next(flow)
        while True:
            try:
                answer = await serve(request)
            except Exception as error:  # noqa: PERF203
                request = flow.throw(error)
            else:
                request = flow.send(answer)
    except StopIteration as finished:
        result: R = finished.value
        return result
    finally:
        flow.close()


C = TypeVar("C", bound="Closing")
S = TypeVar("S", bound="Settling")


class Closing:
    """Closed at the end of a `with` or `async with` block."""

    def close(self) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        raise NotImplementedError

    def __enter__(self: C) -> C:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self: C) -> C:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()


class Settling:
    """A charge, wherever it is kept: `decision` is the answer, and a block that ends settles it as
    it was reserved, or cancels it if an exception ended it."""

    allowed: bool
    decision: Decision

    @property
    def is_open(self) -> bool:
        raise NotImplementedError

    def settle(self, actual: int | Mapping[str, int]) -> bool:
        raise NotImplementedError

    async def asettle(self, actual: int | Mapping[str, int]) -> bool:
        raise NotImplementedError

    def cancel(self) -> bool:
        raise NotImplementedError

    async def acancel(self) -> bool:
        raise NotImplementedError

    @property
    def limit(self) -> int:
        """How much the limit of `decision` allows."""
        return self.decision.limit

    @property
    def remaining(self) -> int:
        """What is left of that limit."""
        return self.decision.remaining

    @property
    def reset_at(self) -> int:
        """From when on nothing of this is remembered."""
        return self.decision.reset_at

    @property
    def retry_after_ms(self) -> int:
        """How long to wait before it is worth asking again; 0 exactly when allowed."""
        return self.decision.retry_after_ms

    def __bool__(self) -> bool:
        return self.allowed

    def __enter__(self: S) -> S:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.cancel()
        elif self.is_open:
            self.settle({})

    async def __aenter__(self: S) -> S:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            await self.acancel()
        elif self.is_open:
            await self.asettle({})
