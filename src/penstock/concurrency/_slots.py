"""What holds a slot: leases with their ids, and blocks of code.

A lease id is the id of its slot in the store, and names the limiter and the pool that the slot is
of, so that any process which shares the store can renew it or give it back. It also says when the
slot was taken. None of this can be made up: the id as a whole is what the store knows, and part of
it is random.

As a context manager, sync and async, a slot is held by a block. How the block ends decides what is
learned: left normally, the time it took is a sample; left by a timeout, the request counts as
dropped and the ceiling contracts; left by any other exception it says nothing about the load, and
nothing is learned. `drop()` makes any of them count as dropped.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from ..core._decision import Decision
from ..core._errors import RateLimitExceededError

if TYPE_CHECKING:
    from ._limiter import ConcurrencyLimiter


__all__ = ["LONGEST_ID", "LONGEST_POOL", "End", "Heartbeat", "LeaseId", "Slot", "SlotLease"]

LONGEST_POOL = 128
"""The name of a pool in bytes; what stands for a longer key has just as many."""

LONGEST_NAME = 64
"""The name of a limiter in bytes."""

LONGEST_ID = 320
"""A lease id in characters."""

_ID = re.compile(r"s[0-9a-f]{24}\.([0-9a-f]{1,12})\.([A-Za-z0-9_-]*)\.([A-Za-z0-9_-]*)")


class End(Enum):
    """How a slot came back, if not by itself."""

    RELEASED = "released"
    DROPPED = "dropped"
    WITHDRAWN = "withdrawn"


class LeaseId(NamedTuple):
    """What a lease id says: of which limiter and which of its pools the slot is, and when it was
    taken."""

    name: str
    pool: str
    granted_at: int

    def new(self) -> str:
        """An id that cannot be guessed: whoever knows it can give the slot back."""
        parts = f"s{os.urandom(12).hex()}", f"{self.granted_at:x}", *map(_coded, self[:2])
        return ".".join(parts)

    @classmethod
    def of(cls, lease_id: str) -> LeaseId | None:
        """None if it is no lease id."""
        found = _ID.fullmatch(lease_id)
        if found is None:
            return None
        try:
            return cls(_decoded(found[2]), _decoded(found[3]), int(found[1], 16))
        except ValueError:
            return None


def _coded(text: str) -> str:
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _decoded(text: str) -> str:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()


@dataclass(frozen=True, slots=True)
class SlotLease:
    """A slot that was taken at `granted_at` and is known by `id`. It runs out at `expires_at`,
    unless a heartbeat renews it."""

    id: str
    granted_at: int
    expires_at: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The answer to a heartbeat: `live_ids` are held on, `reclaimed_ids` are gone, and
    `next_deadline` is the instant by which the next heartbeat has to arrive; 0 if no lease is
    live."""

    live_ids: list[str]
    reclaimed_ids: list[str]
    next_deadline: int


# Three names for one thing from Python 3.11 on, three things before.
_TIMEOUTS = (TimeoutError, asyncio.TimeoutError, concurrent.futures.TimeoutError)


class Slot:
    """A slot held while the block runs. Raises `rate_limit_exceeded` on entry when none is free."""

    __slots__ = ("_dropped", "_key", "_lease", "_limiter")

    def __init__(self, limiter: ConcurrencyLimiter, key: str) -> None:
        self._limiter = limiter
        self._key = key
        self._lease: SlotLease | None = None
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
