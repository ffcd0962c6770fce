"""ConcurrencyLimiter: so many slots and no more, the number following the latency.

It never queues. A request that finds no slot is told so at once, with a guess of when to come
back: a queue in front of a ceiling that is inferred from latency would hide what it is inferred
from. Expired leases are reclaimed before every grant, so a slot whose holder died is there for the
next request from its deadline on, whether or not anybody sweeps.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from ..core._clock import Clock, SystemClock
from ..core._decision import Decision
from ..core._errors import UnsupportedError
from ..core._validation import MAX_SPAN_MS, kept_key, require_int, require_key
from ._laws import Ceiling, Gradient, Law
from ._slots import End, Heartbeat, Slot, SlotLease, SlotLeases

__all__ = ["LEASE_TTL_MS", "ConcurrencyLimiter", "SlotGrant"]


LEASE_TTL_MS = 2_000


@dataclass(frozen=True, slots=True)
class SlotGrant:
    """The answer to a request for a slot: a `lease` exactly when the `decision` allows it."""

    decision: Decision
    lease: SlotLease | None


class _Pool:
    """Slots under one ceiling."""

    __slots__ = ("ceiling", "in_flight", "rtt_ms")

    def __init__(self, law: Law) -> None:
        self.ceiling = Ceiling(law)
        self.in_flight = 0
        self.rtt_ms: int | None = None


class ConcurrencyLimiter:
    """Hands out slots under leases. Safe to share between threads and tasks.

    All keys share one pool of slots, or with `per_key` each has its own, of which `max_keys` are
    remembered. A lease ends by `release`, or `lease_ttl_ms` after it was granted or last renewed by
    a heartbeat. Limiters that share a `leases` table find each other's leases.
    """

    def __init__(
        self,
        law: Law | None = None,
        *,
        lease_ttl_ms: int = LEASE_TTL_MS,
        per_key: bool = False,
        max_keys: int = 10_000,
        clock: Clock | None = None,
        leases: SlotLeases | None = None,
    ) -> None:
        self.law: Law = Gradient() if law is None else law
        self.lease_ttl_ms: int = require_int("lease_ttl_ms", lease_ttl_ms, high=MAX_SPAN_MS)
        self.per_key = per_key
        self.max_keys: int = require_int("max_keys", max_keys, high=2**31 - 1)
        self.clock: Clock = SystemClock() if clock is None else clock
        self.leases: SlotLeases = SlotLeases() if leases is None else leases
        self._lock = self.leases.lock
        self._busy: dict[str | bytes, _Pool] = {}
        self._idle: OrderedDict[str | bytes, _Pool] = OrderedDict()
        self._reclaimed = 0

    @property
    def limit(self) -> int:
        """The ceiling as it stands. With `per_key`, the highest that any key has."""
        with self._lock:
            pools = (*self._busy.values(), *self._idle.values())
            return max((pool.ceiling.limit for pool in pools), default=Ceiling(self.law).limit)

    @property
    def in_flight(self) -> int:
        """How many slots are taken, over all keys."""
        with self._lock:
            return sum(pool.in_flight for pool in self._busy.values())

    @property
    def reclaimed(self) -> int:
        """How many slots were taken back so far, from holders whose lease had run out."""
        return self._reclaimed

    def admit(self, key: str = "") -> SlotGrant:
        """Take a slot under a lease, if one is free."""
        return self._take(key, self.lease_ttl_ms)

    def hold(self, key: str = "") -> SlotGrant:
        """As `admit`, but without a deadline: for holders within this process."""
        return self._take(key, None)

    def slot(self, key: str = "") -> Slot:
        """A context manager, for `with` and `async with`, that holds a slot while it is open."""
        return Slot(self, key)

    def release(self, lease_id: str, dropped: bool = False) -> bool:
        """Give the slot of a lease back. `dropped` says that the request was lost, to a timeout
        or an overload, and contracts the ceiling; else the time it took is a sample. Idempotent:
        False if there was nothing to give back."""
        how = End.DROPPED if dropped else End.RELEASED
        return self.leases.end(lease_id, self.clock.now(), how)

    def withdraw(self, lease_id: str) -> bool:
        """Give the slot back as if it had never been taken: nothing is learned from it."""
        return self.leases.end(lease_id, self.clock.now(), End.WITHDRAWN)

    def heartbeat(self, lease_ids: Iterable[str]) -> Heartbeat:
        """Renew leases."""
        return self.leases.renew(lease_ids, self.clock.now())

    def sweep(self) -> int:
        """Reclaim the leases that have run out; returns how many."""
        return self.leases.reclaim(self.clock.now())

    def ended(self, lease: SlotLease, now: int, how: End) -> None:
        """For the table of leases: one of ours came to its end."""
        pool = self._busy[lease.key]
        if how is End.RELEASED:
            pool.rtt_ms = max(1, now - lease.granted_at)
            pool.ceiling.sample(pool.rtt_ms, pool.in_flight)
        elif how is not End.WITHDRAWN:
            pool.ceiling.drop()
        if how is End.RECLAIMED:
            self._reclaimed += 1
        pool.in_flight -= 1
        if not pool.in_flight:
            self._idle[lease.key] = self._busy.pop(lease.key)

    def __reduce__(self) -> NoReturn:
        raise UnsupportedError(
            "a ConcurrencyLimiter cannot be pickled or copied: its slots are counted in this "
            "process; make one in the other, or ask a service for slots"
        )

    def __repr__(self) -> str:
        return f"<ConcurrencyLimiter {self.in_flight}/{self.limit} under {self.law!r}>"

    def _take(self, key: str, ttl_ms: int | None) -> SlotGrant:
        name = kept_key(require_key(key)) if self.per_key else ""
        with self._lock:
            now = self.clock.now()
            self.leases.reclaim(now)
            pool = self._pool(name)
            if pool is None:
                retry = self.lease_ttl_ms
                return SlotGrant(Decision(False, self.law.max_limit, 0, now + retry, retry), None)
            limit = pool.ceiling.limit
            free = max(0, limit - pool.in_flight)
            if not free:
                retry = self._retry_ms(pool, now)
                return SlotGrant(Decision(False, limit, free, now + retry, retry), None)
            lease = self.leases.grant(self, name, now, ttl_ms)
            pool.in_flight += 1
            self._idle.pop(name, None)
            self._busy[name] = pool
            return SlotGrant(Decision(True, limit, free - 1, max(now, lease.expires_at), 0), lease)

    def _pool(self, name: str | bytes) -> _Pool | None:
        """The pool of a key; None if no more can be remembered, because all are in use."""
        pool = self._busy.get(name) or self._idle.get(name)
        if pool is None:
            if len(self._busy) >= self.max_keys:
                return None
            if len(self._busy) + len(self._idle) >= self.max_keys:
                self._idle.popitem(last=False)
            pool = self._idle[name] = _Pool(self.law)
        return pool

    def _retry_ms(self, pool: _Pool, now: int) -> int:
        """When a slot may be free: after as long as the last request took, or at the next
        deadline of a lease, whichever comes first."""
        deadline = self.leases.next_deadline()
        guess = self.lease_ttl_ms if pool.rtt_ms is None else pool.rtt_ms
        if deadline is not None:
            guess = min(guess, deadline - now)
        return max(1, guess)
