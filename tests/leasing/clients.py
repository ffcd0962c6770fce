"""A LeasedLimiter and the service behind it, for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import Decision
from penstock.leasing import LeasedLimiter
from tests.leasing.server import InProcessServer
from tests.service.worlds import FragileStore

MINUTE = 60_000


class CountingStore(FragileStore):
    """Counts what reaches the service's store."""

    def __init__(self) -> None:
        super().__init__()
        self.leases: list[int] = []

        # Called after a lease was decided, with the key.
        self.then: Callable[[str], None] | None = None

    async def aapply(self, key: str, transform: Any, now: int, cost: int) -> Any:
        if transform.role == "lease":
            self.leases.append(cost)
        result = await super().aapply(key, transform, now, cost)
        if transform.role == "lease" and self.then is not None:
            self.then(key)
        return result


async def _sync(limiter: LeasedLimiter, *args: Any, **kwargs: Any) -> Decision:
    return limiter.check(*args, **kwargs)


async def _async(limiter: LeasedLimiter, *args: Any, **kwargs: Any) -> Decision:
    return await limiter.acheck(*args, **kwargs)


each_mode = pytest.mark.parametrize("check", [_sync, _async], ids=["sync", "async"])


def client(server: InProcessServer, node: Any, **options: Any) -> LeasedLimiter:
    options = {"policy": "api", "batch": 20, "low_water": 0, "fail": "error", **options}
    return LeasedLimiter(server.target, clock=node, timeout_ms=5_000, **options)
