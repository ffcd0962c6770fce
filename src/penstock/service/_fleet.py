"""Leases of credits for clients that spend them elsewhere: the Fleet service without its transport.

A lease is charged in the store in one step, exactly like a check of that cost, and says for how
long its credits may be spent. So the clients of a fleet share a limit with callers that check the
same policy and key directly.
"""

from __future__ import annotations

from typing import NamedTuple

from ..core._decision import RETRY_MS, Decision
from ..core._limiter import Limiter
from ..core._transform import Grant, leasing
from ..core._validation import key_lead, require_int, require_key
from ..leasing._credits import term_of
from ._fail_modes import Guard

__all__ = ["CreditLease", "Lessor"]


class CreditLease(NamedTuple):
    """A lease of `capacity` credits; 0 is a denial. The credits are valid until `expiry_ms` on the
    service's clock, which is `refresh_interval_ms` after they were granted. `degraded` is the fail
    mode that granted it while the store was away, None if the limit was asked."""

    capacity: int
    expiry_ms: int
    refresh_interval_ms: int
    retry_after_ms: int
    limit: int
    degraded: str | None = None


class Lessor:
    """Leases the credits of a limiter, at most `batch` at once."""

    def __init__(self, name: str, limiter: Limiter, batch: int, guard: Guard) -> None:
        self._own_key = name
        self._limiter = limiter
        self._batch = batch
        self._guard = guard
        self._lead = key_lead(limiter.prefix)
        self._lease = leasing(limiter.strategy, 1)
        self._term = term_of(limiter.strategy, True)

    async def reserve(self, domain: str, wants: int) -> CreditLease:
        """Lease up to `wants` credits of the key `domain`, by default the policy's own."""
        key = require_key(domain or self._own_key)
        wants = min(require_int("wants", wants or 1), self._batch, self._limiter.strategy.limit)
        now = self._limiter.clock.now()
        try:
            grant = await self._limiter.store.aapply(self._lead + key, self._lease, now, wants)
        except Exception as error:
            return _in_an_outage(self._guard.decision(error, (key,), wants), wants)
        return self._lease_of(grant)

    def _lease_of(self, grant: Grant) -> CreditLease:
        decision = grant.decision
        if not grant.capacity:
            retry = decision.retry_after_ms
            return CreditLease(0, decision.reset_at, retry, retry, decision.limit)
        left = max(0, self._term.left_ms(grant))
        return CreditLease(grant.capacity, grant.now + left, left, 0, decision.limit)


def _in_an_outage(decision: Decision, wants: int) -> CreditLease:
    """The lease of the policy's fail mode: all that is wanted, or nothing, for a second."""
    capacity = wants if decision.allowed else 0
    return CreditLease(
        capacity,
        decision.reset_at,
        RETRY_MS,
        decision.retry_after_ms,
        decision.limit,
        decision.degraded,
    )
