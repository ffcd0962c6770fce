"""Unified admission: a slot, the budget, the rate.

A slot is taken first and given back, as if it had never been taken, when another axis denies. The
budget is a gate: the request is let in while less than the budget was served, and what it turns out
to use is debited afterwards, by `debit`. So asking it spends nothing, and it is asked before the
rate: a denial, by whichever axis, leaves nothing charged on any.

The steps are a flow, written once for sync and async: it yields an `AxisRequest` and is sent a
decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..concurrency import ConcurrencyLimiter, Heartbeat, SlotLease
from ..core._decision import Decision, combine
from ..core._errors import UnsupportedError
from ..core._flow import Flow, adrive, drive
from ..core._limiter import Limiter
from ..core._validation import require_cost, require_key

__all__ = ["AXES", "Admission", "AdmissionControl", "AxisRequest"]


AXES = ("concurrency", "rate", "cost")
"""What can deny."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer to `admit`; `bool(admission)` is whether the request may begin.

    `decision` combines those of the axes that were asked, which are in `axes`. `lease_id` is what
    to release, "" when denied, and `lease_expires_at` the instant at which the slot is reclaimed
    without a heartbeat. `binding_axis` is the axis that denied, "" when allowed.
    """

    decision: Decision
    lease_id: str = ""
    lease_expires_at: int = 0
    binding_axis: str = ""
    axes: Mapping[str, Decision] = field(default_factory=dict, compare=False)

    def tightest(self) -> tuple[str, Decision]:
        """The axis that denied or, where none did, the one with the least left."""
        axis = self.binding_axis or min(self.axes, key=lambda name: self.axes[name].remaining)
        return axis, self.axes[axis]

    def __bool__(self) -> bool:
        return self.decision.allowed


@dataclass(frozen=True, slots=True)
class AxisRequest:
    """A question to one axis: ask `limiter` for `amount` of `key`; an amount of 0 asks how it
    stands and spends nothing. `axis` is one of `AXES`."""

    axis: str
    limiter: Limiter
    key: str
    amount: int

    def now(self) -> Decision:
        """AxisRequest by a plain call."""
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

    def admit(self, key: str, cost: int = 1) -> Admission:
        """Take a slot and spend the cost, or say which axis denied."""
        return drive(self.flow(key, cost), AxisRequest.now)

    async def aadmit(self, key: str, cost: int = 1) -> Admission:
        """The awaitable twin of `admit`."""
        return await adrive(self.flow(key, cost), AxisRequest.later)

    def release(self, lease_id: str, dropped: bool = False) -> bool:
        """Give the slot back; see `ConcurrencyLimiter.release`."""
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

    def flow(self, key: str, cost: int) -> Flow[AxisRequest, Admission]:
        """The steps. Whatever ends them early, an exception included, gives the slot back."""
        require_key(key)
        require_cost(cost)
        grant = self.concurrency.admit(key)
        axes = {"concurrency": grant.decision}
        if grant.lease is None:
            return Admission(grant.decision, binding_axis="concurrency", axes=axes)
        kept = False
        try:
            admission = yield from self._others(axes, grant.lease, key, cost)
            kept = admission.decision.allowed
            return admission
        finally:
            if not kept:
                self.concurrency.withdraw(grant.lease.id)

    def _others(
        self, axes: dict[str, Decision], lease: SlotLease, key: str, cost: int
    ) -> Flow[AxisRequest, Admission]:
        for axis, limiter, amount in (("cost", self.budget, 0), ("rate", self.rate, cost)):
            if limiter is None:
                continue
            decision = axes[axis] = yield AxisRequest(axis, limiter, key, amount)
            if not decision.allowed:
                return Admission(combine(*axes.values()), binding_axis=axis, axes=axes)
        return Admission(combine(*axes.values()), lease.id, lease.expires_at, axes=axes)

    def _budget(self) -> Limiter:
        if self.budget is None:
            raise UnsupportedError(
                "this admission control has no budget to debit; make it with budget=..."
            )
        return self.budget
