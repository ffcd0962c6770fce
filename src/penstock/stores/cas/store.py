"""CasStore: sync and async calls. A backend adds `serve` and `aserve`, the I/O."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, TypeVar

from ..._queueing import Queues
from ..._queueing.fork import ForkAware, watch_forks
from ...core.store import Store, Transform
from ...core.validation import require_int
from .callers import AsyncCaller, KeyQueue, SyncCaller
from .memory import Memory
from .requests import Request

__all__ = ["CasStore"]

R = TypeVar("R")

_ABREAST = 32
"""Distinct keys of one call that are under way together."""


class CasStore(Store, ForkAware):
    """A store whose backend compares and swaps.

    `timeout_ms` is how long a call may take, waiting its turn included; past it the call raises
    `store_unavailable`. A call of many keys works on up to 32 at once, and has that time for all
    of them.
    """

    max_record_bytes: ClassVar[int] = 2**20
    """The largest record that the backend takes."""

    compares: ClassVar[bool] = True
    """Whether a write is refused when its key has changed. Without that, nothing may be
    remembered."""

    def __init__(self, timeout_ms: int) -> None:
        self.timeout_ms: int = require_int("timeout_ms", timeout_ms, high=3_600_000)
        self._begin()
        watch_forks(self)

    def _begin(self) -> None:
        self.queues: Queues[KeyQueue] = Queues(KeyQueue)
        self.memory: Memory = Memory() if self.compares else Memory(0)

    @abstractmethod
    def serve(self, requests: Sequence[Request], deadline: float) -> list[Any]:
        """Answer each request, or give the exception it met: a ConnectionFailedError, if the
        backend could not be asked or heard."""

    @abstractmethod
    async def aserve(self, requests: Sequence[Request], deadline: float) -> list[Any]:
        """The awaitable twin of `serve`."""

    def _prepare(self) -> None:
        """Make the client, which may take longer than a call, and is not part of one."""

    async def _aprepare(self) -> None:
        """The awaitable twin of `_prepare`."""

    def _after_fork_in_child(self) -> None:
        """Forget, in a child, what the parent uses."""
        self._begin()

    def apply(self, key: str, transform: Transform[R], now: int, cost: int) -> R:
        result: R = self.apply_many((key,), transform, now, cost)[0]
        return result

    async def aapply(self, key: str, transform: Transform[R], now: int, cost: int) -> R:
        result: R = (await self.aapply_many((key,), transform, now, cost))[0]
        return result

    def apply_many(
        self, keys: Sequence[str], transform: Transform[R], now: int, cost: int
    ) -> list[R]:
        self._prepare()
        results: dict[str, Iterator[R]] = {}
        caller = SyncCaller(self, self._deadline())
        for chunk in _chunks(keys):
            results.update(caller.run(chunk, transform, now, cost))
        return [next(results[key]) for key in keys]

    async def aapply_many(
        self, keys: Sequence[str], transform: Transform[R], now: int, cost: int
    ) -> list[R]:
        await self._aprepare()
        results: dict[str, Iterator[R]] = {}
        caller = AsyncCaller(self, self._deadline())
        for chunk in _chunks(keys):
            results.update(await caller.run(chunk, transform, now, cost))
        return [next(results[key]) for key in keys]

    def _deadline(self) -> float:
        return time.monotonic() + self.timeout_ms / 1000


def _chunks(keys: Sequence[str]) -> Iterator[dict[str, int]]:
    """The distinct keys with the number of times they occur, some at a time, in order."""
    counts: dict[str, int] = {}
    for key in keys:
        counts[key] = counts.get(key, 0) + 1
    items = list(counts.items())
    for start in range(0, len(items), _ABREAST):
        yield dict(items[start : start + _ABREAST])
