"""Policies built from their definitions: limiters, fail mode and metrics of each.

A policy file is read into specs (`config/_model.py`). An `Entry` is what the service asks for one
policy, and a `Policy` its description for servers. Counts are in the store under

    <the file's prefix>:<name>:<form of the states>:<key>

with the name of the limit after that of the policy if the policy has several. So counts continue
after a reload, in this process and in all others that read the same file, also with other figures.
Only a change that makes states unusable, such as another window, starts counts afresh.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from weakref import WeakSet

from ..admission import AdmissionControl
from ..concurrency import ConcurrencyLimiter, Law
from ..config import in_words
from ..config._model import ConcurrencySpec, PolicySpec, SeveralSpec, form_of
from ..core._charges import Part
from ..core._clock import Clock
from ..core._errors import UnsupportedError
from ..core._limiter import Limiter
from ..core._store import Store
from ..core._strategy import Strategy
from ..core._validation import reject
from ..leasing import two_tier
from ._deciding import Decide, deciding, joined, limiter_on
from ._fail_modes import Guard, Outages
from ._fleet import Lessor
from ._judging import Judge
from ._metrics import Metrics, Tally, tally_name
from ._several import SeveralLimits

__all__ = ["Entry", "EntryBuilder", "Policy", "Site"]


@dataclass(frozen=True, slots=True)
class Policy:
    """The description of a policy, for servers. `limit` is what it admits at once, `quota` what it
    grants per `window_ms` (None without a window), and `terms` the same in English. `strategy` is
    that of its rate, if it has one, and `axes` has the strategy of each of "rate" and "cost" that
    it limits. `several` holds its limits if it has more than one."""

    name: str
    kind: str
    limit: int
    quota: int
    window_ms: int | None
    fail: str
    terms: str
    strategy: Strategy | None
    axes: Mapping[str, Strategy]
    several: SeveralSpec | None = None


_OPERATIONS = {
    "limiter": "check, check_many, peek and forecast",
    "budget": "debit",
    "admission": "admit",
    "unified": "admit, and debit if it has a token budget",
    "limits": "check, check_many, peek, forecast, reserve, settle, cancel, pause and reset",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A built policy: its limiters for each axis, its fail mode and its metrics."""

    spec: PolicySpec
    policy: Policy
    tally: Tally
    guard: Guard
    limiter: Limiter | None = None
    budget: Limiter | None = None
    control: AdmissionControl | None = None
    decide: Decide | None = None
    lessors: Mapping[str, Lessor] = field(default_factory=dict)
    judge: Judge | None = None
    prefix: str = ""

    def limits(self, operation: str) -> Judge:
        """The judge of a policy with several limits."""
        if self.judge is None:
            if self.limiter is not None and self.control is None:
                reject(
                    f"policy {self.policy.name!r} has a single limit: pass a key and a cost, and "
                    "neither attributes nor costs, or give it `limits` in the policy file"
                )
            raise self.lacks(operation)
        return self.judge

    def form(self, name: str) -> str:
        """The form of the counts of a limit, whose name is empty for a single one; "" if the policy
        has no such limit."""
        if self.judge is not None:
            return self.judge.limits.forms.get(name, "")
        if name or self.decide is None or self.spec.strategy is None:
            return ""
        return form_of(self.spec.strategy)

    def part(self, name: str, key: str | None, units: int, figures: Sequence[Any]) -> Part | None:
        """The part of a charge that concerns a limit, with the figures by which it was charged,
        whatever they are now; None if the policy no longer has the limit."""
        form = self.form(name)
        strategy = self.spec.strategy
        if self.judge is not None:
            strategy = self.judge.limits.strategy_of(name)
        if not form or strategy is None:
            return None
        place = joined(self.prefix, self.spec.name, name, form, key or "")
        return Part(name, place, strategy.with_figure_values(figures), units)

    def rate(self, operation: str) -> Limiter:
        if self.limiter is None or self.control is not None:
            raise self.lacks(operation)
        return self.limiter

    def tokens(self) -> Limiter:
        if self.budget is None:
            raise self.lacks("debit")
        return self.budget

    def admission(self) -> AdmissionControl:
        if self.control is None:
            raise self.lacks("admit")
        return self.control

    def lessor(self, axis: str) -> Lessor:
        found = self.lessors.get(axis)
        if found is None:
            raise UnsupportedError(
                f"policy {self.policy.name!r} has no credits of {axis!r} to lease; use a policy "
                "that has a window or a token budget, with `federated: {batch: 100}`"
            )
        return found

    @property
    def keeps_state(self) -> bool:
        """Whether some of its state is in this process only."""
        spec = self.spec
        return not (spec.two_tier is None and spec.concurrency is None and spec.max_keys is None)

    def lacks(self, operation: str) -> UnsupportedError:
        kind = self.policy.kind
        return UnsupportedError(
            f"policy {self.policy.name!r} does not support {operation}: it is of the kind "
            f"{kind!r}, which supports {_OPERATIONS[kind]}"
        )


