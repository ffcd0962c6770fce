"""The content of a valid policy file.

Counts are kept under the name of a limit and the form of its states: the strategy, its window, its
buckets, everything without which a state cannot be read. So a limit that is raised or lowered keeps
its counts, and one with another window starts afresh.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from ..budget import TokenBudget
from ..concurrency import Gradient, Law
from ..concurrency._limiter import LEASE_TTL_MS
from ..core._strategy import Strategy
from ..strategies import fixed_window

__all__ = [
    "DEFAULT_FILE",
    "DEFAULT_PREFIX",
    "FAIL_MODES",
    "ConcurrencySpec",
    "Condition",
    "Figures",
    "LimitSpec",
    "PolicyFile",
    "PolicySpec",
    "SeveralSpec",
    "TwoTierSpec",
    "form_of",
]


FAIL_MODES = ("open", "closed", "error")
DEFAULT_PREFIX = "penstock"


@dataclass(frozen=True, slots=True)
class ConcurrencySpec:
    """The slots of a policy: the `law` of their ceiling, how long a lease lasts without a heartbeat
    (`lease_ttl_ms`), and whether each key has a pool of its own (`per_key`, for at most `max_keys`
    keys)."""

    law: Law = field(default_factory=Gradient)
    lease_ttl_ms: int = LEASE_TTL_MS
    per_key: bool = False
    max_keys: int = 10_000


@dataclass(frozen=True)
class TwoTierSpec:
    """How a node spends a strategy: `mode`, `batch`, `low_water`, `window_coupled`,
    `return_idle_after_ms` and `max_stale_ms` are the parameters of `two_tier`."""

    mode: Literal["strict", "cached-deny", "leased"] = "leased"
    batch: int = 100
    low_water: int = 0
    window_coupled: bool | None = None
    return_idle_after_ms: int | None = None
    max_stale_ms: int = 1_000


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of a limit: the `attribute` has one of the `values` or, without values, is
    present (`exists`) or absent."""

    attribute: str
    values: tuple[str, ...] = ()
    exists: bool = True

    def holds(self, attributes: Mapping[str, Any]) -> bool:
        found = attributes.get(self.attribute)
        if self.values:
            return found in self.values
        return (found is not None) is self.exists


class LimitSpec(NamedTuple):
    """One of several limits. `by` is the attribute whose value is its key, None for a keyless
    limit; `cost` the attribute that holds its cost, None for the cost of the request. `optional`
    says that it is skipped if one of these is missing, and `when` are its conditions."""

    name: str
    strategy: Strategy
    by: str | None = None
    cost: str | None = None
    shadow: bool = False
    optional: bool = False
    when: tuple[Condition, ...] = ()

    @property
    def form(self) -> str:
        """As `form_of` its strategy, for limits whose counts also mean the same: those of a user
        are not those of a tenant, nor are tokens requests."""
        return _digest(f"{self.strategy.state_form} by={self.by} cost={self.cost}")


Figures = Mapping[str, Strategy | None]
"""Maps the name of a limit, or a key, to the strategy that replaces its own; None lifts the
limit."""


