"""The near tier: the credits of many keys on one node, and how they are refilled.

A request that local credits suffice for is served on the hot path, which does not come here. A miss
waits in the key's queue, so that at most one lease per key is in flight and waiters are served in
order. The leader looks again (`settle`), since a caller before it may have leased enough, been
denied, or failed. Then it sends a `LeaseRequest` (`ask`) to the shared store, the far tier, and
records the answer (`receive`). Nothing here does I/O, so the sync and the async calls, of a limiter
on a store and of the client of a service, share this code.

After a lease a node holds at most one batch less 1: a miss spends from its batch at once, and a
lease ahead of need only tops up to that. The bounds of leases depend on it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

from .._queueing import Place, Queue, Queues
from .._rate_limit import rate_limit
from ..core._clock import Clock
from ..core._decision import Decision
from ..core._errors import StoreUnavailableError, outage_reason
from ..core._limiter import Limiter
from ..core._transform import Grant, checking
from ..core._validation import MAX_SAFE
from ..stores.memory import MemoryStore
from ._batch import AdaptiveBatch, Demand
from ._credits import (
    MAX_STALE_MS,
    Credits,
    Denials,
    KeyChanges,
    Receipt,
    Term,
    granting,
    returning,
    spending_with_receipt,
)

__all__ = ["LeaseRequest", "NearTier"]


# How long no lease is taken ahead of need after one has failed. Misses are not delayed.
_REST_MS = 250

# Two clocks may drift apart by one part in this many.
_DRIFT = 1_000


class LeaseRequest(NamedTuple):
    """Lease `want` units for the key, and at least `need`. The validity of the grant is counted
    from `sent_at`, when it was requested. `number` is the moment of the request among the changes
    of the key: credits that were requested before a reset or a pause are void."""

    key: str
    want: int
    need: int
    sent_at: int
    number: int


class NearTier:
    """The credits, remembered denials and queues of a node, by key."""

    store: MemoryStore

    def __init__(
        self,
        *,
        limit: int,
        batch: int | AdaptiveBatch,
        term: Term,
        idle_ms: int | None,
        max_keys: int,
        max_stale_ms: int = MAX_STALE_MS,
        clock: Clock | None,
        foreign_clock: bool = False,
    ) -> None:
        self.limit: int = limit
        self._foreign = foreign_clock and term.coupled
        self.demand: Demand = Demand(batch, max_keys)
        self._term = term
        self._idle_ms = idle_ms
        self._max_keys = max_keys
        self._max_stale_ms = max_stale_ms
        self._clock = clock
        self.retune(limit)
        self._begin()

    def _begin(self) -> None:
        self.queues: Queues[Queue] = Queues(Queue)
        self._rest_until = 0
        # Only what the far tier has denied is denied without a round trip.
        self._numbers = count(1)
        self.denials: Denials = Denials(self._max_keys, self._max_stale_ms, self._numbers)
        # Resets and pauses; and looks at the credits by which a lease is decided.
        self._drops = KeyChanges(self._max_keys, self._numbers)
        self._leases = KeyChanges(self._max_keys, self._numbers)

    def after_fork(self) -> None:
        """Start without credits in the child of a fork: the parent spends what was leased. The
        local limiter stays the same object, because others refer to its methods."""
        self.store = MemoryStore(self._max_keys, clock=self._clock)
        self.local._settle_on(self.store)
        self.demand.after_fork()
        self._begin()

    def retune(self, limit: int) -> None:
        """Change the limit that decisions report. Drops the credits."""
        self.limit = limit
        self._credits = Credits(limit, self._idle_ms, self._term.aligned)
        self.store = MemoryStore(self._max_keys, clock=self._clock)
        self._check = checking(self._credits)
        self._take = spending_with_receipt(self._credits)
        self._kernel: Any = None
        # A request for more than the limit would be denied, and cost a second attempt.
        self._ceiling = limit or MAX_SAFE
        self.local: Limiter = rate_limit(self._credits, store=self.store, clock=self._clock)
        self.now: Callable[[], int] = self.local.clock.now

    # `now` is the instant of a call on many keys. A call on one key reads the clock when its turn
    # comes, which may be long after it began to wait.

    def spend_many(self, keys: list[str], cost: int, now: int) -> list[Decision]:
        """Spend local credits of each key."""
        return self.store.apply_many(keys, self._check, now, cost)

    def recall(self, key: str, cost: int, now: int | None = None) -> Decision | None:
        """The far tier's denial of such a request, if it is still valid."""
        return self.denials.recall(key, cost, self.now() if now is None else now)

    def settle(
        self, key: str, cost: int, place: Place[Queue], now: int | None = None
    ) -> Decision | None:
        """The decision for the leader of the queue, if it can be made without the far tier."""
        if now is None:
            now = self.now()
        # Before the look: credits that are given back after it are not counted in the lease.
        self._leases.note(key)
        decision: Decision = self.store.apply(key, self._check, now, cost)
        if decision.allowed:
            return decision
        failure = place.failure
        if failure is not None:
            # The lease that this caller waited for failed: fail as well, rather than pile up calls.
            raise StoreUnavailableError(str(failure), reason=outage_reason(failure)) from failure
        return self.denials.recall(key, cost, now)

    def ask(self, key: str, cost: int, now: int | None = None) -> LeaseRequest:
        """The lease for a miss, asked by the leader of the queue."""
        sent_at = self.now() if now is None else now
        return self._request(key, max(self._size(key), cost), cost, sent_at)

    def ask_for_one(self, key: str, cost: int, now: int | None = None) -> LeaseRequest:
        """A lease of just the cost of a request, for a caller that is not in the queue."""
        return self._request(key, cost, cost, self.now() if now is None else now)

    def ask_ahead(self, key: str, low_water: int) -> LeaseRequest | None:
        """A lease ahead of need; None if there are enough credits, or it would be denied."""
        self._leases.note(key)
        held = self.held(key)
        want = self._size(key) - 1 - held
        if held > low_water or want < 1 or not self.may_prefetch(key):
            return None
        return self._request(key, want, 1, self.now())

    def _request(self, key: str, want: int, need: int, sent_at: int) -> LeaseRequest:
        return LeaseRequest(key, want, need, sent_at, next(self._numbers))

    def receive(
        self, request: LeaseRequest, cost: int, grant: Grant, now: int | None = None
    ) -> Decision:
        """Record the far tier's answer. `cost` is that of the request that caused the lease, 0 if
        it was ahead of need. A grant of less than the need comes with a denial."""
        key, _, need, sent_at, number = request
        decision = grant.decision
        if grant.capacity < need:
            if grant.capacity:
                self._put(request, grant.capacity, grant, now)
            self.denials.remember(key, number, sent_at, need, decision)
            return decision
        # The far tier has admitted the request itself; the rest is credits.
        total = self._put(request, grant.capacity - cost, grant, now)
        if self.demand.learns:
            self.demand.leased(key, total, cost, sent_at)
        return Decision(True, self.limit, total, decision.reset_at, 0)

    def keep(self, request: LeaseRequest, grant: Grant) -> None:
        """Record a part of what is needed, whether or not the rest is granted."""
        self._put(request, grant.capacity, grant, request.sent_at)

    def rest(self) -> None:
        """Take no leases ahead of need for a while, because one has failed."""
        self._rest_until = self.now() + _REST_MS

    def may_prefetch(self, key: str, now: int | None = None) -> bool:
        """Whether to lease ahead of need: not if the far tier has denied or recently failed."""
        if now is None:
            now = self.now()
        return now >= self._rest_until and self.denials.recall(key, 1, now) is None

    def held(self, key: str) -> int:
        """The credits of a key."""
        return self.local.peek(key).remaining

    def take(self, key: str, cost: int) -> tuple[Decision, Receipt | None]:
        """Spend credits for a reservation. The receipt is None if they do not suffice."""
        number = next(self._numbers)
        decision, state = self.store.apply(key, self._take, self.now(), cost)
        if state is None or not decision.allowed:
            return decision, None
        return decision, Receipt(number, state[1], state[2])

    def give_back(self, key: str, units: int, receipt: Receipt) -> int:
        """Put credits of a reservation back. Returns how many came back: none after a reset, a
        pause or another lease of the key. So a node never holds more than one batch less 1."""
        number = receipt.number
        if self._drops.since(key, number) or self._leases.since(key, number):
            return 0
        transform = returning(self._credits, receipt.end, receipt.until)
        returned: int = self.store.apply(key, transform, self.now(), units)
        if self._drop_if_void(key, number):
            return 0
        if returned and self._leases.since(key, number):
            # A lease was decided in between, without these credits.
            self.store.apply(key, self._check, self.now(), returned)
            return 0
        return returned

    def forget(self, key: str) -> None:
        """Drop the credits of a key, those of leases in flight too, and its denials."""
        self._drops.note(key)
        self.local.reset(key)
        self.denials.forget(key)

    def close(self) -> None:
        self.store.close()

    def _put(self, request: LeaseRequest, credits: int, grant: Grant, now: int | None) -> int:
        """Add credits. Returns how many are held then."""
        key, sent_at = request.key, request.sent_at
        left = self._term.left_ms(grant)
        until = sent_at + left - (_margin_ms(left) if self._foreign else 0)
        fresh = (credits, grant.decision.reset_at, until)
        granted_at = grant.now if self._term.may_slide else None
        transform = granting(self._credits, fresh, granted_at)
        transform.kernel = self._kernel
        total: int = self.store.apply(key, transform, self.now() if now is None else now, 1)
        self._kernel = transform.kernel
        return 0 if self._drop_if_void(key, request.number) else total

    def _drop_if_void(self, key: str, number: int) -> bool:
        """Drop the credits if the key was reset or paused since that moment. Called after they were
        added, so that no reset or pause can come in between."""
        is_void = self._drops.since(key, number)
        if is_void:
            self.local.reset(key)
        return is_void

    def _size(self, key: str) -> int:
        demand = self.demand
        size = demand.fixed if demand.fixed else demand.batch(key)
        return size if size < self._ceiling else self._ceiling


def _margin_ms(span_ms: int) -> int:
    """How much longer a span may be on this clock than on another one.

    One millisecond, because both count whole milliseconds but do not tick together; and one part in
    a thousand, because both may be slewed by up to 500 parts per million, in opposite directions.
    """
    return 1 - (-span_ms // _DRIFT)
