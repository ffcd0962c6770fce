"""A service for these tests, with its HTTP and its gRPC server, in a thread of this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock import ManualClock, Store
from penstock.config import parse_policies
from penstock.service import build_service
from penstock.service.grpc import open_grpc
from penstock.service.http import Bounds, HttpServer
from tests.service.several import FILE
from tests.support.helpers import NOW
from tests.support.loops import LoopThread

TOKEN = "a-token-of-operators"
POLICIES = f"""{FILE}
  paced: {{strategy: gcra, limit: 1, period: 50ms, burst: 1}}
  flight:
    concurrency: {{minLimit: 1, maxLimit: 1, leaseTtl: 2s}}
  handed: {{strategy: fixedWindow, limit: 1000, window: 1d, federated: {{batch: 200}}}}
  paired:
    limits:
      first: {{by: key, strategy: fixedWindow, limit: 10, window: 1m}}
      second: {{by: key, strategy: fixedWindow, limit: 10, window: 1m}}
  words: {{tokenBudget: {{budget: 100, windowMs: 60000}}}}
"""
TRANSPORTS = ("http", "grpc")


class RunningService(LoopThread):
    """`url("http")` and `url("grpc")` are where it listens."""

    def __init__(
        self,
        clock: ManualClock | None = None,
        store: Store | None = None,
        fail: str = "open",
        *,
        policies: str = POLICIES,
        token: str | None = TOKEN,
    ) -> None:
        self.clock = clock
        self._policies = policies
        self._token = token
        self._store = store
        self._fail = fail
        self._ports: dict[str, int] = {}

    def url(self, transport: str) -> str:
        return f"{transport}://127.0.0.1:{self._ports[transport]}"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        service = build_service(
            parse_policies(self._policies, "test"),
            clock=self.clock,
            store=self._store,
            fail=self._fail,
        )
        await service.start()
        http = HttpServer(service, bounds=Bounds(linger_s=0.3), token=self._token)
        self._ports["http"] = await http.start("127.0.0.1", 0)
        grpc = await open_grpc(service, port=0, token=self._token)
        self._ports["grpc"] = grpc.port
        yield
        await http.stop()
        await grpc.drain(1)
        await service.aclose()


def still() -> RunningService:
    """One whose clock only moves when it is told to."""
    return RunningService(ManualClock(NOW))
