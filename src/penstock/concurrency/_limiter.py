"""`ConcurrencyLimiter`: a limited number of slots, under a ceiling inferred from latency.

The slots are those of the strategy `slots`, in a store of this process by default. Processes that
share a store share the pool of slots. Each infers its ceiling from its own requests, and applies it
to the whole pool: it takes a slot if fewer than its ceiling are held, by all processes together.

Requests do not queue. Without a free slot a request is denied at once, with an estimate of when to
retry: a queue in front of the ceiling would hide the latency that the ceiling is inferred from. The
slot of a holder that died is free from its deadline on. It is counted as lost by a sweep, of one of
the processes that share the pool.

The calls to the store are flows of `SlotRequest`, written once for sync and async callers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

from ..core._clock import Clock, SystemClock, require_clock
from ..core._decision import Decision
from ..core._errors import UnsupportedError
from ..core._flow import Flow, adrive, drive
from ..core._limiter import clock_reader
from ..core._steps import PoolRenewals, Step
from ..core._store import Store, require_store
from ..core._transform import looking, reclaiming, releasing, taking, telling
from ..core._validation import (
    MAX_SPAN_MS,
    reject,
    require_flag,
    require_int,
    require_key,
    require_prefix,
    shown,
)
from ..core._waiting import MAX_SLOT_WAIT_MS
from ..stores.cas._requests import fit
from ..stores.memory import MemoryStore
from ..strategies import Slots, slots
from ..strategies._slots import MAX_SLOTS
from ._ceilings import Gradient, Law, SlotPool, SlotPools
from ._slots import (
    LONGEST_NAME,
    LONGEST_POOL,
    End,
    Heartbeat,
    LeaseId,
    Slot,
    SlotLease,
)

__all__ = ["LEASE_TTL_MS", "ConcurrencyLimiter", "SlotAttempt", "SlotGrant", "SlotRequest"]


LEASE_TTL_MS = 2_000

# Pools that one call to the store sweeps.
_SWEPT_AT_ONCE = 100

_slots_of = lru_cache(maxsize=1024)(slots)


@dataclass(frozen=True, slots=True)
class SlotGrant:
    """The result of asking for a slot: a `lease` exactly if the `decision` is allowed."""

    decision: Decision
    lease: SlotLease | None


class SlotRequest(NamedTuple):
    """A request of a flow: apply steps to a store at an instant. The answer is their results."""

    store: Store
    steps: Sequence[Step]
    at: int

    def now(self) -> list[Any]:
        """Ask with a sync call."""
        return self.store.apply_all(self.steps, self.at)

    async def later(self) -> list[Any]:
        """The awaitable twin of `now`."""
        return await self.store.aapply_all(self.steps, self.at)


class SlotAttempt(NamedTuple):
    """A slot to ask for: its pool, its id, the `step` that takes it, and its ttl."""

    pool: str
    id: str
    step: Step
    ttl_ms: int


class ConcurrencyLimiter:
    """Grants slots under leases. Safe to share between threads and tasks.

    All keys share one pool of slots; with `per_key` each key has a pool of its own, at most
    `max_keys` of them. A lease ends by `release`, or `lease_ttl_ms` after it was granted or last
    renewed by a heartbeat. Limiters with the same `prefix` on a `store` share their pools, across
    processes, even with different laws. `name` is part of each lease id, to tell the leases of
    several limiters apart.
    """

    def __init__(
        self,
        law: Law | None = None,
        *,
        lease_ttl_ms: int = LEASE_TTL_MS,
        per_key: bool = False,
        max_keys: int = 10_000,
        clock: Clock | None = None,
        store: Store | None = None,
        prefix: str = "slots",
        name: str = "",
    ) -> None:
        self.law: Law = Gradient() if law is None else _require_law(law)
        self.lease_ttl_ms: int = require_int("lease_ttl_ms", lease_ttl_ms, high=MAX_SPAN_MS)
        self.per_key: bool = require_flag("per_key", per_key)
        self.max_keys: int = require_int("max_keys", max_keys, high=2**31 - 1)
        self.store: Store = MemoryStore(clock=clock) if store is None else require_store(store)
        self.store.require_clock(clock)
        self.clock: Clock = SystemClock() if clock is None else require_clock(clock)
        self.prefix: str = require_key(require_prefix(prefix))
        if not isinstance(name, str) or len(name.encode()) > LONGEST_NAME:
            reject(f"name must be text of at most {LONGEST_NAME} bytes")
        self.name = name
        self._now = clock_reader(self.clock)
        # The store's clock minus the clock of this process.
        self._ahead_ms = 0
        # For the operations that do not depend on the ceiling.
        self._slots: Slots = slots(MAX_SLOTS, self.lease_ttl_ms)
        self._lock = threading.RLock()
        self._pools = SlotPools(self.law, self.max_keys)
        self._reclaimed = 0
        if not per_key and (pool := self._pools.get("")) is not None:
            # Other processes may already hold slots: read the pool soon.
            self._pools.expect(pool, 0)

    @property
    def limit(self) -> int:
        """The current ceiling. With `per_key`, the highest of all keys."""
        with self._lock:
            return self._pools.limit

    @property
    def in_flight(self) -> int:
        """How many slots are held, over all keys; in a shared store, when it was last read."""
        if self.store.answers_at_once:
            with self._lock:
                busy = self._pools.busy()
            drive(self._sweeping(busy), SlotRequest.now)
        with self._lock:
            return self._pools.in_flight

    @property
    def reclaimed(self) -> int:
        """How many slots with an expired lease this limiter has counted so far."""
        if self.store.answers_at_once:
            self.sweep()
        return self._reclaimed

    def admit(self, key: str = "") -> SlotGrant:
        """Take a slot under a lease, if one is free."""
        return drive(self._admission(key, self.lease_ttl_ms), SlotRequest.now)

    async def aadmit(self, key: str = "") -> SlotGrant:
        """The awaitable twin of `admit`."""
        return await adrive(self._admission(key, self.lease_ttl_ms), SlotRequest.later)

    def hold(self, key: str = "") -> SlotGrant:
        """As `admit`, but without a deadline: for holders within this process."""
        if not self.store.answers_at_once:
            raise UnsupportedError(
                "slots in a shared store need a deadline, in case this process dies; use admit() "
                "and heartbeat(), or slots(...) in Limits"
            )
        return drive(self._admission(key, MAX_SPAN_MS), SlotRequest.now)

    def slot(self, key: str = "") -> Slot:
        """A context manager, sync and async, that holds a slot during the block. Only for a pool in
        this process."""
        return Slot(self, key)

    def release(self, lease_id: str, dropped: bool = False) -> bool:
        """Give the slot of a lease back. `dropped` says that the request failed by a timeout or an
        overload, and lowers the ceiling; otherwise its duration is a sample. Idempotent: returns
        False if the slot was not held any more."""
        how = End.DROPPED if dropped else End.RELEASED
        return drive(self.giving_back(lease_id, how), SlotRequest.now)

    async def arelease(self, lease_id: str, dropped: bool = False) -> bool:
        """The awaitable twin of `release`."""
        how = End.DROPPED if dropped else End.RELEASED
        return await adrive(self.giving_back(lease_id, how), SlotRequest.later)

    def withdraw(self, lease_id: str) -> bool:
        """Give the slot back without a sample for the ceiling."""
        return drive(self.giving_back(lease_id, End.WITHDRAWN), SlotRequest.now)

    async def awithdraw(self, lease_id: str) -> bool:
        """The awaitable twin of `withdraw`."""
        return await adrive(self.giving_back(lease_id, End.WITHDRAWN), SlotRequest.later)

    def heartbeat(self, lease_ids: Iterable[str]) -> Heartbeat:
        """Renew leases, in one call to the store."""
        return drive(self._beat(lease_ids), SlotRequest.now)

    async def aheartbeat(self, lease_ids: Iterable[str]) -> Heartbeat:
        """The awaitable twin of `heartbeat`."""
        return await adrive(self._beat(lease_ids), SlotRequest.later)

    def sweep(self) -> int:
        """Count the leases that have expired, and lower the ceilings accordingly. Returns how
        many."""
        return drive(self._sweeping(self._overdue()), SlotRequest.now)

    async def asweep(self) -> int:
        """The awaitable twin of `sweep`."""
        return await adrive(self._sweeping(self._overdue()), SlotRequest.later)

    # The parts of an admission, for callers that ask the store for more than a slot in one call.

    def attempt(self, key: str = "", ttl_ms: int | None = None) -> SlotAttempt | SlotGrant:
        """How to take a slot; a denial if `max_keys` other pools are in use."""
        name = fit(require_key(key), LONGEST_POOL) if self.per_key else ""
        if not isinstance(key, str):
            require_key(key)
        if self.store.answers_at_once and self.is_due:
            self.sweep()
        ttl_ms = self.lease_ttl_ms if ttl_ms is None else ttl_ms
        with self._lock:
            pool = self._pools.get(name)
            now = self._store_now()
            if pool is None:
                retry = min(self.lease_ttl_ms, MAX_SLOT_WAIT_MS)
                return SlotGrant(Decision(False, self.law.max_limit, 0, now + retry, retry), None)
            limit = pool.ceiling.limit
        lease_id = LeaseId(self.name, name, now).new()
        step = Step(self._key_of(name), taking(_slots_of(limit, ttl_ms), lease_id))
        return SlotAttempt(name, lease_id, step, ttl_ms)

    def request(self, steps: Sequence[Step]) -> SlotRequest:
        """A request of these steps, and of the instant of the decision if the store uses its own
        clock."""
        if self.store.reads_own_clock:
            steps = [*steps, Step(steps[0].key, telling(self._slots))]
        return SlotRequest(self.store, steps, self._now())

    def decided_at(self, request: SlotRequest, results: Sequence[Any]) -> int:
        """The instant of the decision."""
        if not self.store.reads_own_clock:
            return request.at
        told: int = results[-1]
        self._ahead_ms = told - self._now()
        return told

    def granted(
        self, attempt: SlotAttempt, decision: Decision, at: int, *, taken: bool = True
    ) -> SlotGrant:
        """The result of an attempt. Not `taken` means that a slot was free, but another limit
        denied the request."""
        with self._lock:
            pool = self._pools.get(attempt.pool)
            if pool is not None:
                held = decision.limit - decision.remaining
                if not decision.allowed:
                    # More may be held, from before the ceiling was lowered.
                    self._pools.saw(pool, max(pool.in_flight, held))
                    self._pools.expect(pool, decision.reset_at)
                else:
                    self._pools.saw(pool, held)
                    if taken:
                        self._pools.expect(pool, at + attempt.ttl_ms)
            if not decision.allowed:
                return SlotGrant(self._denial(decision, pool, at), None)
        return SlotGrant(decision, SlotLease(attempt.id, at, at + attempt.ttl_ms))

    def giving_back(self, lease_id: str, how: End) -> Flow[SlotRequest, bool]:
        """Release or withdraw."""
        lease = self._lease(lease_id)
        if lease is None:
            return False
        key = self._key_of(lease.pool)
        steps = [Step(key, looking(self._slots), 0), Step(key, releasing(self._slots, lease_id))]
        request = self.request(steps)
        results = yield request
        at = self.decided_at(request, results)
        with self._lock:
            pool = self._pools.get(lease.pool)
            if pool is not None:
                self._learn(pool, lease, MAX_SLOTS - results[0].remaining, results[1], at, how)
        return bool(results[1])

    def slot_of(self, lease_id: str) -> tuple[str, Slots, str] | None:
        """The slot of a lease, for `PoolRenewals`; None if the lease is not of this limiter."""
        lease = self._lease(lease_id)
        return None if lease is None else (self._key_of(lease.pool), self._slots, lease_id)

    def renewed(self, lease_id: str, decision: Decision) -> bool:
        """Record the store's answer to the renewal of a lease. Returns whether it is held."""
        lease = self._lease(lease_id)
        if not decision.allowed or lease is None:
            return False
        with self._lock:
            pool = self._pools.get(lease.pool)
            if pool is not None:
                self._pools.saw(pool, MAX_SLOTS - decision.remaining)
                self._pools.expect(pool, decision.reset_at)
        return True

    @property
    def is_due(self) -> bool:
        """Whether a lease may have expired since the last sweep."""
        with self._lock:
            return self._pools.is_due(self._store_now())

    def __reduce__(self) -> NoReturn:
        raise UnsupportedError(
            "a ConcurrencyLimiter cannot be pickled or copied: its ceiling is learned in this "
            "process; make one in the other process on a shared store, or ask a service for slots"
        )

    def __repr__(self) -> str:
        return f"<ConcurrencyLimiter {self.in_flight}/{self.limit} under {self.law!r}>"

    def _admission(self, key: str, ttl_ms: int) -> Flow[SlotRequest, SlotGrant]:
        attempt = self.attempt(key, ttl_ms)
        if isinstance(attempt, SlotGrant):
            return attempt
        request = self.request([attempt.step])
        results = yield request
        return self.granted(attempt, results[0], self.decided_at(request, results))

    def _beat(self, lease_ids: Iterable[str]) -> Flow[SlotRequest, Heartbeat]:
        return (yield from beating(require_lease_ids(lease_ids), lambda lease_id: self))

    def _overdue(self) -> list[str]:
        """The pools to sweep."""
        now = self._store_now()
        with self._lock:
            return self._pools.overdue(now, now + self.lease_ttl_ms)

    def _sweeping(self, names: Sequence[str]) -> Flow[SlotRequest, int]:
        count = 0
        for start in range(0, len(names), _SWEPT_AT_ONCE):
            some = names[start : start + _SWEPT_AT_ONCE]
            steps = []
            for name in some:
                key = self._key_of(name)
                steps += [Step(key, reclaiming(self._slots)), Step(key, looking(self._slots), 0)]
            results = yield self.request(steps)
            for place, name in enumerate(some):
                count += self._swept(name, *results[2 * place : 2 * place + 2])
        return count

    def _swept(self, name: str, lost: int, look: Decision) -> int:
        with self._lock:
            pool = self._pools.get(name)
            if pool is not None:
                self._pools.saw(pool, MAX_SLOTS - look.remaining)
                pool.due = None
                if pool.in_flight:
                    self._pools.expect(pool, look.reset_at)
                for _ in range(lost):
                    pool.ceiling.drop()
            self._reclaimed += lost
        self.lost(lost)
        return lost

    def lost(self, count: int) -> None:
        """Called with the number of expired leases that a sweep found. For subclasses."""

    def _learn(
        self, pool: SlotPool, lease: LeaseId, in_flight: int, held: int, at: int, how: End
    ) -> None:
        self._pools.saw(pool, in_flight - held)
        if not held or how is End.WITHDRAWN:
            return
        if how is End.DROPPED:
            pool.ceiling.drop()
            return
        pool.rtt_ms = max(1, at - lease.granted_at)
        pool.ceiling.sample(pool.rtt_ms, in_flight)

    def _denial(self, decision: Decision, pool: SlotPool | None, at: int) -> Decision:
        """A denial that estimates when a slot will be free: after the duration of the last request,
        or when the next lease expires, whichever is earlier."""
        guess = self.lease_ttl_ms if pool is None or pool.rtt_ms is None else pool.rtt_ms
        retry = max(1, min(guess, decision.retry_after_ms))
        reset_at = min(decision.reset_at, at + max(1, guess))
        return Decision(False, decision.limit, decision.remaining, reset_at, retry)

    def _store_now(self) -> int:
        return self._now() + self._ahead_ms

    def _key_of(self, pool: str) -> str:
        return f"{self.prefix}:{pool}" if self.per_key else self.prefix

    def _lease(self, lease_id: str) -> LeaseId | None:
        """The parts of a lease id; None if it is not of this limiter."""
        lease = LeaseId.of(lease_id)
        if lease is None or lease.name != self.name or bool(lease.pool) != self.per_key:
            return None
        return lease


