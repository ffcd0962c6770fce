"""Admission control: a slot, a rate and a token budget as one decision on a request.

For example::

    admission = AdmissionControl(
        concurrency=ConcurrencyLimiter(), rate=rate_limit("100/minute"), budget=None
    )
    admitted = admission.admit("alice")
    if admitted:
        try:
            serve()
        finally:
            admission.release(admitted.lease_id)

Axes (slots, rate, cost) whose state is in the store of the slots are decided in one step, all or
nothing. Axes elsewhere (leased credits of this node, a budget in another store) are asked after
that; when one of them denies, the slot is given back as if it had never been taken.

For the budget, the cost of a request is an estimate that has to fit into what is left; the true
usage is debited afterwards, by `debit`. Asking the budget spends nothing, so it is asked before the
rate: a denial by any axis leaves nothing charged on the others.

The steps are a flow, written once for sync and async. It yields a `SlotRequest` or an `AxisRequest`
and is sent the answer; a fail mode may send a decision instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from .concurrency import ConcurrencyLimiter, Heartbeat, SlotLease
from .concurrency._limiter import SlotAttempt, SlotGrant, SlotRequest
from .concurrency._slots import End
from .core._clock import Clock, SystemClock
from .core._decision import Decision
from .core._errors import PenstockError, UnsupportedError
from .core._flow import Flow, adrive, drive
from .core._limiter import Limiter
from .core._validation import reject, require_cost, require_key, shown
from .core._verdict import combine

__all__ = ["AXES", "Admission", "AdmissionControl", "AxisRequest", "combine"]


AXES = ("concurrency", "rate", "cost")
"""The axes of an admission, any of which can deny it."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The result of `admit`; `bool(admission)` is whether the request may begin.

    `axes` holds the decision of each axis that was asked, and `decision` combines them. `lease_id`
    is the id to release, "" when denied; without a heartbeat the slot is reclaimed at the instant
    `lease_expires_at`. `binding_axis` is the axis that denied, "" when allowed.
    """

    decision: Decision
    lease_id: str = ""
    lease_expires_at: int = 0
    binding_axis: str = ""
    axes: Mapping[str, Decision] = field(default_factory=dict, compare=False)

    def tightest(self) -> tuple[str, Decision]:
        """The axis that denied or, if none did, the one with the least remaining."""
        axis = self.binding_axis or min(self.axes, key=lambda name: self.axes[name].remaining)
        return axis, self.axes[axis]

    def __bool__(self) -> bool:
        return self.decision.allowed


@dataclass(frozen=True, slots=True)
class AxisRequest:
    """A request of the flow: ask `limiter` for `amount` of `key`. If `spends` is False, only ask
    whether it would fit. `axis` is one of `AXES`."""

    axis: str
    limiter: Limiter
    key: str
    amount: int
    spends: bool = True

    def now(self) -> Decision:
        """Ask with a sync call."""
        limiter = self.limiter
        if self.spends:
            return limiter.check(self.key, self.amount)
        if not limiter.decides_in_store:
            return limiter.peek(self.key)
        key, look, cost, _ = limiter.step(self.key, self.amount, spends=False)
        decision: Decision = limiter.store.apply(key, look, limiter.clock.now(), cost)
        return decision

    async def later(self) -> Decision:
        """The awaitable twin of `now`."""
        limiter = self.limiter
        if self.spends:
            return await limiter.acheck(self.key, self.amount)
        if not limiter.decides_in_store:
            return await limiter.apeek(self.key)
        key, look, cost, _ = limiter.step(self.key, self.amount, spends=False)
        decision: Decision = await limiter.store.aapply(key, look, limiter.clock.now(), cost)
        return decision


class _Axis(NamedTuple):
    """An axis other than the slots. It spends the cost of a request, or only looks whether the
    cost fits."""

    name: str
    limiter: Limiter
    spends: bool

    def joins(self, slots: ConcurrencyLimiter) -> bool:
        """Whether both can be decided in one step, at one instant."""
        limiter, store = self.limiter, slots.store
        same_time = store.reads_own_clock or _time_of(limiter.clock) is _time_of(slots.clock)
        return limiter.decides_in_store and limiter.store is store and same_time


class AdmissionControl:
    """Decides by slots, a rate and a token budget together. `rate` and `budget` may be left
    out."""

    def __init__(
        self,
        concurrency: ConcurrencyLimiter,
        rate: Limiter | None = None,
        budget: Limiter | None = None,
    ) -> None:
        if not isinstance(concurrency, ConcurrencyLimiter):
            reject(
                "concurrency must be a ConcurrencyLimiter, such as "
                f"ConcurrencyLimiter(Gradient(4, 200)), not {shown(concurrency)}"
            )
        for name, limiter in (("rate", rate), ("budget", budget)):
            if limiter is not None and not isinstance(limiter, Limiter):
                reject(
                    f"{name} must be a limiter made by rate_limit(...), or None, not "
                    f"{shown(limiter)}"
                )
        self.concurrency = concurrency
        self.rate = rate
        self.budget = budget
        axes = [
            _Axis(name, limiter, spends)
            for name, limiter, spends in (("cost", budget, False), ("rate", rate, True))
            if limiter is not None
        ]
        together = 0
        while together < len(axes) and axes[together].joins(concurrency):
            together += 1
        # The order is kept, so that the rate, which spends, comes last.
        self._together, self._apart = axes[:together], axes[together:]

    def admit(self, key: str, cost: int = 1) -> Admission:
        """Take a slot and spend the cost, or report which axis denied. For the budget the cost is
        an estimate that has to fit; what was used is counted by `debit`."""
        return drive(self.flow(key, cost), lambda request: request.now())

    async def aadmit(self, key: str, cost: int = 1) -> Admission:
        """The awaitable twin of `admit`."""
        return await adrive(self.flow(key, cost), lambda request: request.later())

    def release(self, lease_id: str, dropped: bool = False) -> bool:
        """Give the slot back. See `ConcurrencyLimiter.release`."""
        return self.concurrency.release(lease_id, dropped)

    async def arelease(self, lease_id: str, dropped: bool = False) -> bool:
        """The awaitable twin of `release`."""
        return await self.concurrency.arelease(lease_id, dropped)

    def heartbeat(self, lease_ids: Iterable[str]) -> Heartbeat:
        """Renew leases."""
        return self.concurrency.heartbeat(lease_ids)

    async def aheartbeat(self, lease_ids: Iterable[str]) -> Heartbeat:
        """The awaitable twin of `heartbeat`."""
        return await self.concurrency.aheartbeat(lease_ids)

    def debit(self, key: str, tokens: int) -> Decision:
        """Count the tokens that an admitted request used."""
        return self._budget().check(key, tokens)

    async def adebit(self, key: str, tokens: int) -> Decision:
        """The awaitable twin of `debit`."""
        return await self._budget().acheck(key, tokens)

    def flow(self, key: str, cost: int) -> Flow[SlotRequest | AxisRequest, Admission]:
        """The steps of an admission. If they end early, by an exception too, the slot is given
        back. After a cancellation nothing can be awaited, so unless the store answers at once the
        slot comes back when its lease expires."""
        require_key(key)
        require_cost(cost)
        attempt = self.concurrency.attempt(key)
        if isinstance(attempt, SlotGrant):
            return _denied({"concurrency": attempt.decision})
        axes, lease = yield from self._first(attempt, key, cost)
        if lease is None:
            return _denied(axes)
        try:
            admission = yield from self._others(axes, lease, key, cost)
        except Exception:
            yield from self._withdraw(lease)
            raise
        except BaseException:
            # A cancelled task cannot await the store.
            if self.concurrency.store.answers_at_once:
                self.concurrency.withdraw(lease.id)
            raise
        if not admission:
            yield from self._withdraw(lease)
        return admission

    def _first(
        self, attempt: SlotAttempt, key: str, cost: int
    ) -> Flow[SlotRequest | AxisRequest, tuple[dict[str, Decision], SlotLease | None]]:
        """The slot and the axes in its store, all or nothing."""
        slots = self.concurrency
        names = ("concurrency", *(axis.name for axis in self._together))
        beside = [axis.limiter.step(key, cost, spends=axis.spends) for axis in self._together]
        request = slots.request([attempt.step, *beside])
        results = yield request
        if isinstance(results, Decision):
            # The store is away, and the fail mode has decided for all axes. The store may have
            # taken the slot nevertheless, so the caller gets the id to give it back.
            lease = SlotLease(attempt.id, request.at, request.at + attempt.ttl_ms)
            return dict.fromkeys(names, results), lease if results.allowed else None
        axes: dict[str, Decision] = dict(zip(names, results, strict=False))
        allowed = all(decision.allowed for decision in axes.values())
        grant = slots.granted(
            attempt, results[0], slots.decided_at(request, results), taken=allowed
        )
        axes["concurrency"] = grant.decision
        return axes, grant.lease if allowed else None

    def _others(
        self, axes: dict[str, Decision], lease: SlotLease, key: str, cost: int
    ) -> Flow[SlotRequest | AxisRequest, Admission]:
        for axis in self._apart:
            axes[axis.name] = yield AxisRequest(axis.name, axis.limiter, key, cost, axis.spends)
            if not axes[axis.name].allowed:
                return _denied(axes)
        return Admission(combine(*axes.values()), lease.id, lease.expires_at, axes=axes)

    def _withdraw(self, lease: SlotLease) -> Flow[SlotRequest | AxisRequest, None]:
        # A slot that cannot be given back now expires with its lease.
        with suppress(PenstockError):
            yield from self.concurrency.giving_back(lease.id, End.WITHDRAWN)

    def _budget(self) -> Limiter:
        if self.budget is None:
            raise UnsupportedError(
                "this AdmissionControl has no budget to debit; pass budget=... to its constructor"
            )
        return self.budget


def _time_of(clock: Clock) -> object:
    """The same object for clocks that show the same time: all system clocks do."""
    return SystemClock if type(clock) is SystemClock else clock


def _denied(axes: Mapping[str, Decision]) -> Admission:
    """A denial by the first axis that denied; decisions of later axes are left out."""
    told: dict[str, Decision] = {}
    for axis, decision in axes.items():
        told[axis] = decision
        if not decision.allowed:
            break
    return Admission(combine(*told.values()), binding_axis=axis, axes=told)
