"""Named policies, built and ready to be asked.

A table belongs to one policy file; a reload makes another and the service swaps the two in one
assignment. What answers for a policy is made when it is first asked for: a file may have tens of
thousands, of which most are asked for seldom, and no request should wait until all are made. That
cannot fail, since a file is found good, down to the last of its policies, before it gets here.
Counts are kept in the store under

    <the file's prefix>:<name>:<form of the states>:<key>

and with the name of the limit after that of the policy, where it has several. So a policy goes on
where it was after a reload, with other figures too, in this process and in every other one that
reads the same file; only what makes states unreadable, such as another window, starts afresh.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from functools import cached_property
from itertools import islice
from typing import Any
from weakref import WeakSet

from ..admission import AdmissionControl
from ..concurrency import ConcurrencyLimiter, Law
from ..config import has_fail_mode, in_words, names_with
from ..config._model import ConcurrencySpec, PolicyFile, PolicySpec, SeveralSpec, form_of
from ..config._policies import Policies
from ..core._charges import Part
from ..core._clock import Clock
from ..core._errors import ConfigInvalidError, UnsupportedError
from ..core._limiter import Limiter
from ..core._store import Store
from ..core._strategy import Strategy
from ..core._validation import reject
from ..leasing import TwoTierLimiter, two_tier
from ._deciding import Decide, deciding, joined, limiter_on
from ._fail_modes import Guard, Outages
from ._fleet import Lessor
from ._judging import Judge
from ._metrics import Metrics, Tally, tally_name
from ._several import SeveralLimits

__all__ = [
    "SHOWN",
    "Entry",
    "Policy",
    "PolicyTable",
    "Site",
    "UnknownPolicyError",
    "unknown_policy",
]


SHOWN = 1_000
"""Policies of a file of at most so many are in the metrics from the start, those of a longer one
from their first request on."""

# Comparing a name with so many takes about a millisecond.
_GUESSED = 100

# So many policies at work are some ten thousand objects.
_GROWTH = 256


class UnknownPolicyError(ConfigInvalidError):
    """No policy has that name."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy as a server shows it. `limit` is what it admits at once, `quota` what it grants per
    `window_ms`, which is None for strategies without a window, `terms` what it allows, in words.
    `strategy` is what decides its rate, if it has one, and `axes` what decides on each axis that is
    kept in a store: "rate" and "cost". `several` are its limits, where it has more than one."""

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
    """A policy at work: what answers for each of its axes, and who answers in an outage."""

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
        """The limits that are asked by attributes."""
        if self.judge is None:
            if self.limiter is not None and self.control is None:
                reject(
                    f"policy {self.policy.name!r} is one limit, which is asked by a key, at one "
                    "cost; leave attributes and costs out, or give it `limits` in the policy file"
                )
            raise self.lacks(operation)
        return self.judge

    def form(self, name: str) -> str:
        """Under which the counts of a limit are kept, whose name is empty for the only one; "" if
        it is not there."""
        if self.judge is not None:
            return self.judge.limits.forms.get(name, "")
        if name or self.decide is None or self.spec.strategy is None:
            return ""
        return form_of(self.spec.strategy)

    def part(self, name: str, key: str | None, units: int, plan: str | None) -> Part | None:
        """What of a charge concerns a limit; None if that is not there, or lifted."""
        form = self.form(name)
        strategy = self.spec.strategy
        if self.judge is not None:
            strategy = self.judge.limits.strategy_of(name, plan, key)
        if not form or strategy is None:
            return None
        place = joined(self.prefix, self.spec.name, name, form, key or "")
        return Part(name, place, strategy, units)

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
                f"policy {self.policy.name!r} hands out no {axis}; add `federated: {{batch: 100}}` "
                "to a policy with a windowed strategy or a token budget"
            )
        return found

    @property
    def keeps_state(self) -> bool:
        """Whether some of what it knows is in this process alone."""
        spec = self.spec
        return not (spec.two_tier is None and spec.concurrency is None and spec.max_keys is None)

    def lacks(self, operation: str) -> UnsupportedError:
        kind = self.policy.kind
        return UnsupportedError(
            f"policy {self.policy.name!r} has no {operation}: it is of the kind {kind!r}, "
            f"which has {_OPERATIONS[kind]}"
        )


@dataclass(frozen=True, slots=True)
class Site:
    """What all policies of a service stand on: the store, that of the slots, which is the same one
    unless it is in this process, and the limiters of slots that are at work. `grown` is called now
    and then, when much has been made that stays."""

    store: Store
    slots: Store
    clock: Clock
    fail: str
    metrics: Metrics
    limiters: WeakSet[ConcurrencyLimiter] = field(default_factory=WeakSet)
    outages: Outages = field(default_factory=Outages)
    grown: Callable[[], None] = lambda: None


class PolicyTable:
    """The policies of one file, by name. `before` is the table that this one will replace; what
    that keeps in this process is taken over by running through `taking_over`."""

    def __init__(self, file: PolicyFile, site: Site, before: PolicyTable | None = None) -> None:
        self.file = file
        self.entries: dict[str, Entry] = {}
        self.policies: Mapping[str, Policy] = _Served(self)
        self._site = site
        self._before = before
        self._build = _Builder(file.prefix, site, {} if before is None else before.entries)
        if len(file.policies) <= SHOWN:
            for name in file.policies:
                site.metrics.tally(name)
        # What is wrong with a prefix or a store is wrong for all: one stands for the others.
        for name in islice(file.policies, 1):
            self[name]

    @cached_property
    def needs_store(self) -> bool:
        """Whether some policy answers with an error while the store is away."""
        return has_fail_mode(self.file.policies, "error", self._site.fail)

    def __getitem__(self, name: str) -> Entry:
        try:
            return self.entries[name]
        except (KeyError, TypeError):
            return self._made(name)

    def _made(self, name: str) -> Entry:
        spec = self.file.policies.get(name) if isinstance(name, str) else None
        if spec is None:
            raise unknown_policy(name, self.file.policies)
        entry = self.entries[name] = self._build.entry(spec)
        if len(self.entries) % _GROWTH == 0:
            self._site.grown()
        return entry

    def taking_over(self) -> Iterator[None]:
        """Take over from the table before, and make what has to be there before it is asked for;
        in small steps, between which requests may be answered by the table before."""
        if len(self.file.policies) <= SHOWN:
            for name in names_with(self.file.policies, "concurrency"):
                yield
                self[name]
        before, looked_at = self._before, set[str]()
        while before is not None and (made := before.entries.keys() - looked_at):
            for name in made:
                yield
                self._take_over(name, before)
            looked_at |= made
        self._before = None
        self._build = _Builder(self.file.prefix, self._site, {})

    def _take_over(self, name: str, before: PolicyTable) -> None:
        """A policy that is defined as before is the same one; what any other keeps in this
        process is looked for while it is there to be found."""
        if name not in self.file.policies or name in self.entries:
            return
        entry = before.entries[name]
        if self.file.prefix == before.file.prefix and _defined_alike(name, self.file, before.file):
            self.entries[name] = entry
        elif entry.keeps_state:
            self[name]

    def letting_go(self) -> Iterator[None]:
        """Forget what is not needed any more, in small steps: to free a million objects at once
        takes a while too."""
        while self.entries:
            self.entries.popitem()
            yield

    def slots(self) -> dict[str, dict[str, int]]:
        """How the slots of each policy that has some stand."""
        held: dict[str, dict[str, int]] = {}
        for name, entry in self.entries.items():
            if entry.control is not None:
                slots = entry.control.concurrency
                # Looking at them may turn out some to be lost.
                in_flight = slots.in_flight
                held[name] = {
                    "limit": slots.limit,
                    "in_flight": in_flight,
                    "reclaimed": entry.tally.reclaimed,
                }
        return held

    def own_stores(self) -> Iterator[tuple[str, Store]]:
        """Tables in this process that one policy has to itself, by kind."""
        for entry in self.entries.values():
            if entry.budget is not None and entry.budget.store is not self._site.store:
                yield "budgets", entry.budget.store
            if isinstance(entry.limiter, TwoTierLimiter):
                yield "credits", entry.limiter.near_store

    async def aclose(self) -> None:
        """End what limiters have under way."""
        for entry in self.entries.values():
            if isinstance(entry.limiter, TwoTierLimiter):
                await entry.limiter.aclose()


class _Served(Mapping[str, Policy]):
    """The policies of a table as the servers show them."""

    __slots__ = ("_table",)

    def __init__(self, table: PolicyTable) -> None:
        self._table = table

    def get(self, name: str, default: Any = None) -> Any:
        # Asked for with every reply, of a policy that has just been at work.
        entry = self._table.entries.get(name)
        return super().get(name, default) if entry is None else entry.policy

    def __getitem__(self, name: str) -> Policy:
        if name not in self._table.file.policies:
            raise KeyError(name)
        return self._table[name].policy

    def __contains__(self, name: object) -> bool:
        return name in self._table.file.policies

    def __iter__(self) -> Iterator[str]:
        return iter(self._table.file.policies)

    def __len__(self) -> int:
        return len(self._table.file.policies)


def _defined_alike(name: str, one: PolicyFile, other: PolicyFile) -> bool:
    if isinstance(one.policies, Policies) and isinstance(other.policies, Policies):
        return one.policies.same(name, other.policies)
    return one.policies[name] == other.policies.get(name)


def unknown_policy(name: object, known: Collection[str]) -> UnknownPolicyError:
    """With the name that was probably meant, unless there are too many to look through."""
    near = get_close_matches(str(name)[:80], known, n=1) if len(known) <= _GUESSED else []
    hint = f"did you mean {near[0]!r}?" if near else "name one that the policy file has"
    return UnknownPolicyError(f"there is no policy {str(name)[:80]!r}; {hint}")


@dataclass(frozen=True, slots=True)
class _Builder:
    """Entries from specs. What is kept in this process and means the same is taken over."""

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
        old = self.before.get(spec.name)
        if old is not None and old.limiter is not None and _spends_alike(old.spec, spec):
            # The same counts in the store, and credits from there that are still good.
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
            old = self.before.get(spec.name)
            if old is not None and old.budget is not None and old.spec.max_keys == spec.max_keys:
                store = old.budget.store
            else:
                store = store.another(clock=self.site.clock, max_keys=spec.max_keys)
        return self._limiter(store, spec.name, spec.budget)

    def _slots(self, spec: PolicySpec, slots: ConcurrencySpec, tally: Tally) -> ConcurrencyLimiter:
        old = self.before.get(spec.name)
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
            # Whatever the law and its bounds are: those who hold slots hold them of this policy.
            prefix=joined(self.prefix, spec.name, "slots"),
            name=spec.name,
        )
        self.site.limiters.add(made)
        return made


class _Slots(ConcurrencyLimiter):
    """Slots whose losses are counted with the policy, which may outlive them."""

    def __init__(self, tally: Tally, law: Law, **options: Any) -> None:
        super().__init__(law, **options)
        self._tally = tally

    def lost(self, count: int) -> None:
        self._tally.reclaimed += count


def _lessors(
    spec: PolicySpec, limiter: Limiter | None, budget: Limiter | None, guard: Guard
) -> dict[str, Lessor]:
    """Who hands out what, by axis."""
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
