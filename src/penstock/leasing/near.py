"""The near tier: credits of many keys on one node, and the one procedure that refills them.

A request is served from local credits if they suffice; that is the hot path, and it does not come
here. A miss takes its turn for the key, so at most one lease per key is in flight and those who
wait are served in order. In its turn it looks again (somebody before it may have leased enough),
then asks the far tier for a batch.

`refill` is written once, as a generator: it yields an `Errand` for the far tier and is sent the
grant. Who runs it, on what transport and in which colour, is the caller's business, so the
limiter over a store and the client of a lease service share it.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator
from dataclasses import dataclass

from ..core.clock import Clock
from ..core.decision import Decision
from ..core.errors import StoreUnavailableError
from ..core.grant import Grant
from ..core.limiter import Limiter
from ..core.turns import Turns
from ..core.validation import MAX_SPAN_MS
from ..front import rate_limit
from ..stores.memory import MemoryStore
from .batch import AdaptiveBatch
from .credits import Credits, granting
from .denials import Denials

__all__ = ["Errand", "NearTier"]

Refill = Generator["Errand", Grant, Decision]


@dataclass(frozen=True, slots=True)
class Errand:
    """Lease `want` units for the key; fewer will do, but not fewer than `need`."""

    key: str
    want: int
    need: int


class NearTier:
    """Credits, remembered denials and turns, by key."""

    def __init__(
        self,
        *,
        limit: int,
        batch: int | AdaptiveBatch,
        coupled: bool,
        idle_ms: int | None,
        max_keys: int,
        clock: Clock | None,
    ) -> None:
        self._limit = limit
        self._batch = batch
        self._coupled = coupled
        self._credits = Credits(limit, idle_ms)
        self._store = MemoryStore(max_keys, clock=clock)
        # Denied without a round trip only where the far tier denied before.
        self.denials = Denials(max_keys)
        self.local: Limiter = rate_limit(self._credits, store=self._store, clock=clock)
        self.clock = self.local.clock
        self.turns = Turns()
        self._arrivals = itertools.count(1)
        # key: (arrivals up to here share this failure, the failure)
        self._failures: dict[str, tuple[int, StoreUnavailableError]] = {}

    def arrive(self) -> int:
        """A number for a miss, in order of arrival."""
        return next(self._arrivals)

    def refill(self, key: str, cost: int, arrival: int) -> Refill:
        """Serve a miss, in its turn."""
        now = self.clock.now()
        decision = self.local.check(key, cost)
        if decision.allowed:
            return decision
        denied = self.denials.recall(key, now, cost)
        if denied is not None:
            return denied
        failed_with = self._failures.get(key)
        if failed_with is not None and arrival <= failed_with[0]:
            # The lease that this caller waited for failed: asking again would only queue up more.
            raise StoreUnavailableError(str(failed_with[1])) from failed_with[1]
        return (yield from self._lease(key, cost, decision.remaining))

    def prefetch(self, key: str) -> Refill:
        """Lease ahead of need, unless that is known to be in vain."""
        if self.denials.recall(key, self.clock.now(), 1) is not None:
            return self.local.peek(key)
        return (yield from self._lease(key, 0, self.local.peek(key).remaining))

    def forget(self, key: str) -> None:
        self.local.reset(key)
        self.denials.forget(key)

    def close(self) -> None:
        self._store.close()

    def _lease(self, key: str, cost: int, held: int) -> Refill:
        want = self._size(key)
        need = max(cost, 1)
        sent_at = self.clock.now()
        try:
            grant = yield Errand(key, max(want, need), need)
        except StoreUnavailableError as error:
            self._failures[key] = (next(self._arrivals), error)
            raise
        self._failures.pop(key, None)
        denial = grant.decision
        if not grant.capacity:
            if cost:
                self.denials.remember(key, self.clock.now(), cost, denial)
            return denial
        # The request itself was admitted by the far tier, then and there; the rest is credit.
        rest = grant.capacity - cost
        total = self._put(key, rest, grant, sent_at)
        self._learn(key, grant.capacity, held)
        return Decision(True, self._limit, total, grant.decision.reset_at, 0)

    def _put(self, key: str, credits: int, grant: Grant, sent_at: int) -> int:
        reset_at = grant.decision.reset_at
        until = sent_at + (reset_at - grant.now if self._coupled else MAX_SPAN_MS)
        transform = granting(self._credits, (credits, reset_at, until), self._coupled)
        total: int = self._store.apply(key, transform, self.clock.now(), 1)
        return total

    def _size(self, key: str) -> int:
        size = self._batch if isinstance(self._batch, int) else self._batch.size(key)
        return min(size, self._limit)

    def _learn(self, key: str, leased: int, held: int) -> None:
        # A lease is taken when the last one is nearly spent, so what it brought was demand.
        if isinstance(self._batch, AdaptiveBatch):
            self._batch.observe(key, max(leased - held, 1), self.clock.now())
