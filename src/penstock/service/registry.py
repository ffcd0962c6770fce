"""Named policies, built and ready to be asked.

A table of them is made whole from a policy file and never changed; a reload makes another and the
service swaps the two in one assignment. Counts are kept in the store under

    <the file's prefix>:<name>:<meaning>:<key>

so a policy that means the same after a reload goes on where it was, in this process and in every
other one that reads the same file, and one that means something else starts afresh.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType

from ..config.model import PolicyFile, PolicySpec
from ..core.clock import Clock
from ..core.decision import Decision
from ..core.errors import ConfigInvalidError, UnsupportedError
from ..core.limiter import Limiter
from ..core.store import Store
from ..core.strategy import Strategy
from ..front import rate_limit
from ..stores.memory import MemoryStore
from .failing import Guard
from .metrics import Metrics, Tally

__all__ = ["Checker", "Entry", "Policy", "Table", "UnknownPolicyError", "limiter_on"]

Checker = Callable[[str, int], Decision]


class UnknownPolicyError(ConfigInvalidError):
    """No policy has that name."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy as a door shows it. `window_ms` is None for strategies without a window."""

    name: str
    kind: str
    limit: int
    window_ms: int | None
    fail: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A policy at work: what answers for each of its axes, and who answers in an outage."""

    policy: Policy
    tally: Tally
    guard: Guard
    limiter: Limiter | None = None
    budget: Limiter | None = None
    checker: Checker | None = None

    def rate(self, operation: str) -> Limiter:
        if self.limiter is None or self.policy.kind != "limiter":
            raise self.lacks(operation)
        return self.limiter

    def tokens(self) -> Limiter:
        if self.budget is None:
            raise self.lacks("debit")
        return self.budget

    def lacks(self, operation: str) -> UnsupportedError:
        has = {
            "limiter": "check, check_many, peek and forecast",
            "budget": "debit",
            "admission": "admit, release and heartbeat",
            "unified": "admit, release and heartbeat",
        }[self.policy.kind]
        return UnsupportedError(
            f"policy {self.policy.name!r} has no {operation}: it is of the kind "
            f"{self.policy.kind!r}, which has {has}"
        )


class Table:
    """The policies of one file, by name."""

    def __init__(
        self, file: PolicyFile, store: Store, clock: Clock, fail: str, metrics: Metrics
    ) -> None:
        self.file = file
        build = _Builder(file, store, clock, fail, metrics).entry
        self._entries = {name: build(spec) for name, spec in file.policies.items()}
        self.policies: Mapping[str, Policy] = MappingProxyType(
            {name: entry.policy for name, entry in self._entries.items()}
        )

    def __getitem__(self, name: str) -> Entry:
        try:
            return self._entries[name]
        except (KeyError, TypeError):
            raise self._unknown(name) from None

    def _unknown(self, name: object) -> UnknownPolicyError:
        near = get_close_matches(str(name), self._entries, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "name one that the policy file has"
        return UnknownPolicyError(f"there is no policy {str(name)[:80]!r}; {hint}")


@dataclass(frozen=True, slots=True)
class _Builder:
    """Entries from specs, all on one store."""

    file: PolicyFile
    store: Store
    clock: Clock
    fail: str
    metrics: Metrics

    def entry(self, spec: PolicySpec) -> Entry:
        assert spec.strategy is not None
        fail = spec.fail or self.fail
        strategy = spec.strategy
        policy = Policy(spec.name, spec.kind, strategy.limit, strategy.window_ms, fail)
        tally = self.metrics.tally(spec.name)
        guard = Guard(spec.name, policy.limit, fail, self.clock, tally)
        limiter = limiter_on(self.store, strategy, self.clock, self.prefix(spec))
        return Entry(policy, tally, guard, limiter=limiter, checker=checker_of(limiter, tally))

    def prefix(self, spec: PolicySpec) -> str:
        parts = (self.file.prefix, spec.name, spec.meaning)
        return ":".join(part for part in parts if part)


def limiter_on(store: Store, strategy: Strategy, clock: Clock, prefix: str) -> Limiter:
    """A limiter by the service's clock, unless the store has one of its own."""
    return rate_limit(
        strategy, store=store, clock=None if store.reads_own_clock else clock, prefix=prefix
    )


def checker_of(limiter: Limiter, tally: Tally) -> Checker | None:
    """A check that never waits, for a store in this process; None for any other."""
    if not isinstance(limiter.store, MemoryStore):
        return None
    decide = limiter.check

    def check(key: str, cost: int = 1) -> Decision:
        decision = decide(key, cost)
        if decision.allowed:
            tally.allowed += 1
        else:
            tally.denied += 1
        return decision

    return check