@dataclass(frozen=True, slots=True)
class SeveralSpec:
    """Several limits that decide together. `plans` has the figures for each value of the attribute
    `plan_by`, by the name of the limit. `overrides` has those for single keys of a limit, which
    take precedence over a plan."""

    limits: tuple[LimitSpec, ...]
    plan_by: str = "plan"
    plans: Mapping[str, Figures] = field(default_factory=dict)
    overrides: Mapping[str, Figures] = field(default_factory=dict)

    def attributes(self) -> dict[str, str]:
        """The attributes of a request, each with a description of its use."""
        told: dict[str, str] = {}
        for limit in self.limits:
            if limit.by is not None:
                told.setdefault(limit.by, f"the key of {limit.name}")
            for condition in limit.when:
                told.setdefault(condition.attribute, f"decides whether {limit.name} is asked")
        for limit in self.limits:
            if limit.cost is not None:
                told.setdefault(limit.cost, f"the cost of {limit.name}")
        if self.plans:
            told.setdefault(self.plan_by, f"the plan: {', '.join(self.plans)}")
        return told

    def example(self) -> dict[str, str | int]:
        """What a request may tell, so that the limits are asked."""
        costs = {limit.cost for limit in self.limits}
        told: dict[str, str | int] = {
            name: 1 if name in costs else name for name in self.attributes()
        }
        for limit in self.limits:
            for condition in limit.when:
                if condition.values:
                    told[condition.attribute] = condition.values[0]
        if self.plans and told[self.plan_by] not in self.plans:
            told[self.plan_by] = next(iter(self.plans))
        return told

    @property
    def has_slots(self) -> bool:
        """Whether a request holds something until it is settled."""
        return any(limit.strategy.is_held for limit in self.limits)


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """The policy `name`: a `strategy`, a `budget`, slots (`concurrency`) with or without these
    two, or `several` limits.

    `max_keys` bounds the keys of a budget that is kept in this process. `fail` is the fail mode;
    None means that of the service. `two_tier` says how a node spends the strategy. `federated` is
    the most credits that a client may lease at once.
    """

    name: str
    strategy: Strategy | None = None
    budget: TokenBudget | None = None
    concurrency: ConcurrencySpec | None = None
    max_keys: int | None = None
    fail: str | None = None
    two_tier: TwoTierSpec | None = None
    federated: int | None = None
    several: SeveralSpec | None = None

    @property
    def kind(self) -> str:
        """ "limiter", "budget", "admission" (slots only), "unified" (slots with a strategy or a
        budget) or "limits" (several)."""
        if self.several is not None:
            return "limits"
        if self.concurrency is None:
            return "limiter" if self.strategy is not None else "budget"
        alone = self.strategy is None and self.budget is None
        return "admission" if alone else "unified"

    @property
    def limit(self) -> int:
        """The ceiling to display: that of the first limit or axis with a fixed one."""
        if self.several is not None:
            return self.several.limits[0].strategy.limit
        if self.strategy is not None:
            return self.strategy.limit
        if self.budget is not None:
            return self.budget.limit
        assert self.concurrency is not None
        return self.concurrency.law.max_limit

    @property
    def quota(self) -> int:
        """The units granted per `window_ms`, which may differ from `limit`, what is admitted at
        once."""
        if self.several is not None:
            return self.several.limits[0].strategy.rate[0]
        return self.limit if self.strategy is None else self.strategy.rate[0]

    @property
    def window_ms(self) -> int | None:
        """The window that belongs to `quota`, if there is one."""
        if self.several is not None:
            return self.several.limits[0].strategy.rate[1]
        axis = self.strategy if self.strategy is not None else self.budget
        return None if axis is None else axis.rate[1]


def form_of(strategy: Strategy) -> str:
    """A short digest that is equal exactly for strategies that can use each other's counts."""
    return _digest(strategy.state_form)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """All `policies` of a service, by name. Every key in the store begins with `prefix`. `source`
    is the name of the file, for messages, and `digest` identifies its content. `warnings` describe
    likely mistakes in a valid file, with their places."""

    policies: Mapping[str, PolicySpec]
    prefix: str = DEFAULT_PREFIX
    source: str = field(default="built-in defaults", compare=False)
    digest: str = field(default="", compare=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        # A read-only view of a dictionary cannot be pickled, and need not be.
        policies = self.policies
        held = dict(policies) if isinstance(policies, MappingProxyType) else policies
        return PolicyFile, (held, self.prefix, self.source, self.digest, self.warnings)


DEFAULT_FILE = PolicyFile(
    MappingProxyType({"default": PolicySpec("default", fixed_window(10, 60_000, "first"))})
)
"""What a service without a policy file serves: 10 requests per minute and key."""
