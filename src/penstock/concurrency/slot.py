"""A slot as a context manager, sync and async.

What the body does decides what is learned: left normally, the time it took is a sample; left by a
timeout, the request counts as dropped and the ceiling contracts; left by any other exception it
says nothing about the load, and nothing is learned. `drop()` makes any of them count as dropped.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from types import TracebackType
from typing import TYPE_CHECKING

from ..core.decision import Decision
from ..core.errors import RateLimitExceededError
from .leases import Lease

if TYPE_CHECKING:
    from .limiter import ConcurrencyLimiter

__all__ = ["Slot"]

# Three names for one thing from Python 3.11 on, three things before.
_TIMEOUTS = (TimeoutError, asyncio.TimeoutError, concurrent.futures.TimeoutError)


class Slot:
    """A slot held while the block runs. Raises `rate_limit_exceeded` on entry when none is free."""

    __slots__ = ("_dropped", "_key", "_lease", "_limiter")

    def __init__(self, limiter: ConcurrencyLimiter, key: str) -> None:
        self._limiter = limiter
        self._key = key
        self._lease: Lease | None = None
        self._dropped = False

    def drop(self) -> None:
        """Count this request as lost, however the block ends."""
        self._dropped = True

    def __enter__(self) -> Slot:
        self._enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._exit(error)

    async def __aenter__(self) -> Slot:
        self._enter()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._exit(error)

    def _enter(self) -> Decision:
        if self._lease is not None:
            raise RuntimeError("this slot is already open; ask the limiter for another")
        grant = self._limiter.hold(self._key)
        if grant.lease is None:
            raise RateLimitExceededError(
                f"no slot is free: {grant.decision.limit} may be in flight; "
                f"try again in {grant.decision.retry_after_ms} ms, or shed the request",
                grant.decision,
            )
        self._lease, self._dropped = grant.lease, False
        return grant.decision

    def _exit(self, error: BaseException | None) -> None:
        assert self._lease is not None
        lease_id, self._lease = self._lease.id, None
        if self._dropped or isinstance(error, _TIMEOUTS):
            self._limiter.release(lease_id, dropped=True)
        elif error is None:
            self._limiter.release(lease_id)
        else:
            self._limiter.withdraw(lease_id)
