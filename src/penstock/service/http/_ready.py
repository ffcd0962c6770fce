"""Checks that are answered in compiled code, from the bytes of the request to those of the reply.

It takes a request of a common form, which has arrived whole and alone, and a limit that is decided
at once, or by a store with `begin`. Everything else takes the general path, through `_reader.py`,
`_router.py` and `_calls.py`, with the same answers. This module is where compiled code looks up
limits; Python frames are most of the cost of a check in memory, so there are no others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ...adapters._headers import seconds_until_more
from ...core import native
from ...core._clock import ANCHOR_NS, SystemClock
from ...core._strategy import Strategy
from .._core import Service
from .._entries import Entry
from .._inline import INLINE, MAX_POLICIES
from .._judging import Judge
from ._answers import CLIENT, NESTED, PLAIN, Answers, Label
from ._charge_calls import ChargeCalls
from ._head import CLIENT_LEAD, Bounds
from ._router import Routes

__all__ = ["ready_checks", "whole_requests"]


def ready_checks(
    service: Service, answers: Answers, bounds: Bounds, charges: ChargeCalls
) -> dict[str, Any]:
    """The compiled check of each path; empty if nothing is compiled or the store has to be
    awaited."""
    if native is None or not (service.store.answers_at_once or service.store.begin):
        return {}
    limits = _ReadyLimits(service, answers)
    policies = _ReadyPolicies(service, charges)
    make, most = partial(native.ReadyCheck, answers.replies), bounds.body_bytes
    return {
        "/check": make(PLAIN, most, limits.by_policy, limits.by_terms),
        "/v1/check": make(NESTED, most, limits.by_rate, None, policies.by_name),
        "/check/*": make(CLIENT, 0, limits.by_default, None),
    }


def whole_requests(routes: Routes, bounds: Bounds) -> Any:
    """Answers whole requests for known routes, if there are compiled checks."""
    return native.WholeRequests(routes.known, bounds.head_bytes, bounds.head_fields, CLIENT_LEAD)


class _ReadyLimits:
    """Limits that are decided at once, with their labels; None for all others. They are cached by
    their `decide` function, which is another one after a policy was changed."""

    def __init__(self, service: Service, answers: Answers) -> None:
        self._service = service
        self._answers = answers
        steady = native.reads_steady_clock and type(service.clock) is SystemClock
        self._anchor_ns = ANCHOR_NS if steady else None
        self._plain: dict[Any, Any] = {}
        self._nested: dict[Any, Any] = {}

    def by_terms(self, limit: int, window_ms: int) -> Any:
        inline = self._service.inline(limit, window_ms)
        try:
            return self._plain[inline.decide]
        except KeyError:
            label = Label(INLINE, limit, window_ms, inline.strategy)
            return self._keep(self._plain, inline.decide, label)

    def by_policy(self, name: str) -> Any:
        return self._of_entry(self._plain, name, self._label)

    def by_rate(self, name: str) -> Any:
        return self._of_entry(self._nested, name, self._rate_label)

    def by_default(self, _none: None) -> Any:
        return self.by_policy("default") if "default" in self._service.policies else None

    def _of_entry(
        self, limits: dict[Any, Any], name: str, label_of: Callable[[Entry], Label | None]
    ) -> Any:
        entry = self._service.entry(name)
        try:
            return limits[entry.decide]
        except KeyError:
            return self._keep(limits, entry.decide, label_of(entry) if _is_ready(entry) else None)

    def _label(self, entry: Entry) -> Label | None:
        policy = entry.policy
        return self._answers.label(policy.name, policy.quota, policy.window_ms, policy.strategy)

    def _rate_label(self, entry: Entry) -> Label | None:
        strategy = entry.policy.axes.get("rate")
        if strategy is None:
            return None
        return self._answers.label(entry.policy.name, *strategy.rate, strategy)

    def _keep(self, limits: dict[Any, Any], decide: Any, label: Label | None) -> Any:
        if len(limits) >= MAX_POLICIES:
            limits.clear()
        limits[decide] = limit = None if decide is None else self._ready(decide, label)
        return limit

    def _ready(self, decide: Callable[..., Any], label: Label | None) -> Any:
        if label is None or label.strategy is None:
            return None
        return native.ReadyLimit(
            decide,
            label.lines,
            type(label.strategy).more_in_ms is Strategy.more_in_ms,
            partial(seconds_until_more, label.strategy),
            self._service.clock.now,
            self._anchor_ns,
        )


def _is_ready(entry: Entry) -> bool:
    """Whether its decisions are available at once, or by a callback."""
    limiter = entry.limiter
    if limiter is None:
        return False
    return limiter.answers_at_once or (limiter.decides_in_store and limiter.store.begin is not None)


class _ReadyPolicies:
    """Policies of several limits that decide at once, with their forms; None for all others. They
    are cached by their judge, which is another one after a policy was changed."""

    def __init__(self, service: Service, charges: ChargeCalls) -> None:
        self._service = service
        self._charges = charges
        self._made: dict[Judge, Any] = {}

    def by_name(self, name: str) -> Any:
        judge = self._service.entry(name).judge
        if judge is None:
            return None
        try:
            return self._made[judge]
        except KeyError:
            return self._make(judge)

    def _make(self, judge: Judge) -> Any:
        if len(self._made) >= MAX_POLICIES:
            self._made.clear()
        spec = judge.limits.spec
        fits = judge.limits.asks_all and native.ReadyPolicy.fits(len(spec.limits))
        self._made[judge] = made = native.ReadyPolicy(
            tuple([limit.by for limit in spec.limits]) if fits else (),
            tuple([spec.overrides.get(limit.name) for limit in spec.limits]) if fits else (),
            spec.plan_by if spec.plans else None,
            partial(self._of_plan, judge) if fits else _none,
            judge.tally,
            partial(self._charges.check_read, judge),
        )
        return made

    def _of_plan(self, judge: Judge, plan: Any) -> Any:
        """The limits for requests with a plan, or without one; None if there are none, or they are
        neither compiled nor on a store with `begin`."""
        limits = judge.limits.of_plan(plan)
        if limits is None or (limits.gate is None and not limits.can_begin):
            return None
        words = self._charges.form(limits).compiled
        if words is None:
            return None
        names = [limit.name for limit in judge.limits.spec.limits]
        places = [names.index(name) for name in limits.limits]
        tallies = [judge.tallies[place] for place in places]
        ask, now = judge.asking(limits).check, self._service.clock.now
        return native.ReadyLimits(limits.gate, ask, now, words, places, tallies)


def _none(_plan: Any) -> None:
    return None
