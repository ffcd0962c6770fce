"""The near tier: credits of many keys on one node, and the one flow that refills them.

A request is served from local credits if they suffice; that is the hot path, and it does not come
here. A miss waits in the key's queue, so at most one lease per key is in flight and those who wait
are served in order. Who leads looks again (`settle`): somebody before it may have leased enough,
been denied, or failed. Then there is a `LeaseRequest` for the far tier (`ask`) and its answer to
take in (`receive`). Nothing here waits: who sends it, on what transport, sync or async, is the
caller's business, so the limiter over a store and the client of a lease service share this.

What a node holds after a lease is at most the batch less 1: a miss takes a batch and spends from
it at once, and a lease ahead of need only tops up to there. That is what the bounds rest on.
"""

from __future__ import annotations

from collections.abc import Callable
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
from ._credits import Credits, Denials, Term, granting

__all__ = ["LeaseRequest", "NearTier"]


# After a lease ahead of need has failed, none is tried for so long; a miss is not held back.
_REST_MS = 250

# Two clocks may come apart by one part in so many.
_DRIFT = 1_000


class LeaseRequest(NamedTuple):
    """Lease `want` units for the key; fewer will do, but not fewer than `need`. `sent_at` is when
    that was asked for: what is granted is reckoned from there."""

    key: str
    want: int
    need: int
    sent_at: int


