"""One answer for all who ask the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

__all__ = ["SharedCall"]


T = TypeVar("T")


class SharedCall(Generic[T]):
    """Awaits `make` once for all who asked before it began. Who asks while it is being made waits
    for the next one, so nobody is told what was true before it asked; and there is never more than
    one of them being made."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._make = make
        self._current: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        if self._next is None:
            self._next = asyncio.create_task(self._made_after(self._current))
        # Who gives up waiting does not end it for the others.
        return await asyncio.shield(self._next)

    async def _made_after(self, current: asyncio.Task[T] | None) -> T:
        if current is not None and not current.done():
            await asyncio.wait([current])
        self._current, self._next = self._next, None
        return await self._make()
