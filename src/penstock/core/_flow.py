"""Flows: the logic of I/O, written once for sync and async callers.

A flow is a generator: it yields a request, is sent the answer, and returns the result. It makes
all the decisions (what to ask next, what to retry, when to give up) and does no I/O itself, so it
can be read and tested without a network. `drive` runs it with blocking calls, `adrive` with awaited
ones. An exception of a call is thrown into the flow at the `yield`, where it may be handled like
any other answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

__all__ = ["Flow", "adrive", "drive"]


Req = TypeVar("Req")
R = TypeVar("R")

Flow = Generator[Req, Any, R]
"""A generator that yields requests, is sent their answers, and returns the result."""

Ended = Callable[[bool], None]
"""A callback at the end of a flow, with whether it returned a result: to release its resources."""


def drive(flow: Flow[Req, R], serve: Callable[[Req], Any], ended: Ended | None = None) -> R:
    """Run the flow to its end, serving its requests by blocking calls."""
    is_well = False
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
        is_well = True
        result: R = finished.value
        return result
    finally:
        flow.close()
        if ended is not None:
            ended(is_well)


async def adrive(
    flow: Flow[Req, R],
    serve: Callable[[Req], Awaitable[Any]],
    first: Req | None = None,
    ended: Ended | None = None,
) -> R:
    """Run the flow to its end, awaiting each answer. Cancelling the task closes the flow. For a
    flow that was started already, `first` is the request that it yielded."""
    is_well = False
    try:
        request = next(flow) if first is None else first
        while True:
            try:
                answer = await serve(request)
            except Exception as error:  # noqa: PERF203
                request = flow.throw(error)
            else:
                request = flow.send(answer)
    except StopIteration as finished:
        is_well = True
        result: R = finished.value
        return result
    finally:
        flow.close()
        if ended is not None:
            ended(is_well)