class NearTier:
    """Credits, remembered denials and queues, by key."""

    store: MemoryStore

    def __init__(
        self,
        *,
        limit: int,
        batch: int | AdaptiveBatch,
        term: Term,
        idle_ms: int | None,
        max_keys: int,
        clock: Clock | None,
        foreign_clock: bool = False,
    ) -> None:
        self.limit: int = limit
        self._foreign = foreign_clock and term.coupled
        self.demand: Demand = Demand(batch, max_keys)
        self._term = term
        self._idle_ms = idle_ms
        self._max_keys = max_keys
        self._clock = clock
        self.retune(limit)
        self._begin()

    def _begin(self) -> None:
        self.queues: Queues[Queue] = Queues(Queue)
        self._rest_until = 0
        # Denied without a round trip only where the far tier denied before.
        self.denials: Denials = Denials(self._max_keys)

    def after_fork(self) -> None:
        """Hold nothing in the child: its parent spends what was leased. Whoever has a method of
        the local limiter at hand spends from the new store, too."""
        self.store = MemoryStore(self._max_keys, clock=self._clock)
        self.local._settle_on(self.store)
        self.demand.after_fork()
        self._begin()

    def retune(self, limit: int) -> None:
        """Report another limit from now on. What is held is dropped."""
        self.limit = limit
        self._credits = Credits(limit, self._idle_ms, self._term.aligned)
        self.store = MemoryStore(self._max_keys, clock=self._clock)
        self._check = checking(self._credits)
        self._kernel: Any = None
        # Nobody gets more than the limit at once, and asking would only cost a second attempt.
        self._ceiling = limit or MAX_SAFE
        self.local: Limiter = rate_limit(self._credits, store=self.store, clock=self._clock)
        self.now: Callable[[], int] = self.local.clock.now

    # `now` is the instant of a call that decides many keys; alone, a request reads the clock when
    # it gets there, which may be long after it began to wait.

    def spend_many(self, keys: list[str], cost: int, now: int) -> list[Decision]:
        """A local check of each key."""
        return self.store.apply_many(keys, self._check, now, cost)

    def recall(self, key: str, cost: int, now: int | None = None) -> Decision | None:
        """The far tier's denial of such a request, if it still holds."""
        return self.denials.recall(key, cost, self.now() if now is None else now)

    def settle(
        self, key: str, cost: int, place: Place[Queue], now: int | None = None
    ) -> Decision | None:
        """What can be said without the far tier, now that this one leads."""
        if now is None:
            now = self.now()
        decision: Decision = self.store.apply(key, self._check, now, cost)
        if decision.allowed:
            return decision
        failure = place.failure
        if failure is not None:
            # The lease that this caller waited for failed: asking again would only queue up more.
            raise StoreUnavailableError(str(failure), reason=outage_reason(failure)) from failure
        return self.denials.recall(key, cost, now)

    def ask(self, key: str, cost: int, now: int | None = None) -> LeaseRequest:
        """What to lease for a miss that leads."""
        sent_at = self.now() if now is None else now
        return LeaseRequest(key, max(self._size(key), cost), cost, sent_at)

    def ask_for_one(self, key: str, cost: int, now: int | None = None) -> LeaseRequest:
        """What to lease for a request alone, which does not wait."""
        return LeaseRequest(key, cost, cost, self.now() if now is None else now)

    def ask_ahead(self, key: str, low_water: int) -> LeaseRequest | None:
        """What to lease ahead of need; nothing if the need is gone, or in vain."""
        held = self.held(key)
        want = self._size(key) - 1 - held
        if held > low_water or want < 1 or not self.may_prefetch(key):
            return None
        return LeaseRequest(key, want, 1, self.now())

    def receive(
        self, request: LeaseRequest, cost: int, grant: Grant, now: int | None = None
    ) -> Decision:
        """Take in what the far tier said; `cost` is of the request behind the lease, or 0. A grant
        of less than the need comes with a denial."""
        key, _, need, sent_at = request
        decision = grant.decision
        if grant.capacity < need:
            if grant.capacity:
                self._put(key, grant.capacity, grant, sent_at, now)
            self.denials.remember(key, sent_at, need, decision)
            return decision
        # The request itself was admitted by the far tier, then and there; the rest is credit.
        total = self._put(key, grant.capacity - cost, grant, sent_at, now)
        if self.demand.learns:
            self.demand.leased(key, total, cost, sent_at)
        return Decision(True, self.limit, total, decision.reset_at, 0)

    def keep(self, request: LeaseRequest, grant: Grant) -> None:
        """Take in a part of what is needed, whatever becomes of the rest."""
        self._put(request.key, grant.capacity, grant, request.sent_at, request.sent_at)

    def rest(self) -> None:
        """A lease ahead of need has failed: try none for a while."""
        self._rest_until = self.now() + _REST_MS

    def may_prefetch(self, key: str, now: int | None = None) -> bool:
        """False where the far tier has nothing, or does not answer."""
        if now is None:
            now = self.now()
        return now >= self._rest_until and self.denials.recall(key, 1, now) is None

    def held(self, key: str) -> int:
        """The credits of a key."""
        return self.local.peek(key).remaining

    def forget(self, key: str) -> None:
        self.local.reset(key)
        self.denials.forget(key)

    def close(self) -> None:
        self.store.close()

    def _put(self, key: str, credits: int, grant: Grant, sent_at: int, now: int | None) -> int:
        """Add credits; returns how many are held then."""
        left = self._term.left_ms(grant)
        until = sent_at + left - (_margin_ms(left) if self._foreign else 0)
        fresh = (credits, grant.decision.reset_at, until)
        granted_at = grant.now if self._term.may_slide else None
        transform = granting(self._credits, fresh, granted_at)
        transform.kernel = self._kernel
        total: int = self.store.apply(key, transform, self.now() if now is None else now, 1)
        self._kernel = transform.kernel
        return total

    def _size(self, key: str) -> int:
        demand = self.demand
        size = demand.fixed if demand.fixed else demand.batch(key)
        return size if size < self._ceiling else self._ceiling


def _margin_ms(span_ms: int) -> int:
    """By how much a span that another clock measured may seem shorter there than here.

    Clocks that count whole milliseconds do not tick together, which makes one. And both may be
    slewed to the right time, each by up to 500 parts in a million, in opposite directions.
    """
    return 1 - (-span_ms // _DRIFT)
