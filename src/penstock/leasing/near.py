"""The near tier: credits of many keys on one node, and the one procedure that refills them.

A request is served from local credits if they suffice; that is the hot path, and it does not come
here. A miss takes its turn for the key, so at most one lease per key is in flight and those who
wait are served in order. In its turn it looks again (`settle`): somebody before it may have leased
enough, been denied, or failed. Then it asks the far tier for a batch.

`refill` and `prefetch` are written once, as generators: they yield an `Errand` for the far tier
and are sent the grant. Who runs them, on what transport and in which colour, is the caller's
business, so the limiter over a store and the client of a lease service share them.

What a node holds after a lease is at most the batch less 1: a miss takes a batch and spends from
it at once, and a lease ahead of need only tops up to there. That is what the bounds rest on.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from ..core.clock import Clock
from ..core.decision import Decision
from ..core.errors import StoreUnavailableError
from ..core.grant import Grant
from ..core.limiter import Limiter
from ..core.turns import Turn, Turns
from ..front import rate_limit
from ..stores.memory import MemoryStore
from .batch import AdaptiveBatch
from .credits import Credits, granting
from .demand import Demand
from .denials import Denials
from .term import Term

__all__ = ["Errand", "NearTier", "Refill"]

# After a lease ahead of need has failed, none is tried for so long; a miss is not held back.
_REST_MS = 250


class Errand(NamedTuple):
    """Lease `want` units for the key; fewer will do, but not fewer than `need`."""

    key: str
    want: int
    need: int


Refill = Generator[Errand, Grant, Decision]


class NearTier:
    """Credits, remembered denials and turns, by key."""

    def __init__(
        self,
        *,
        limit: int,
        batch: int | AdaptiveBatch,
        term: Term,
        idle_ms: int | None,
        max_keys: int,
        clock: Clock | None,
    ) -> None:
        self.limit = limit
        self.demand = Demand(batch, max_keys)
        self._term = term
        self._idle_ms = idle_ms
        self._max_keys = max_keys
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """Hold nothing: at first, and in a forked child, whose parent spends what was leased."""
        self.turns = Turns()
        # Denied without a round trip only where the far tier denied before.
        self.denials = Denials(self._max_keys)
        self._rest_until = 0
        self.retune(self.limit)

    def retune(self, limit: int) -> None:
        """Report another limit from now on. What is held is dropped."""
        self.limit = limit
        self._credits = Credits(limit, self._idle_ms, self._term.aligned)
        self._store = MemoryStore(self._max_keys, clock=self._clock)
        self._kernel = None
        self.local: Limiter = rate_limit(self._credits, store=self._store, clock=self._clock)
        self.now = self.local.clock.now

    def settle(self, key: str, cost: int, turn: Turn) -> Decision | None:
        """What can be said without the far tier, now that it is this one's turn."""
        decision = self.local.check(key, cost)
        if decision.allowed:
            return decision
        failure = turn.failure
        if failure is not None:
            # The lease that this caller waited for failed: asking again would only queue up more.
            raise StoreUnavailableError(str(failure)) from failure
        return self.denials.recall(key, self.now(), cost)

    def refill(self, key: str, cost: int, turn: Turn) -> Refill:
        """Serve a miss by a lease, in its turn."""
        want = max(self._size(key), cost)
        sent_at = self.now()
        try:
            grant = yield Errand(key, want, cost)
        except StoreUnavailableError as error:
            turn.share(error)
            raise
        if not grant.capacity:
            self.denials.remember(key, sent_at, cost, grant.decision)
            return grant.decision
        # The request itself was admitted by the far tier, then and there; the rest is credit.
        total = self._put(key, grant.capacity - cost, grant, sent_at)
        self.demand.leased(key, total, cost, sent_at)
        return Decision(True, self.limit, total, grant.decision.reset_at, 0)

    def prefetch(self, key: str, low_water: int) -> Refill:
        """Lease ahead of need, in its turn, unless the need is gone or it would be in vain."""
        standing = self.local.peek(key)
        held = standing.remaining
        want = self._size(key) - 1 - held
        if held > low_water or want < 1 or not self.may_prefetch(key):
            return standing
        sent_at = self.now()
        try:
            grant = yield Errand(key, want, 1)
        except StoreUnavailableError:
            self._rest_until = self.now() + _REST_MS
            raise
        if not grant.capacity:
            self.denials.remember(key, sent_at, 1, grant.decision)
            return grant.decision
        total = self._put(key, grant.capacity, grant, sent_at)
        self.demand.leased(key, total, 0, sent_at)
        return Decision(True, self.limit, total, grant.decision.reset_at, 0)

    def may_prefetch(self, key: str) -> bool:
        """False where the far tier has nothing, or does not answer."""
        now = self.now()
        return now >= self._rest_until and self.denials.recall(key, now, 1) is None

    def held(self, key: str) -> int:
        """The credits of a key."""
        return self.local.peek(key).remaining

    def forget(self, key: str) -> None:
        self.local.reset(key)
        self.denials.forget(key)

    def close(self) -> None:
        self._store.close()

    def _put(self, key: str, credits: int, grant: Grant, sent_at: int) -> int:
        """Add credits; returns how many are held then."""
        until = sent_at + self._term.left_ms(grant)
        transform = granting(self._credits, (credits, grant.decision.reset_at, until))
        transform.kernel = self._kernel
        total: int = self._store.apply(key, transform, self.now(), 1)
        self._kernel = transform.kernel
        return total

    def _size(self, key: str) -> int:
        # Nobody gets more than the limit at once, and asking would only cost a second attempt.
        size = self.demand.batch(key)
        return min(size, self.limit) if self.limit else size
