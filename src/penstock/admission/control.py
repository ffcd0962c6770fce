"""Unified admission: concurrency, then rate, then cost.

The axes are asked in that order and the first that denies ends it: nothing after it is asked, and
the slots are given back as if they had never been taken. What the rate axis admitted before the
cost axis denied stays spent; that is the price of deciding in several stores without a transaction.
Each request says three amounts, one per axis:

| amount | axis | meaning |
|---|---|---|
| `hold` | concurrency | slots held until release: 1, or more for a heavy request |
| `cost` | rate | units spent of the strategy's limit |
| `value` | cost | tokens debited from the budget at once; 0 only asks whether it is spent |

With a `value` of 0 the budget is a gate: the request is let in while less than the budget was
served, and what it turns out to use is debited afterwards, by `debit`.

The procedure is a flow, written once for both colours: it yields an `Ask` and is sent a decision.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..concurrency import ConcurrencyLimiter, Heartbeat, Lease
from ..core.combine import combine
from ..core.decision import Decision
from ..core.errors import UnsupportedError
from ..core.flow import Flow, adrive, drive
from ..core.limiter import Limiter
from ..core.validation import MAX_SAFE, require_cost, require_int, require_key

__all__ = ["AXES", "Admission", "AdmissionControl", "Ask"]

AXES = ("concurrency", "rate", "cost")
"""In the order in which they are asked."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer to `admit`; `bool(admission)` is whether the request may begin.

    `decision` combines those of the axes that were asked. `lease_id` is what to release, "" when
    denied, and `lease_expires_at` the instant at which the slots are reclaimed without a heartbeat.
    `binding_axis` is the axis that denied, "" when allowed. `policy_denied` tells a caller who has
    used up what the policy grants (rate, cost) from one who came when all slots were taken.
    """

    decision: Decision
    lease_id: str = ""
    lease_expires_at: int = 0
    binding_axis: str = ""

    @property
    def policy_denied(self) -> bool:
        """True if rate or cost denied; False if all slots were taken."""
        return self.binding_axis in ("rate", "cost")

    def __bool__(self) -> bool:
        return self.decision.allowed


@dataclass(frozen=True, slots=True)
class Ask:
    """A question to one axis: ask `limiter` for `amount` of `key`; an amount of 0 asks how it
    stands and spends nothing. `axis` is one of `AXES`."""

    axis: str
    limiter: Limiter
    key: str
    amount: int

    def now(self) -> Decision:
        """Ask by a plain call."""
        if self.amount:
            return self.limiter.check(self.key, self.amount)
        return self.limiter.peek(self.key)

    async def later(self) -> Decision:
        """The awaitable twin of `now`."""
        if self.amount:
            return await self.limiter.acheck(self.key, self.amount)
        return await self.limiter.apeek(self.key)


class AdmissionControl:
    """Slots, a rate and a budget behind one question. `rate` and `budget` may be left out."""

    def __init__(
        self,
        concurrency: ConcurrencyLimiter,
        rate: Limiter | None = None,
        budget: Limiter | None = None,
    ) -> None:
        self.concurrency = concurrency
        self.rate = rate
        self.budget = budget

    def admit(self, key: str, cost: int = 1, hold: int = 1, value: int = 0) -> Admission:
        """Take the slots, spend the cost and debit the value, or say which axis denied."""
        return drive(self.flow(key, cost, hold, value), Ask.now)

    async def aadmit(self, key: str, cost: int = 1, hold: int = 1, value: int = 0) -> Admission:
        """The awaitable twin of `admit`."""
        return await adrive(self.flow(key, cost, hold, value), Ask.later)

    def release(self, lease_id: str, dropped: bool = False) -> bool:
        """Give the slots back; see `ConcurrencyLimiter.release`."""
        return self.concurrency.release(lease_id, dropped)

    def heartbeat(self, lease_ids: Iterable[str]) -> Heartbeat:
        """Renew leases."""
        return self.concurrency.heartbeat(lease_ids)

    def debit(self, key: str, tokens: int) -> Decision:
        """Count tokens that an admitted request turned out to use."""
        return self._budget().check(key, tokens)

    async def adebit(self, key: str, tokens: int) -> Decision:
        """The awaitable twin of `debit`."""
        return await self._budget().acheck(key, tokens)

    def flow(self, key: str, cost: int, hold: int, value: int) -> Flow[Ask, Admission]:
        """The procedure. Whatever ends it early, an exception included, gives the slots back."""
        require_key(key)
        require_cost(cost)
        require_int("value", value, low=0, high=MAX_SAFE)
        grant = self.concurrency.admit(key, hold)
        if grant.lease is None:
            return Admission(grant.decision, binding_axis="concurrency")
        kept = False
        try:
            admission = yield from self._others(grant.decision, grant.lease, key, cost, value)
            kept = admission.decision.allowed
            return admission
        finally:
            if not kept:
                self.concurrency.withdraw(grant.lease.id)

    def _others(
        self, so_far: Decision, lease: Lease, key: str, cost: int, value: int
    ) -> Flow[Ask, Admission]:
        for axis, limiter, amount in (("rate", self.rate, cost), ("cost", self.budget, value)):
            if limiter is None:
                continue
            decision = yield Ask(axis, limiter, key, amount)
            so_far = combine(so_far, decision)
            if not decision.allowed:
                return Admission(so_far, binding_axis=axis)
        return Admission(so_far, lease.id, lease.expires_at)

    def _budget(self) -> Limiter:
        if self.budget is None:
            raise UnsupportedError(
                "this admission control has no budget to debit; make it with budget=..."
            )
        return self.budget