@dataclass(frozen=True, slots=True)
class Site:
    """What all policies of a service share: the store; the store of the slots, which is the same
    unless it is in this process; the clock; the metrics; and the limiters of slots in use. `grown`
    is called from time to time after many long-lived objects were made."""

    store: Store
    slots: Store
    clock: Clock
    fail: str
    metrics: Metrics
    limiters: WeakSet[ConcurrencyLimiter] = field(default_factory=WeakSet)
    outages: Outages = field(default_factory=Outages)
    grown: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class EntryBuilder:
    """Builds entries from specs. State in this process is taken over from `before` if its
    definition has not changed."""

    prefix: str
    site: Site
    before: Mapping[str, Entry]

    def entry(self, spec: PolicySpec) -> Entry:
        site = self.site
        fail = spec.fail or site.fail
        axes = {"rate": spec.strategy, "cost": spec.budget}
        policy = Policy(
            spec.name,
            spec.kind,
            spec.limit,
            spec.quota,
            spec.window_ms,
            fail,
            in_words(spec),
            spec.strategy,
            {axis: strategy for axis, strategy in axes.items() if strategy is not None},
            spec.several,
        )
        tally = site.metrics.tally(spec.name)
        guard = Guard(spec.name, policy.limit, fail, site.clock, tally, site.outages)
        if spec.several is not None:
            judge = self._judge(spec.name, spec.several, guard, tally)
            return Entry(
                spec, policy, tally, guard, decide=judge.decide, judge=judge, prefix=self.prefix
            )
        limiter = self._rate(spec)
        budget = self._budget(spec)
        control = None
        if spec.concurrency is not None:
            slots = self._slots(spec, spec.concurrency, tally)
            control = AdmissionControl(slots, limiter, budget)
        decide = None
        if limiter is not None and spec.kind == "limiter":
            decide = deciding(limiter, guard, tally)
        lessors = _lessors(spec, limiter, budget, guard)
        return Entry(
            spec,
            policy,
            tally,
            guard,
            limiter,
            budget,
            control,
            decide,
            lessors,
            prefix=self.prefix,
        )

    def _before(self, spec: PolicySpec) -> Entry | None:
        """The entry whose state in this process is still that of the policy: under another prefix
        everything starts afresh."""
        old = self.before.get(spec.name)
        return old if old is not None and old.prefix == self.prefix else None

    def _judge(self, name: str, spec: SeveralSpec, guard: Guard, tally: Tally) -> Judge:
        store, clock = self.site.store, self.site.clock
        home = None if store.reads_own_clock else clock
        limits = SeveralLimits(name, spec, store, home, joined(self.prefix, name))
        tallies = [
            self.site.metrics.tally(tally_name(name, limit.name, limit.shadow))
            for limit in spec.limits
        ]
        return Judge(limits, guard, tally, tallies)

    def _rate(self, spec: PolicySpec) -> Limiter | None:
        if spec.two_tier is None or spec.strategy is None:
            return self._limiter(self.site.store, spec.name, spec.strategy)
        prefix = joined(self.prefix, spec.name, form_of(spec.strategy))
        old = self._before(spec)
        if old is not None and old.limiter is not None and _spends_alike(old.spec, spec):
            # The counts in the store are the same, so its credits are still valid.
            return old.limiter
        return two_tier(
            spec.strategy,
            self.site.store,
            clock=None if self.site.store.reads_own_clock else self.site.clock,
            prefix=prefix,
            **asdict(spec.two_tier),
        ).shared()

    def _limiter(self, store: Store, name: str, strategy: Strategy | None) -> Limiter | None:
        if strategy is None:
            return None
        prefix = joined(self.prefix, name, form_of(strategy))
        return limiter_on(store, strategy, self.site.clock, prefix)

    def _budget(self, spec: PolicySpec) -> Limiter | None:
        store = self.site.store
        if spec.max_keys is not None:
            old = self._before(spec)
            if old is not None and old.budget is not None and old.spec.max_keys == spec.max_keys:
                store = old.budget.store
            else:
                store = store.another(clock=self.site.clock, max_keys=spec.max_keys)
        return self._limiter(store, spec.name, spec.budget)

    def _slots(self, spec: PolicySpec, slots: ConcurrencySpec, tally: Tally) -> ConcurrencyLimiter:
        old = self._before(spec)
        if old is not None and old.control is not None and old.spec.concurrency == slots:
            return old.control.concurrency
        store = self.site.slots
        made = _Slots(
            tally,
            slots.law,
            lease_ttl_ms=slots.lease_ttl_ms,
            per_key=slots.per_key,
            max_keys=slots.max_keys,
            clock=None if store.reads_own_clock else self.site.clock,
            store=store,
            # Without the law and its bounds: slots stay held if these change.
            prefix=joined(self.prefix, spec.name, "slots"),
            name=spec.name,
        )
        self.site.limiters.add(made)
        return made


class _Slots(ConcurrencyLimiter):
    """Slots whose expired leases are counted in the metrics of the policy."""

    def __init__(self, tally: Tally, law: Law, **options: Any) -> None:
        super().__init__(law, **options)
        self._tally = tally

    def lost(self, count: int) -> None:
        self._tally.reclaimed += count


def _lessors(
    spec: PolicySpec, limiter: Limiter | None, budget: Limiter | None, guard: Guard
) -> dict[str, Lessor]:
    """The lessor of each axis."""
    if spec.federated is None:
        return {}
    axes = {"rate": limiter, "token_budget": budget}
    return {
        axis: Lessor(spec.name, source, spec.federated, guard)
        for axis, source in axes.items()
        if source is not None
    }


def _spends_alike(one: PolicySpec, other: PolicySpec) -> bool:
    return one.two_tier == other.two_tier and repr(one.strategy) == repr(other.strategy)
