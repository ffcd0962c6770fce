"""Deciding requests by a policy of several limits: verdicts, fail modes and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..core._decision import Decision, Forecast
from ..core._validation import MAX_SAFE, reject, require_cost
from ..core._verdict import Verdict
from ._deciding import Asked, Checker, Later, StoreCheck, Then, Told
from ._fail_modes import Guard
from ._metrics import Tally
from ._several import Attributes, Costs, PolicyLimits, Request, SeveralLimits

__all__ = ["Judge", "Judged", "Judgement", "KeyedChecks"]


class Judgement(NamedTuple):
    """A verdict, and the limits that gave it; None if no limit applied."""

    verdict: Verdict
    limits: PolicyLimits | None


Judged = Judgement | Later[Judgement]
"""A judgement that was available at once, or a `Later`."""


class Judge(Checker[Judgement]):
    """Decides by the limits of a policy, applies its fail mode, and counts per limit."""

    def __init__(
        self, limits: SeveralLimits, guard: Guard, tally: Tally, tallies: Sequence[Tally]
    ) -> None:
        self.limits: SeveralLimits = limits
        self._guard = guard
        self.tally: Tally = tally
        self.tallies: Sequence[Tally] = tallies
        self.can_begin: bool = limits.can_begin

    def judge(self, attributes: Attributes, cost: int = 1, costs: Costs | None = None) -> Judged:
        """Decide a request, at once if the store answers at once."""
        return self._judged(self.limits.resolve(attributes, require_cost(cost), costs))

    async def judge_many(
        self, each: Sequence[Attributes], cost: int = 1, costs: Costs | None = None
    ) -> list[Judgement]:
        """Decide requests in order, as one `judge` each. If one of them is invalid, none is
        charged."""
        require_cost(cost)
        requests = [self.limits.resolve(attributes, cost, costs) for attributes in each]
        made = []
        for request in requests:
            judged = self._judged(request)
            made.append(judged if isinstance(judged, Judgement) else await judged())
        return made

    def _judged(self, request: Request) -> Judged:
        limits = request.limits
        if limits is None:
            return self.counted(request, self.nothing())
        if not limits.answers_at_once:
            return StoreCheck(self, request)
        try:
            verdict = limits.check(request.keys, request.cost)
        except Exception as error:
            verdict = self.in_place_of(error, request)
        return self.counted(request, verdict)

    async def peek(self, attributes: Attributes) -> Judgement:
        request = self.limits.resolve(attributes)
        if request.limits is None:
            return Judgement(self.nothing(), None)
        try:
            verdict = await request.limits.apeek(request.keys)
        except Exception as error:
            verdict = self.in_place_of(error, request)
        return Judgement(verdict, request.limits)

    async def forecast(
        self, attributes: Attributes, cost: int = 1, costs: Costs | None = None
    ) -> Forecast:
        request = self.limits.resolve(attributes, require_cost(cost), costs)
        if request.limits is None:
            now = self._guard.now()
            return Forecast(MAX_SAFE, now, now)
        told = request.cost
        if not isinstance(told, int) and 0 in told.values():
            free = ", ".join([name for name, units in told.items() if not units])
            reject(f"the cost of a forecast must be at least 1, and is 0 for {free}")
        try:
            return await request.limits.aforecast(request.keys, request.cost)
        except Exception as error:
            return self._guard.forecast(error, next(iter(request.keys.values()), "all"), 1)

    def decide(self, key: str, cost: int = 1) -> Asked:
        """As `judge`, for a caller with only a key: it becomes the attribute `key`."""
        judged = self.judge({"key": key}, cost)
        if isinstance(judged, Judgement):
            return judged.verdict.decision
        return Then(judged, _decision)

    async def ask(self, request: Request) -> Sequence[Decision]:
        assert request.limits is not None
        return (await request.limits.acheck(request.keys, request.cost)).decisions

    def begin(self, told: Told, request: Request) -> None:
        assert request.limits is not None
        request.limits.begin_check(request.keys, request.cost, told)

    def answer(self, decisions: Any, error: Exception | None, request: Request) -> Judgement:
        if error is not None:
            return self.counted(request, self.in_place_of(error, request))
        assert request.limits is not None
        return self.counted(request, request.limits.verdict(decisions))

    def in_place_of(self, error: Exception, request: Request) -> Verdict:
        """The verdict of the fail mode; raises `error` if the mode is "error"."""
        decision = self._guard.decision(error, tuple(request.keys.values()), 1)
        return self.limits.answer(request, decision, self._guard.now())

    def nothing(self) -> Verdict:
        """The verdict on a request that no limit applies to."""
        return Verdict((), (), (), self._guard.now())

    def asking(self, limits: PolicyLimits) -> KeyedChecks:
        """Checks of these limits for callers that count by themselves."""
        return KeyedChecks(limits, self._guard)

    def counted(self, request: Request, verdict: Verdict) -> Judgement:
        """Count a verdict. A shadow shows what it would newly deny, so it counts admitted requests
        only."""
        allowed = verdict.allowed
        self.tally.count(allowed)
        tallies, limits = self.tallies, self.limits.spec.limits
        for place, decision in zip(request.asked, verdict.decisions, strict=True):
            if not allowed and limits[place].shadow:
                continue
            tally = tallies[place]
            if decision.allowed:
                tally.allowed += 1
            else:
                tally.denied += 1
        return Judgement(verdict, request.limits)


class KeyedChecks(Checker[Sequence[Decision]]):
    """Checks limits whose store does not answer at once, by one key for each limit, None for a
    keyless one. The caller counts the decisions."""

    def __init__(self, limits: PolicyLimits, guard: Guard) -> None:
        self._limits = limits
        self._guard = guard
        self._count = len(limits.limits)
        self.can_begin: bool = limits.store.begin is not None

    def check(self, keys: Sequence[str | None], cost: int) -> Later[Sequence[Decision]]:
        return StoreCheck(self, keys, cost)

    async def ask(self, keys: Sequence[str | None], cost: int) -> Sequence[Decision]:
        return await self._limits.ask_keyed(keys, cost)

    def begin(self, told: Told, keys: Sequence[str | None], cost: int) -> None:
        self._limits.begin_keyed(keys, cost, told)

    def answer(
        self, decisions: Any, error: Exception | None, keys: Sequence[str | None], cost: int
    ) -> Sequence[Decision]:
        if error is None:
            return decisions  # type: ignore[no-any-return]
        named = [key for key in keys if key is not None]
        return [self._guard.decision(error, named, 1)] * self._count


def _decision(judged: Judgement) -> Decision:
    return judged.verdict.decision
