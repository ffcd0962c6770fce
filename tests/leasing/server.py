"""A service with federated policies behind an open Fleet server, on a thread of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from penstock import ManualClock
from penstock.config import parse_policies
from penstock.service import build_service
from penstock.service.grpc import open_grpc
from tests.support.loops import LoopThread

START = 1_700_000_040_000  # on the minute

POLICIES = """
version: 1
limiters:
  api: {strategy: fixedWindow, limit: 100, window: 1m, federated: {batch: 50}}
  closed: {strategy: fixedWindow, limit: 100, window: 1m, fail: closed, federated: {batch: 50}}
  honest: {strategy: fixedWindow, limit: 100, window: 1m, fail: error, federated: {batch: 50}}
  sliding: {strategy: slidingWindowLog, limit: 100, window: 1m, federated: {batch: 50}}
  tokens: {tokenBudget: {budget: 1000, window: 1m}, federated: {batch: 200}}
  plain: {strategy: fixedWindow, limit: 100, window: 1m}
  short: {strategy: fixedWindow, limit: 40, window: 250ms, federated: {batch: 10}}
"""


class InProcessServer(LoopThread):
    """`port` is where it listens; `close` and `open` let it go away and come back."""

    def __init__(self, store: Any, clock: Any, **options: Any) -> None:
        self.store, self.clock, self.options = store, clock, options
        self.port = 0

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def open(self) -> None:
        self.run(self._open())

    def close(self) -> None:
        self.run(self._close())

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        await self._open()
        yield
        await self._close()

    async def _open(self) -> None:
        file = parse_policies(POLICIES, "penstock.yaml")
        self.service = build_service(file, store=self.store, clock=self.clock)
        await self.service.start()
        self.server: Any = await open_grpc(self.service, port=self.port, **self.options)
        self.port = self.server.port

    async def _close(self) -> None:
        if self.server is not None:
            await self.server.drain(0)
            await self.service.aclose()
            self.server = None


@contextmanager
def opened(store: Any = None, clock: Any = None, **options: Any) -> Iterator[InProcessServer]:
    with InProcessServer(
        store, ManualClock(START) if clock is None else clock, **options
    ) as server:
        yield server
