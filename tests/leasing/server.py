"""A service with federated policies behind an open Fleet server, on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock import ManualClock
from penstock.config import parse_policies
from penstock.service import build_service
from penstock.service.grpc import open_grpc

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


class InProcessServer:
    """`port` is where it listens; `close` and `reopen` are for those who lean on it."""

    def __init__(self, store: Any, clock: Any, **options: Any) -> None:
        self.store, self.clock, self.options = store, clock, options
        self.port = 0
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.open()

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def open(self) -> None:
        self.run(self._open())

    def close(self) -> None:
        self.run(self._close())

    def end(self) -> None:
        self.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)

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
    server = InProcessServer(store, ManualClock(START) if clock is None else clock, **options)
    try:
        yield server
    finally:
        server.end()
