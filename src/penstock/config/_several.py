"""Several limits in one policy: `limits`, and the figures that replace theirs, by plan and by key.

    limits:
      user:   {by: user, strategy: gcra, limit: 100, period: 1m}
      tokens: {by: user, cost: tokens, strategy: tokenBucket, capacity: 50000, refillPerSec: 800}
      all:    {strategy: gcra, limit: 5000, period: 1s}
    plans:
      by: plan
      pro: {user: {limit: 1000}, tokens: unlimited}
    overrides:
      user: {alice: {limit: 500}}

A plan or an override may change only figures that are not part of the form of the states, because
all of them use the same counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from ..core._register import registered
from ..core._strategy import Strategy
from ..core._validation import require_key
from ..strategies import Slots
from ._model import Condition, Figures, LimitSpec, SeveralSpec
from ._reader import Fields, camel, shown
from ._strategies import (
    class_of,
    example_of,
    given_values,
    guarded,
    made,
    parameter_names,
    spellings,
)
from ._tree import Path, Tree

__all__ = ["HELD", "LIMIT_FIELDS", "LIMIT_NAME", "MAX_LIMITS", "UNLIMITED", "read_several"]


LIMIT_FIELDS = ("strategy", "by", "cost", "shadow", "optional", "when")
"""The fields of a limit besides the parameters of its strategy."""

MAX_LIMITS = 16
"""How many limits one policy may have: each is a key of the store in every request."""

HELD: tuple[type[Strategy], ...] = (Slots,)
"""Strategies for `limits` only: a request holds a slot until it is settled."""

UNLIMITED = "unlimited"
"""In place of figures: the limit does not apply to this plan or key."""

LIMIT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)
_NAMED = "is text of at most 64 letters, digits, '.', '_' and '-'"


class _Read(NamedTuple):
    """A limit with its values in the file, single ones of which plans and overrides replace."""

    spec: LimitSpec
    cls: type[Strategy]
    values: dict[str, Any]


def read_several(policy: Fields) -> SeveralSpec:
    """The limits of a policy, its plans and its overrides."""
    found = {read.spec.name: read for read in _limits(policy)}
    limits = tuple(read.spec for read in found.values())
    if all(limit.shadow for limit in limits):
        policy.fail(
            "limits",
            "are all shadows, so nothing would ever be denied; remove `shadow` from one of them",
        )
    plan_by, plans = _plans(policy, found) if policy.has("plans") else ("plan", {})
    overrides = _overrides(policy, found) if policy.has("overrides") else {}
    several = SeveralSpec(limits, plan_by, plans, overrides)
    _require_apart(policy, several)
    return several


def _limits(policy: Fields) -> Iterator[_Read]:
    tree, path = policy.tree, (*policy.path, policy.spelled("limits"))
    held = policy.raw("limits")
    if not isinstance(held, dict) or not held:
        example = f"{{user: {{by: user, {example_of(registered()[0])[1:]}}}"
        policy.fail("limits", f"must be a mapping of names to limits, such as {example}")
    if len(held) > MAX_LIMITS:
        policy.fail("limits", f"must be at most {MAX_LIMITS}, not {len(held)}")
    for name, limit in held.items():
        _require_name(tree, (*path, str(name)), name, "the name of a limit")
        yield _limit(tree, (*path, name), name, limit)


def _limit(tree: Tree, path: Path, name: str, held: Any) -> _Read:
    if not isinstance(held, dict) or "strategy" not in held:
        classes = (*registered(), *HELD)
        every = dict.fromkeys(each for cls in classes for each in parameter_names(cls))
        fields = Fields(tree, path, held, (*LIMIT_FIELDS, *every))
        names = ", ".join(cls.wire_name for cls in classes)
        fields.fail("strategy", f"is missing; write one of {names}")
    cls = class_of(tree, path, held, HELD)
    fields = Fields(tree, path, held, _limit_fields(cls))
    values = given_values(fields, cls)
    flags = {word: fields.flag(word) for word in ("shadow", "optional") if fields.has(word)}
    spec = LimitSpec(
        name,
        made(fields, cls, values),
        by=_attribute(fields, "by") if fields.has("by") else None,
        cost=_attribute(fields, "cost") if fields.has("cost") else None,
        when=_conditions(fields) if fields.has("when") else (),
        **flags,
    )
    if spec.optional and spec.by is None and spec.cost is None:
        fields.fail("optional", "needs `by` or `cost`: it is about their attributes being missing")
    if spec.cost is not None and spec.strategy.is_held:
        fields.fail("cost", "cannot be used with slots: a request always holds one")
    return _Read(spec, cls, values)


@lru_cache(maxsize=256)
def _limit_fields(cls: type[Strategy]) -> tuple[str, ...]:
    return (*LIMIT_FIELDS, *parameter_names(cls))


def _conditions(limit: Fields) -> tuple[Condition, ...]:
    held = limit.raw("when")
    if not isinstance(held, dict) or not held:
        limit.fail(
            "when",
            "must be a mapping such as {method: POST, tier: [gold, silver], trial: {exists: true}}",
        )
    return tuple(
        _condition(limit.tree, (*limit.path, "when", str(name)), name, wanted)
        for name, wanted in held.items()
    )


def _condition(tree: Tree, path: Path, name: Any, wanted: Any) -> Condition:
    _require_name(tree, path, name, "an attribute")
    if isinstance(wanted, dict):
        fields = Fields(tree, path, wanted, ("exists",))
        fields.need("exists", "true")
        return Condition(name, exists=fields.flag("exists"))
    values = wanted if isinstance(wanted, list) else [wanted]
    if not values or not all(isinstance(value, str) and value for value in values):
        raise tree.error(
            path,
            "must be text, a list of texts or {exists: true}, "
            f"not {shown(wanted)}; numbers and true or false go in quotes",
        )
    return Condition(name, tuple(values))


def _plans(policy: Fields, limits: Mapping[str, _Read]) -> tuple[str, dict[str, Figures]]:
    tree, path, held = _mapping(policy, "plans", "{by: plan, pro: {user: {limit: 1000}}}")
    plan_by = held.get("by", "plan")
    _require_name(tree, (*path, "by"), plan_by, "an attribute")
    plans = {}
    for name, figures in held.items():
        if name == "by":
            continue
        if not isinstance(name, str) or not name:
            raise tree.error((*path, str(name)), "a plan is named by text; put it in quotes")
        plans[name] = _figures(tree, (*path, name), limits, figures)
    if not plans:
        policy.fail("plans", "has no plan; write for example pro: {user: {limit: 1000}}")
    return plan_by, plans


def _figures(tree: Tree, path: Path, limits: Mapping[str, _Read], held: Any) -> Figures:
    """The figures of one plan, by limit."""
    if not isinstance(held, dict):
        raise tree.error(
            path, f"must name limits, as in {{user: {{limit: 1000}}}}, not {shown(held)}"
        )
    return {
        name: _replaced(tree, (*path, str(name)), _named(tree, path, limits, name), figures)
        for name, figures in held.items()
    }


def _overrides(policy: Fields, limits: Mapping[str, _Read]) -> dict[str, Figures]:
    tree, path, held = _mapping(policy, "overrides", "{user: {alice: {limit: 500}}}")
    overrides: dict[str, Figures] = {}
    for name, keys in held.items():
        read = _named(tree, path, limits, name)
        below = (*path, name)
        if read.spec.by is None:
            raise tree.error(below, "has no `by`, so it has no keys to override; leave it out")
        if not isinstance(keys, dict) or not keys:
            raise tree.error(below, f"must map keys to figures, not {shown(keys)}")
        overrides[name] = {
            _key(tree, (*below, str(key)), key): _replaced(tree, (*below, str(key)), read, figures)
            for key, figures in keys.items()
        }
    return overrides


def _mapping(policy: Fields, field: str, example: str) -> tuple[Tree, Path, Mapping[Any, Any]]:
    held = policy.raw(field)
    if not isinstance(held, dict) or not held:
        policy.fail(field, f"must be a mapping such as {example}, not {shown(held)}")
    return policy.tree, (*policy.path, policy.spelled(field)), held


def _named(tree: Tree, path: Path, limits: Mapping[str, _Read], name: Any) -> _Read:
    found = limits.get(name) if isinstance(name, str) else None
    if found is None:
        raise tree.error(
            (*path, str(name)), f"is not a limit of this policy; its limits are {', '.join(limits)}"
        )
    return found


def _replaced(tree: Tree, path: Path, read: _Read, figures: Any) -> Strategy | None:
    """The strategy of a limit with other figures; None if it is lifted."""
    if figures == UNLIMITED:
        return None
    if not isinstance(figures, dict):
        example = _example(read.cls)
        raise tree.error(path, f"must be figures such as {example}, or {UNLIMITED}")
    free, shaping = _figure_names(read.cls)
    for name in shaping & figures.keys():
        raise tree.error(
            (*path, name),
            "cannot differ by plan or key, because all of them share their counts; make two "
            "limits instead, with `when`",
        )
    fields = Fields(tree, path, figures, free)
    values = given_values(fields, read.cls, all_of_them=False)
    return made(fields, read.cls, read.values | values)


@lru_cache(maxsize=256)
def _figure_names(cls: type[Strategy]) -> tuple[tuple[str, ...], frozenset[str]]:
    """The spellings of the parameters that may differ by plan or key, and of those that may
    not."""
    free: list[str] = []
    shaping: list[str] = []
    for parameter in cls.parameters:
        names = spellings(parameter)
        if parameter.shapes_state:
            shaping += [*names, *map(camel, names)]
        else:
            free += names
    return tuple(free), frozenset(shaping)


def _example(cls: type[Strategy]) -> str:
    for parameter in cls.parameters:
        if not parameter.shapes_state:
            return f"{{{camel(parameter.name)}: {parameter.example}}}"
    return "{}"


def _key(tree: Tree, path: Path, key: Any) -> str:
    if not isinstance(key, str):
        raise tree.error(path, "a key is text; put it in quotes")
    return guarded(Fields(tree, path, {}, ()), lambda _fields: require_key(key))


def _attribute(fields: Fields, name: str) -> str:
    value = fields.raw(name)
    _require_name(fields.tree, (*fields.path, name), value, "an attribute")
    return str(value)


def _require_name(tree: Tree, path: Path, name: Any, what: str) -> None:
    if not isinstance(name, str) or not _is_name(name):
        quotes = "" if isinstance(name, str) else "; put it in quotes"
        raise tree.error(path, f"{what} {_NAMED}, not {shown(name)}{quotes}")


@lru_cache(maxsize=1024)
def _is_name(text: str) -> bool:
    return LIMIT_NAME.fullmatch(text) is not None


def _require_apart(policy: Fields, several: SeveralSpec) -> None:
    """Reject an attribute that is used both as text and as a cost."""
    costs = [limit for limit in several.limits if limit.cost is not None]
    if not costs:
        return
    texts = {limit.by for limit in several.limits}
    if several.plans:
        texts.add(several.plan_by)
    for limit in several.limits:
        texts |= {condition.attribute for condition in limit.when if condition.values}
    for limit in costs:
        if limit.cost in texts:
            raise policy.tree.error(
                (*policy.path, policy.spelled("limits"), limit.name, "cost"),
                f"the attribute {limit.cost!r} is used as text elsewhere in this policy, but a "
                "cost is a number",
            )
