"""The table of named policies, which are built on first use.

A table belongs to one policy file; a reload makes a new table, which replaces the old one in one
assignment. A policy is built when it is first used, because a file may have tens of thousands, most
of which are rarely used, and no request should wait until all are built. Building cannot fail: the
whole file was validated before. Counts are in the store under

    <the file's prefix>:<name>:<form of the states>:<key>

with the name of the limit after that of the policy if the policy has several. So counts continue
after a reload, in this process and in all others that read the same file, also with other figures.
Only a change that makes states unusable, such as another window, starts counts afresh.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
"""Files with at most this many policies have all of them in the metrics from the start; those of
longer files appear with their first request."""

# Comparing a name with this many takes about a millisecond.
_GUESSED = 100

# This many built policies are some ten thousand objects.
_GROWTH = 256


class UnknownPolicyError(ConfigInvalidError):
    """No policy has that name."""


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

    def parts(self, terms: Sequence[tuple[str, str | None, int]], plan: str | None) -> list[Part]:
        """The parts of a charge, without limits that the policy no longer has. `terms` has the
        name of each limit (empty for a single one), its key and its units."""
        return [part for name, key, units in terms if (part := self._part(name, key, units, plan))]

    def _part(self, name: str, key: str | None, units: int, plan: str | None) -> Part | None:
        if self.judge is not None:
            strategy = self.judge.limits.strategy_of(name, plan, key)
        else:
            strategy = self.spec.strategy if not name and self.decide is not None else None
        if strategy is None:
            return None
        place = joined(self.prefix, self.spec.name, name, form_of(strategy), key or "")
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


class PolicyTable:
    """The policies of one file, by name. `before` is the table that this one will replace;
    iterating over `taking_over` transfers what it keeps in this process."""

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
        # Build one, so that an invalid prefix or store, which concerns all, is an error here.
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
        """Take over from the old table, and build policies with slots; in small steps, between
        which the old table may serve requests."""
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
        """Keep a policy whose definition has not changed. Build another one now if it has state in
        this process that can be taken over."""
        if name not in self.file.policies or name in self.entries:
            return
        entry = before.entries[name]
        if self.file.prefix == before.file.prefix and _defined_alike(name, self.file, before.file):
            self.entries[name] = entry
        elif entry.keeps_state:
            self[name]

    def letting_go(self) -> Iterator[None]:
        """Drop the policies in small steps, since freeing a million objects at once takes long."""
        while self.entries:
            self.entries.popitem()
            yield

    def slots(self) -> dict[str, dict[str, int]]:
        """The ceiling and use of the slots of each policy that has some."""
        held: dict[str, dict[str, int]] = {}
        for name, entry in self.entries.items():
            if entry.control is not None:
                slots = entry.control.concurrency
                # First, since reading this may find expired leases.
                in_flight = slots.in_flight
                held[name] = {
                    "limit": slots.limit,
                    "in_flight": in_flight,
                    "reclaimed": entry.tally.reclaimed,
                }
        return held

    def own_stores(self) -> Iterator[tuple[str, Store]]:
        """The stores in this process that belong to a single policy, by kind."""
        for entry in self.entries.values():
            if entry.budget is not None and entry.budget.store is not self._site.store:
                yield "budgets", entry.budget.store
            if isinstance(entry.limiter, TwoTierLimiter):
                yield "credits", entry.limiter.near_store

    async def aclose(self) -> None:
        """Wait for leases in flight."""
        for entry in self.entries.values():
            if isinstance(entry.limiter, TwoTierLimiter):
                await entry.limiter.aclose()


class _Served(Mapping[str, Policy]):
    """The descriptions of the policies of a table."""

    __slots__ = ("_table",)

    def __init__(self, table: PolicyTable) -> None:
        self._table = table

    def get(self, name: str, default: Any = None) -> Any:
        # Called for every reply, for a policy that has just been used.
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
    """The error, with the most similar name unless there are too many to compare."""
    near = get_close_matches(str(name)[:80], known, n=1) if len(known) <= _GUESSED else []
    hint = f"did you mean {near[0]!r}?" if near else "use one of the policy file"
    return UnknownPolicyError(f"there is no policy {str(name)[:80]!r}; {hint}")


@dataclass(frozen=True, slots=True)
class _Builder:
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
