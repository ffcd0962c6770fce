"""Clients that belong to an event loop: one per loop that uses the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

__all__ = ["PerLoop"]


class PerLoop:
    """`make` is awaited once in every loop that asks; `close` is awaited with what it made."""

    def __init__(
        self, make: Callable[[], Awaitable[Any]], close: Callable[[Any], Awaitable[None]]
    ) -> None:
        self._make = make
        self._close = close
        self._made: dict[asyncio.AbstractEventLoop, asyncio.Task[Any]] = {}

    async def get(self) -> Any:
        loop = asyncio.get_running_loop()
        task = self._made.get(loop)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            for other in [other for other in self._made if other.is_closed()]:
                del self._made[other]
            task = self._made[loop] = loop.create_task(self._start())
        if task.done():
            return task.result()
        # Whoever gives up waiting does not take the client from the others.
        return await asyncio.shield(task)

    async def aclose(self) -> None:
        """Close the client of the running loop. Those of other loops are theirs to close."""
        task = self._made.pop(asyncio.get_running_loop(), None)
        if task is None:
            return
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is None:
            await self._close(task.result())

    async def _start(self) -> Any:
        return await self._make()
