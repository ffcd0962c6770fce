"""An event loop in a thread of its own, for a server that a test asks from outside."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, TypeVar

__all__ = ["LoopThread"]

L = TypeVar("L", bound="LoopThread")
R = TypeVar("R")

_DEADLINE_S = 60


class LoopThread(ABC):
    """What it serves, it serves in `loop` while the block is open."""

    loop: asyncio.AbstractEventLoop

    @abstractmethod
    def serving(self) -> AbstractAsyncContextManager[None]:
        """Opens what is served, and closes it. Runs in the loop."""

    def __enter__(self: L) -> L:
        self._up: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        self._up.result(_DEADLINE_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_DEADLINE_S)
        assert not self._thread.is_alive()

    async def _serve(self) -> None:
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        serving = self.serving()
        try:
            await serving.__aenter__()
        except BaseException as error:
            self._up.set_exception(error)
            return
        self._up.set_result(None)
        await self._stop.wait()
        await serving.__aexit__(None, None, None)

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """The result of a coroutine that the loop runs."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(_DEADLINE_S)

    def inside(self, call: Callable[[], R]) -> R:
        """The result of a call made in the loop's thread."""

        async def run() -> R:
            return call()

        return self.run(run())
