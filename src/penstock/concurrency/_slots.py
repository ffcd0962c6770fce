"""Leases of slots: their ids, and the context manager that holds one.

A lease id is the id of the slot in the store. It contains the limiter, the pool and the instant at
which the slot was taken, so that any process that shares the store can renew it or give it back. It
cannot be forged: the store knows the id as a whole, and part of it is random.

As a context manager, sync and async, a slot is held during a block. If the block ends normally, its
duration is a sample for the ceiling; if it ends by a timeout, the request counts as dropped and
lowers the ceiling; any other exception says nothing about the load, and is no sample. `drop()`
makes the request count as dropped in any case.
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
from ..core._durations import wait_in_words
from ..core._errors import RateLimitExceededError
from ..core._owned import Owned
from ..core._validation import reject, shown

if TYPE_CHECKING:
    from ._limiter import ConcurrencyLimiter


__all__ = ["LONGEST_ID", "LONGEST_POOL", "End", "Heartbeat", "LeaseId", "Slot", "SlotLease"]

LONGEST_POOL = 128
"""The longest name of a pool, in bytes. A longer key is shortened to this by a digest."""

LONGEST_NAME = 64
"""The longest name of a limiter, in bytes."""

LONGEST_ID = 320
"""The longest lease id, in characters."""

_ID = re.compile(r"s[0-9a-f]{24}\.([0-9a-f]{1,12})\.([A-Za-z0-9_-]*)\.([A-Za-z0-9_-]*)")


class End(Enum):
    """How a slot was given back."""

    RELEASED = "released"
    DROPPED = "dropped"
    WITHDRAWN = "withdrawn"


class LeaseId(NamedTuple):
    """The parts of a lease id: the name of the limiter, the pool, and when the slot was taken."""

    name: str
    pool: str
    granted_at: int

    def new(self) -> str:
        """A new id with these parts. It cannot be guessed: whoever knows it can give the slot
        back."""
        parts = f"s{os.urandom(12).hex()}", f"{self.granted_at:x}", *map(_coded, self[:2])
        return ".".join(parts)

    @classmethod
    def of(cls, lease_id: str) -> LeaseId | None:
        """The parts of an id; None if it is not a lease id."""
        if not isinstance(lease_id, str):
            reject(f"lease_id must be the text of a lease's id, not {shown(lease_id)}")
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
    """The lease of a slot: taken at `granted_at`, and expires at `expires_at` unless a heartbeat
    renews it. `id` is what to release."""

    id: str
    granted_at: int
    expires_at: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The result of a heartbeat: `live_ids` were renewed, `reclaimed_ids` have expired, and
    `next_deadline` is the instant by which the next heartbeat has to arrive, 0 if no lease is
    live. `degraded` is the fail mode of a service whose store was away, so that it was not asked;
    else None."""

    live_ids: list[str]
    reclaimed_ids: list[str]
    next_deadline: int
    degraded: str | None = None


# One class with three names from Python 3.11 on, three classes before.
_TIMEOUTS = (TimeoutError, asyncio.TimeoutError, concurrent.futures.TimeoutError)


class Slot(Owned):
    """Holds a slot during a block. Raises `rate_limit_exceeded` on entry if none is free.
    It cannot be copied or pickled."""

    __slots__ = ("_dropped", "_key", "_lease", "_limiter")

    def __init__(self, limiter: ConcurrencyLimiter, key: str) -> None:
        self._limiter = limiter
        self._key = key
        self._lease: SlotLease | None = None
        self._dropped = False

    def drop(self) -> None:
        """Count this request as dropped, however the block ends."""
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
            raise RuntimeError("this Slot is in use; call limiter.slot() for another one")
        grant = self._limiter.hold(self._key)
        if grant.lease is None:
            raise RateLimitExceededError(
                f"no slot is free: {grant.decision.limit} may be in flight; "
                f"retry after {wait_in_words(grant.decision.retry_after_ms, exact=True)}, "
                "or shed the request",
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
