"""Policies of several limits: which limits apply to a request, with which keys, costs and figures.

The attributes of a request decide which limits apply, their keys, their costs, and their figures:
those of the policy, of a plan, or of an override for a single key. For each combination of limits
and figures there is one `Limits`, made when it is first needed. All of them use the same keys of
the store, because figures are not part of a key. A state holds the figures that it was written with
(`core/_figures.py`), so that it is converted where another plan uses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

from .._limits import Limit, Limits
from ..config._model import LimitSpec, SeveralSpec
from ..core._clock import Clock
from ..core._decision import Decision
from ..core._limiter import refuse_check
from ..core._steps import Step
from ..core._store import Store
from ..core._strategy import Strategy
from ..core._validation import plain_key, reject, require_int, shown
from ..core._verdict import Verdict
from ._deciding import Told

__all__ = ["Attributes", "Costs", "PolicyLimits", "Request", "SeveralLimits"]


Attributes = Mapping[str, Any]
"""The attributes of a request: text, or whole numbers for costs."""

Costs = Mapping[str, Any]
"""The costs of a request, by limit."""

# Each is a few kilobytes. When there are more, all are dropped and made again.
_MAX_COMBINATIONS = 1_024


class PolicyLimits(Limits):
    """`Limits` whose keys contain the form of their counts, so that figures may change."""

    def __init__(
        self,
        limits: Mapping[str, Limit],
        forms: Mapping[str, str],
        *,
        store: Store,
        clock: Clock | None,
        prefix: str,
    ) -> None:
        self._forms = forms
        super().__init__(limits, store=store, clock=clock, prefix=prefix)

    def _lead_of(self, lead: str, name: str, limit: Limit) -> str:
        return f"{lead}{name}:{self._forms[name]}"

    @property
    def gate(self) -> Any:
        """The compiled check, if there is one."""
        return self._gate

    @property
    def can_begin(self) -> bool:
        """Whether `begin_check` can be used: the store has `begin`, and there are no slots."""
        return self.store.begin is not None and not self._holds

    def begin_check(self, keys: Mapping[str, str], cost: int | dict[str, int], told: Told) -> None:
        """As `acheck`, with a callback. Pass the result to `verdict`."""
        if self._holds:
            refuse_check("check")
        _, steps = self._declared.steps(keys, cost)
        self._begin(steps, told)

    def begin_keyed(self, keys: Sequence[str | None], cost: int, told: Told) -> None:
        """As `begin_check`, with a validated key for each limit in order, None for a keyless
        one."""
        self._begin(self._declared.keyed_steps(keys, cost), told)

    def _begin(self, steps: Sequence[Step], told: Told) -> None:
        begin = self.store.begin
        assert begin is not None
        begin(steps, self._now(), told if len(steps) > 1 else partial(_tell_one, told))

    async def ask_keyed(self, keys: Sequence[str | None], cost: int) -> Sequence[Decision]:
        """As `begin_keyed`, awaited, on any store."""
        return await self.store.aapply_all(self._declared.keyed_steps(keys, cost), self._now())

    def verdict(self, decisions: Sequence[Decision]) -> Verdict:
        """The verdict from the decisions of all of these limits."""
        return self._declared.verdict(self._declared.parts, decisions, self._now())


def _tell_one(told: Told, decision: Decision, error: BaseException | None) -> None:
    told([decision], error)


class Request(NamedTuple):
    """A resolved request: the limits that apply, their keys and their costs. `asked` has their
    indices among the limits of the policy."""

    limits: PolicyLimits | None
    keys: dict[str, str]
    cost: int | dict[str, int]
    asked: Sequence[int]


class SeveralLimits:
    """Resolves the requests of one policy."""

    def __init__(
        self, policy: str, spec: SeveralSpec, store: Store, clock: Clock | None, prefix: str
    ) -> None:
        self.spec: SeveralSpec = spec
        self._policy = policy
        self._store = store
        self._clock = clock
        self._prefix = prefix
        self._known = frozenset(spec.attributes())
        # The attributes that are keys, and those that are costs.
        self._by = {limit.by for limit in spec.limits if limit.by is not None}
        self._numbers = {limit.cost for limit in spec.limits if limit.cost is not None}
        # The attributes whose values conditions compare.
        conditions = [condition for limit in spec.limits for condition in limit.when]
        self._compared = {each.attribute for each in conditions if each.values}
        self._names = [limit.name for limit in spec.limits]
        self._has_costs = any(limit.cost is not None for limit in spec.limits)
        self._held = [limit.name for limit in spec.limits if limit.strategy.is_held]
        self.forms: dict[str, str] = {limit.name: limit.form for limit in spec.limits}
        """Under which the counts of each limit are kept."""
        self._made: dict[tuple[Strategy | None, ...], PolicyLimits | None] = {}
        # Made now, so that an invalid prefix or store is an error when the policy is built.
        self._usual = self._limits_of(tuple(limit.strategy for limit in spec.limits))
        self._places = range(len(spec.limits))
        # For the fast path: the limits that have a key, if all limits apply to every request with
        # the same figures.
        self._keyed: list[tuple[str, str]] | None = None
        if not spec.plans and not spec.overrides and not self._held and self.asks_all:
            self._keyed = [(each.name, each.by) for each in spec.limits if each.by is not None]

    @property
    def can_begin(self) -> bool:
        """Whether the store has `begin`."""
        return self._store.begin is not None

    @property
    def asks_all(self) -> bool:
        """Whether all limits apply to every request, at the cost of the request. Figures may still
        differ by plan and key."""
        return not any(map(_depends, self.spec.limits))

    def of_plan(self, plan: str | None) -> PolicyLimits | None:
        """The limits for requests with this plan, or without one; None if there is no such plan, or
        it lifts all limits."""
        figures = {} if plan is None else self.spec.plans.get(plan)
        if figures is None:
            return None
        limits = self.spec.limits
        return self._limits_of(tuple([figures.get(each.name, each.strategy) for each in limits]))

    def resolve(self, attributes: Attributes, cost: int = 1, costs: Costs | None = None) -> Request:
        """Resolve a request. `costs` has the costs of single limits, which replace `cost` and those
        from attributes. Raises `config_invalid` if an attribute is missing, unknown or invalid."""
        if self._keyed is not None and costs is None and len(attributes) == len(self._known):
            try:
                keys = {name: plain_key(attributes[by]) for name, by in self._keyed}
            except (KeyError, ValueError):
                pass  # the general path below raises the error that names the attribute
            else:
                return Request(self._usual, keys, cost, self._places)
        return self._resolved(attributes, cost, self._by_limit(attributes, costs))

    def _resolved(self, attributes: Attributes, cost: int, costs: Costs) -> Request:
        if not attributes.keys() <= self._known:
            self._refuse_unknown(attributes)
        figures = self._plan(attributes)
        self._require_values(attributes)
        overrides = self.spec.overrides
        keys: dict[str, str] = {}
        chosen: list[Strategy | None] = []
        asked = []
        for place, limit in enumerate(self.spec.limits):
            strategy = None
            if self._is_asked(limit, attributes, costs):
                name, by = limit.name, limit.by
                strategy = figures.get(name, limit.strategy)
                if by is not None:
                    key = attributes[by]
                    if name in overrides:
                        strategy = overrides[name].get(key, strategy)
                    keys[name] = key
                if strategy is None:
                    keys.pop(name, None)
                else:
                    asked.append(place)
            chosen.append(strategy)
        limits = self._limits_of(tuple(chosen))
        return Request(limits, keys, self._costs(asked, attributes, cost, costs), asked)

    def named(
        self, attributes: Attributes, limits: Sequence[str] | None
    ) -> tuple[PolicyLimits, dict[str, str | None]]:
        """The limits and keys to pause or reset: those that `limits` names, by default all that
        `attributes` has keys for. A keyless limit has to be named."""
        if not attributes.keys() <= self._known:
            self._refuse_unknown(attributes)
        for name in limits or ():
            self._require_limit(name)
        figures = self._plan(attributes)
        keys: dict[str, str | None] = {}
        chosen: list[Strategy | None] = []
        for limit in self.spec.limits:
            strategy = figures.get(limit.name, limit.strategy) or limit.strategy
            wanted = limit.by in attributes if limits is None else limit.name in limits
            if wanted and limit.by is None:
                keys[limit.name] = None
            elif wanted:
                key = self._text(str(limit.by), attributes.get(str(limit.by)))
                keys[limit.name] = key
                strategy = self.spec.overrides.get(limit.name, {}).get(key) or strategy
            chosen.append(strategy)
        made = self._limits_of(tuple(chosen))
        if not keys or made is None:
            reject(
                f"no limit of policy {self._policy!r} has its key in these attributes "
                f"({', '.join(attributes) or 'none'}); send {', '.join(sorted(self._by)) or 'none'}"
                ", or name limits"
            )
        return made, keys

    def answer(self, request: Request, decision: Any, now: int) -> Verdict:
        """The verdict if all limits have the same decision, as in an outage."""
        limits = [self.spec.limits[place] for place in request.asked]
        names = tuple([limit.name for limit in limits])
        shadows = tuple([limit.shadow for limit in limits])
        return Verdict(names, (decision,) * len(limits), shadows, now)

    def strategy_of(self, name: str) -> Strategy | None:
        """The strategy of a limit, without plans and overrides; None if there is no such limit."""
        found = [limit.strategy for limit in self.spec.limits if limit.name == name]
        return found[0] if found else None

    def plan_of(self, attributes: Attributes) -> str | None:
        """The plan of a request."""
        return attributes.get(self.spec.plan_by) if self.spec.plans else None

    def _plan(self, attributes: Attributes) -> Mapping[str, Strategy | None]:
        spec = self.spec
        plan = attributes.get(spec.plan_by) if spec.plans else None
        if plan is None:
            return {}
        found = spec.plans.get(plan) if isinstance(plan, str) else None
        if found is None:
            named = "of an empty name, or 0," if plan in ("", 0) else shown(plan)
            reject(
                f"policy {self._policy!r} has no plan {named} for the attribute "
                f"{spec.plan_by!r}; it has {', '.join(spec.plans)}"
            )
        return found

    def _require_limit(self, name: Any) -> LimitSpec:
        if name not in self._names:
            reject(
                f"there is no limit {shown(name)} in policy {self._policy!r}; there are "
                f"{', '.join(self._names)}"
            )
        return self.spec.limits[self._names.index(name)]

    def _by_limit(self, attributes: Attributes, costs: Costs | None) -> Costs:
        """Validate costs by limit: each needs the key of its limit. Limits that a plan lifts, or
        whose conditions do not hold, are no error, since callers need not know of that."""
        for name, units in (costs or {}).items():
            limit = self._require_limit(name)
            require_int(f"the cost of {name!r}", units, 0)
            if limit.by is not None and limit.by not in attributes:
                reject(
                    f"costs names the limit {name!r} of policy {self._policy!r}, but its key, the "
                    f"attribute {limit.by!r}, is missing; send it, or leave out that cost"
                )
        return costs or {}

    def _is_asked(self, limit: LimitSpec, attributes: Attributes, costs: Costs) -> bool:
        for condition in limit.when:
            if not condition.holds(attributes):
                return False
        for attribute in (limit.by, None if limit.name in costs else limit.cost):
            if attribute is not None and attribute not in attributes:
                if limit.optional:
                    return False
                self._refuse_missing(attribute, limit)
        return True

    def _refuse_missing(self, attribute: str, limit: LimitSpec) -> NoReturn:
        purpose = "key" if attribute == limit.by else "cost"
        reject(
            f"the attribute {attribute!r} is missing: it is the {purpose} of the limit "
            f"{limit.name!r} of policy {self._policy!r}; send it, or make the limit optional in "
            "the policy file"
        )

    def _refuse_unknown(self, attributes: Attributes) -> NoReturn:
        unknown = ", ".join(sorted(map(shown, attributes.keys() - self._known)))
        known = ", ".join(sorted(self._known)) or "none, and is asked without a key"
        reject(f"policy {self._policy!r} has no attribute {unknown}; it has {known}")

    def _require_values(self, attributes: Attributes) -> None:
        """Validate all values, also of attributes that no limit uses for this request: an invalid
        one may be the reason."""
        spec = self.spec
        for name, value in attributes.items():
            if name in self._by:
                self._text(name, value)
            elif name not in self._numbers and (name != spec.plan_by or not spec.plans):
                self._require_condition(name, value)

    def _require_condition(self, name: str, value: Any) -> None:
        """Validate an attribute of conditions: text like that of keys, or a number if it only has
        to exist."""
        if type(value) is int and value != 0 and name not in self._compared:
            return
        try:
            plain_key(value)
        except ValueError:
            reject(
                f"the attribute {name!r} must be text, of 1 to 4,096 bytes, for the conditions of "
                f"policy {self._policy!r}, not {shown(value) if value else 'empty, or 0'}"
            )

    def _text(self, name: str, value: Any) -> str:
        if value == 0:
            # Over gRPC, an empty text cannot be told from the number 0.
            reject(f"the attribute {name!r} is empty, or 0: a key is text, of 1 to 4,096 bytes")
        try:
            return plain_key(value)
        except ValueError as error:
            reject(f"the attribute {name!r}: {error}")

    def _costs(
        self, asked: Sequence[int], attributes: Attributes, cost: int, costs: Costs
    ) -> int | dict[str, int]:
        if not self._has_costs and not costs and not self._held:
            return cost
        by_limit: dict[str, int] = {}
        for place in asked:
            limit = self.spec.limits[place]
            name, told = limit.name, limit.cost
            if name in costs:
                by_limit[name] = costs[name]
            elif told is None:
                by_limit[name] = cost
            else:
                by_limit[name] = require_int(f"the attribute {told!r}", attributes[told], 0)
        for name in self._held:
            if by_limit.get(name, 1) > 1:
                reject(
                    f"a request holds one slot of the limit {name!r} of policy {self._policy!r}, "
                    f"not {by_limit[name]}; give the cost of the other limits in `costs`, by limit"
                )
        return by_limit

    def _limits_of(self, chosen: tuple[Strategy | None, ...]) -> PolicyLimits | None:
        try:
            return self._made[chosen]
        except KeyError:
            return self._make(chosen)

    def _make(self, chosen: tuple[Strategy | None, ...]) -> PolicyLimits | None:
        if len(self._made) >= _MAX_COMBINATIONS:
            self._made.clear()
        declared = {
            limit.name: Limit(strategy, shadow=limit.shadow, keyless=limit.by is None)
            for limit, strategy in zip(self.spec.limits, chosen, strict=True)
            if strategy is not None
        }
        made = None
        if declared:
            made = PolicyLimits(
                declared, self.forms, store=self._store, clock=self._clock, prefix=self._prefix
            ).shared()
        self._made[chosen] = made
        return made


def _depends(limit: LimitSpec) -> bool:
    """Whether the request decides if the limit applies, or at what cost."""
    return bool(limit.when) or limit.optional or limit.cost is not None
