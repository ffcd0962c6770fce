"""What the tests of the service share: stores that fail on demand, and a service on one."""

from __future__ import annotations

from typing import Any, TypeVar

from penstock import ManualClock, MemoryStore, Store, StoreUnavailableError
from penstock.config import PolicyFile, parse_policies
from penstock.core._transform import Transform
from penstock.service import Service, build_service

R = TypeVar("R")

NOW = 1_700_000_040_000  # on the minute

FILE = """
version: 1
limiters:
  api: {strategy: fixedWindow, limit: 3, window: 1m}
  strict: {strategy: fixedWindow, limit: 3, window: 1m, fail: closed}
  honest: {strategy: fixedWindow, limit: 3, window: 1m, fail: error}
  llm: {tokenBudget: {budget: 100, window: 1m}}
  slots: {concurrency: {minLimit: 2, maxLimit: 2}}
  all:
    strategy: fixedWindow
    limit: 3
    window: 1m
    concurrency: {minLimit: 2, maxLimit: 2}
    tokenBudget: {budget: 100, window: 1m}
  all-strict:
    strategy: fixedWindow
    limit: 3
    window: 1m
    fail: closed
    concurrency: {minLimit: 2, maxLimit: 2}
  all-honest:
    strategy: fixedWindow
    limit: 3
    window: 1m
    fail: error
    concurrency: {minLimit: 2, maxLimit: 2}
"""


class FragileStore(Store):
    """A MemoryStore, but not one by type, that fails while `error` is set."""

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.error: Exception | None = None
        self.closed = 0

    async def aapply(self, key: str, transform: Transform[R], now: int, cost: int) -> R:
        if self.error is not None:
            raise self.error
        return await self.inner.aapply(key, transform, now, cost)

    async def aclose(self) -> None:
        self.closed += 1


AWAY = StoreUnavailableError("no reply from 10.0.0.1:6379 in time")


def policies(text: str = FILE) -> PolicyFile:
    return parse_policies(text, "penstock.yaml")


def service_on(store: Store | None = None, **options: Any) -> tuple[Service, ManualClock]:
    """A service for the policies above, on a clock that is moved by hand."""
    clock = ManualClock(NOW)
    options.setdefault("config", policies())
    return build_service(store=store, clock=clock, **options), clock
