"""SlotLeases: who holds slots, and until when.

A slot that is held from outside the process comes back when its holder says so, or when its lease
has run out: a holder that died says nothing. A heartbeat renews a lease; ending one twice is the
same as once. A slot held within the process needs no deadline and has none.

One table may serve several limiters, so that a lease is found by its id alone. Its lock guards the
limiters' counts as well: granting, ending and reclaiming are one step for everyone.

A slot as a context manager, sync and async.

What the body does decides what is learned: left normally, the time it took is a sample; left by a
timeout, the request counts as dropped and the ceiling contracts; left by any other exception it
says nothing about the load, and nothing is learned. `drop()` makes any of them count as dropped.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import secrets
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from heapq import heapify, heappop, heappush
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from ..core._decision import Decision
from ..core._errors import RateLimitExceededError

if TYPE_CHECKING:
    from ._limiter import ConcurrencyLimiter


__all__ = ["End", "Heartbeat", "Slot", "SlotLease", "SlotLeases"]


_SPARE = 64


class End(Enum):
    """How a lease came to its end."""

    RELEASED = "released"
    DROPPED = "dropped"
    RECLAIMED = "reclaimed"
    WITHDRAWN = "withdrawn"


class Holder(Protocol):
    """Where slots come from; told, under the table's lock, how each of its leases ended."""

    def ended(self, lease: SlotLease, now: int, how: End) -> None: ...


@dataclass(slots=True)
class SlotLease:
    """A slot of `holder`, taken at `granted_at` and known by `id`.

    `key` is what the holder remembers the key by. It runs out at `expires_at`, which each heartbeat
    moves to `ttl_ms` from then; without a `ttl_ms` it has no deadline.
    """

    id: str
    holder: Holder
    key: str | bytes
    granted_at: int
    ttl_ms: int | None
    expires_at: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The answer to a heartbeat: `live_ids` are held on, `reclaimed_ids` are gone, and
    `next_deadline` is the instant by which the next heartbeat has to arrive; 0 if no lease is
    live."""

    live_ids: list[str]
    reclaimed_ids: list[str]
    next_deadline: int


class SlotLeases:
    """All leases that are held, by id and by deadline."""

    def __init__(self) -> None:
        self.lock: threading.RLock = threading.RLock()
        self._held: dict[str, SlotLease] = {}
        # Deadlines, some of them stale: a lease that was renewed or ended is noticed when its old
        # deadline comes up.
        self._due: list[tuple[int, str]] = []

    def grant(self, holder: Holder, key: str | bytes, now: int, ttl_ms: int | None) -> SlotLease:
        """A new lease, under an id that cannot be guessed."""
        with self.lock:
            # Who knows the id can end the lease, so it must not be guessed.
            lease_id = secrets.token_urlsafe(16)
            expires_at = 0 if ttl_ms is None else now + ttl_ms
            lease = SlotLease(lease_id, holder, key, now, ttl_ms, expires_at)
            self._held[lease_id] = lease
            if ttl_ms is not None:
                heappush(self._due, (expires_at, lease_id))
                self._tidy()
            return lease

    def end(self, lease_id: str, now: int, how: End) -> bool:
        """End a lease and tell its holder; False if it is not, or no longer, held."""
        with self.lock:
            self.reclaim(now)
            lease = self._held.pop(lease_id, None)
            if lease is None:
                return False
            lease.holder.ended(lease, now, how)
            return True

    def renew(self, lease_ids: Iterable[str], now: int) -> Heartbeat:
        """Move deadlines to a full term from `now`. What has run out by now is reclaimed first."""
        live: dict[str, int] = {}
        gone: list[str] = []
        with self.lock:
            self.reclaim(now)
            for lease_id in dict.fromkeys(lease_ids):
                lease = self._held.get(lease_id)
                if lease is None:
                    gone.append(lease_id)
                    continue
                if lease.ttl_ms is not None:
                    # Never earlier than promised, not even when the clock went back.
                    lease.expires_at = max(lease.expires_at, now + lease.ttl_ms)
                live[lease_id] = lease.expires_at
        return Heartbeat(list(live), gone, min(filter(None, live.values()), default=0))

    def reclaim(self, now: int) -> int:
        """End every lease whose deadline has come, and tell its holder. Returns how many."""
        count = 0
        with self.lock:
            while self._due and self._due[0][0] <= now:
                _, lease_id = heappop(self._due)
                lease = self._held.get(lease_id)
                if lease is None:
                    continue
                if lease.expires_at > now:
                    heappush(self._due, (lease.expires_at, lease_id))
                    continue
                del self._held[lease_id]
                lease.holder.ended(lease, now, End.RECLAIMED)
                count += 1
        return count

    def next_deadline(self) -> int | None:
        """No lease runs out before this instant; None if none ever will."""
        with self.lock:
            return self._due[0][0] if self._due else None

    def __len__(self) -> int:
        return len(self._held)

    def _tidy(self) -> None:
        """Drop the deadlines of ended leases once they outnumber the others."""
        if len(self._due) > 2 * len(self._held) + _SPARE:
            self._due = [due for due in self._due if due[1] in self._held]
            heapify(self._due)


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
