"""`CasStore`, the base of compare-and-swap stores: a backend adds `serve` and `aserve`, the I/O."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, TypeVar

from ..._queueing import Queues
from ..._queueing.fork import ForkAware, watch_forks
from ...core._steps import Step, looked_at
from ...core._store import Store
from ...core._transform import Transform
from ...core._validation import reject, require_int
from .._sheet import Call
from ._callers import SEVERAL, AsyncCaller, KeyQueue, SyncCaller
from ._memory import RaceMemory
from ._requests import AnyRequest

__all__ = ["CasStore"]


R = TypeVar("R")

_AT_ONCE = 32
"""How many distinct keys of one call are worked on at once."""


class CasStore(Store, ForkAware):
    """A store whose backend compares and swaps.

    A call that takes longer than `timeout_ms`, including waiting in queues, raises
    `store_unavailable`. A call of many keys works on up to 32 at once, and has that time for all
    of them.
    """

    max_record_bytes: ClassVar[int] = 2**20
    """The largest record that the backend takes."""

    most_keys_at_once: int = 0
    """How many keys the backend reads at one instant, and writes all or none of; 0 if it cannot,
    or could write only one."""

    compares: ClassVar[bool] = True
    """Whether a write is refused when its key has changed. Without that, nothing may be
    remembered."""

    def __init__(self, timeout_ms: int) -> None:
        self.timeout_ms: int = require_int("timeout_ms", timeout_ms, high=3_600_000)
        self._begin()
        watch_forks(self)

    def _begin(self) -> None:
        self.queues: Queues[KeyQueue] = Queues(KeyQueue)
        self.memory: RaceMemory = RaceMemory() if self.compares else RaceMemory(0)

    @abstractmethod
    def serve(self, requests: Sequence[AnyRequest], deadline: float) -> list[Any]:
        """Answer each request, or return its exception: a ConnectionFailedError if the backend
        could not be reached or did not answer. ReadAll and SwapAll are only for backends with
        `most_keys_at_once`."""

    @abstractmethod
    async def aserve(self, requests: Sequence[AnyRequest], deadline: float) -> list[Any]:
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
        deadline = self._deadline()
        caller = SyncCaller(self, deadline)
        for chunk in _chunks(keys):
            results.update(caller.run(_calls(chunk, transform, now, cost, deadline)))
        return [next(results[key]) for key in keys]

    async def aapply_many(
        self, keys: Sequence[str], transform: Transform[R], now: int, cost: int
    ) -> list[R]:
        await self._aprepare()
        results: dict[str, Iterator[R]] = {}
        deadline = self._deadline()
        caller = AsyncCaller(self, deadline)
        for chunk in _chunks(keys):
            results.update(await caller.run(_calls(chunk, transform, now, cost, deadline)))
        return [next(results[key]) for key in keys]

    def apply_all(self, steps: Sequence[Step], now: int) -> list[Any]:
        queue = self._queue_for(steps)
        if queue is None:
            return super().apply_all(steps, now)
        self._prepare()
        deadline = self._deadline()
        call = Call(looked_at(steps), now, deadline, is_whole=True)
        return list(SyncCaller(self, deadline).run({queue: call})[queue])

    async def aapply_all(self, steps: Sequence[Step], now: int) -> list[Any]:
        queue = self._queue_for(steps)
        if queue is None:
            return await super().aapply_all(steps, now)
        await self._aprepare()
        deadline = self._deadline()
        call = Call(looked_at(steps), now, deadline, is_whole=True)
        return list((await AsyncCaller(self, deadline).run({queue: call}))[queue])

    def is_atomic(self, lead: str) -> bool:
        return self.most_keys_at_once > 0

    def _queue_for(self, steps: Sequence[Step]) -> str | None:
        """Where steps wait that are one decision; None, if they cannot be written as one."""
        keys = {step[0] for step in steps}
        if len(keys) == 1 and self.compares:
            return keys.pop()
        if not self.most_keys_at_once or not keys:
            return None
        if len(keys) > self.most_keys_at_once:
            reject(
                f"{type(self).__name__} decides on at most {self.most_keys_at_once} keys at once, "
                f"not {len(keys)}"
            )
        return SEVERAL

    def _deadline(self) -> float:
        return time.monotonic() + self.timeout_ms / 1000


def _calls(
    counts: dict[str, int], transform: Transform[Any], now: int, cost: int, deadline: float
) -> dict[str, Call]:
    return {
        key: Call([(key, transform, cost, False)] * count, now, deadline)
        for key, count in counts.items()
    }


def _chunks(keys: Sequence[str]) -> Iterator[dict[str, int]]:
    """The distinct keys with the number of times they occur, some at a time, in order."""
    counts: dict[str, int] = {}
    for key in keys:
        counts[key] = counts.get(key, 0) + 1
    items = list(counts.items())
    for start in range(0, len(items), _AT_ONCE):
        yield dict(items[start : start + _AT_ONCE])
