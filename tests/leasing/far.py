"""Far tiers for the tests: a store that counts, waits, fails and can be told to."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from penstock import ManualClock, MemoryStore, Store, StoreUnavailableError, Transform
from penstock.core._transform import Grant

NOW = 1_700_000_000_000


class FarStore(Store):
    """A MemoryStore with a clock of its own, as a server has, that can be held up or broken."""

    reads_own_clock = True

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock(NOW)
        self.inner = MemoryStore()
        self.grants: list[tuple[str, Grant]] = []
        self.calls: list[tuple[str, str, int]] = []
        self.busy: dict[str, int] = {}
        self.most_at_once = 0
        self.broken = False
        self.gate = threading.Event()
        self.gate.set()
        self.agate: asyncio.Event | None = None
        self.arrived = threading.Event()

    def apply(self, key: str, transform: Transform[Any], now: int, cost: int) -> Any:
        self._begin(key, transform, cost)
        try:
            assert self.gate.wait(20)
            return self._answer(key, transform, cost)
        finally:
            self.busy[key] -= 1

    async def aapply(self, key: str, transform: Transform[Any], now: int, cost: int) -> Any:
        self._begin(key, transform, cost)
        try:
            if self.agate is not None:
                await self.agate.wait()
            else:
                await asyncio.sleep(0)
            return self._answer(key, transform, cost)
        finally:
            self.busy[key] -= 1

    def reset(self, key: str) -> None:
        self.inner.reset(key)

    async def areset(self, key: str) -> None:
        self.inner.reset(key)

    @property
    def leases(self) -> int:
        """How often the store was asked."""
        return len(self.calls)

    def _begin(self, key: str, transform: Transform[Any], cost: int) -> None:
        self.calls.append((key, transform.role, cost))
        self.busy[key] = self.busy.get(key, 0) + 1
        self.most_at_once = max(self.most_at_once, self.busy[key])
        self.arrived.set()

    def _answer(self, key: str, transform: Transform[Any], cost: int) -> Any:
        if self.broken:
            raise StoreUnavailableError("the store is away")
        result = self.inner.apply(key, transform, self.clock.now(), cost)
        if isinstance(result, Grant):
            self.grants.append((key, result))
        return result


class ServerClock:
    """A store's clock that runs with a node's, some ms apart."""

    def __init__(self, clock: ManualClock, offset_ms: int) -> None:
        self._clock = clock
        self._offset_ms = offset_ms

    def now(self) -> int:
        return self._clock.now() + self._offset_ms
