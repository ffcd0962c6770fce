"""Flows: decisions about I/O, written once for sync and async callers.

A flow is a generator: it yields a request, is sent the answer, and returns the result. It holds
all the decisions (what to ask next, what to retry, what to give up on) and does no I/O, so it can
be read, and tested, without a network. Two shells run it: `drive` serves each request by a plain
call, `adrive` by an awaited one. An exception of the server side is thrown into the flow at the
`yield`, where it may be handled like any other answer.
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
"""What is told, once, whether a flow has come to its result: for what was held on its behalf."""


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
    """Run the flow to its end, awaiting each answer. Cancelling the task closes the flow. `first`
    is the request that a flow waits at which was begun before."""
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