def _require_law(law: Any) -> Law:
    """The law, or `config_invalid` for anything else."""
    if isinstance(law, type) or not isinstance(law, Law):
        reject(
            "law must be Gradient(min_limit, max_limit), Aimd(...) or an object with their "
            f"attributes, not {shown(law)}"
        )
    accepted: Law = law
    return accepted


def require_lease_ids(lease_ids: Any) -> list[str]:
    """The ids of leases to renew, each once."""
    if isinstance(lease_ids, (str, bytes)) or not isinstance(lease_ids, Iterable):
        reject(f"lease_ids must be a list of lease ids, not {shown(lease_ids)}")
    listed = list(lease_ids)
    for lease_id in listed:
        LeaseId.of(lease_id)
    return list(dict.fromkeys(listed))


def beating(
    lease_ids: Sequence[str], limiter_of: Callable[[str], ConcurrencyLimiter | None]
) -> Flow[SlotRequest, Heartbeat]:
    """Renew leases of several limiters on one store, in one call to it."""
    asked: dict[str, ConcurrencyLimiter] = {}
    held = []
    for lease_id in lease_ids:
        limiter = limiter_of(lease_id)
        slot = None if limiter is None else limiter.slot_of(lease_id)
        if limiter is not None and slot is not None:
            asked[lease_id] = limiter
            held.append(slot)
    live: dict[str, int] = {}
    if asked:
        one, pools = next(iter(asked.values())), PoolRenewals(held)
        request = one.request(pools.steps)
        results = yield request
        one.decided_at(request, results)
        answers = pools.answers(results)
        for (lease_id, limiter), decision in zip(asked.items(), answers, strict=True):
            if limiter.renewed(lease_id, decision):
                live[lease_id] = decision.reset_at
    gone = [lease_id for lease_id in lease_ids if lease_id not in live]
    return Heartbeat(list(live), gone, min(live.values(), default=0))
