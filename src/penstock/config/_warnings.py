"""Warnings about likely mistakes in a valid policy file.

A warning is given only if it can be proved: that a limit never denies a request, that figures
change nothing, that they are never used. Strategies prove what they can about each other:
`Strategy.is_looser_than`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from ..core._durations import span_in_words
from ..core._strategy import Strategy
from ._model import Condition, Figures, LimitSpec, PolicySpec, SeveralSpec
from ._tree import Path

__all__ = ["Warned", "can_never_bind", "warnings_of"]


class Warned(NamedTuple):
    """A warning, and its place below the policy."""

    path: Path
    text: str


def warnings_of(spec: PolicySpec) -> list[Warned]:
    """The warnings about a policy, mostly in the order of the file."""
    if spec.several is not None:
        return [*_of_several(spec.several)]
    return [*_of_one(spec)]


def _of_one(spec: PolicySpec) -> Iterator[Warned]:
    strategy, tiers = spec.strategy, spec.two_tier
    if strategy is None:
        return
    yield from _burst((), strategy)
    if tiers is not None and tiers.mode == "leased" and tiers.batch > strategy.limit:
        yield Warned(
            ("twoTier", "batch"),
            f"a batch of {tiers.batch:,} is more than the limit of {strategy.limit:,}: the first "
            "node takes all of it; make it a fraction of the limit",
        )


def _is_bursty(strategy: Strategy) -> bool:
    """Whether the burst is larger than what a period grants."""
    units, span_ms = strategy.rate
    return span_ms is not None and strategy.limit > units


def _burst(path: Path, strategy: Strategy) -> Iterator[Warned]:
    units, span_ms = strategy.rate
    if span_ms is None or not _is_bursty(strategy):
        return
    refill_ms = -(-strategy.limit * span_ms // units)
    per_sec = units * 1000 / span_ms
    yield Warned(
        (*path, "burst"),
        f"{strategy.limit:,} at once take {span_in_words(refill_ms)} to refill, longer than the "
        f"{span_in_words(span_ms)} for {units:,}; write at most burst: {units}, or, if that is "
        f"intended, tokenBucket with capacity: {strategy.limit} and refillPerSec: {per_sec:.6g}",
    )


def _of_several(several: SeveralSpec) -> Iterator[Warned]:
    for at, limit in enumerate(several.limits):
        path: Path = ("limits", limit.name)
        if _is_bursty(limit.strategy):
            yield from _burst(path, limit.strategy)
        if limit.when:
            yield from _never_asked(path, several, limit)
        yield from _never_binding(path, several, at)
    limits = {limit.name: limit for limit in several.limits}
    for plan, figures in several.plans.items():
        for name, strategy in figures.items():
            path = ("plans", plan, name)
            yield from _of_figures(path, limits[name], strategy, {})
            if limits[name].when and not _may_be(limits[name], several.plan_by, plan):
                yield Warned(
                    path, f"is never used: {name} does not apply to this plan, see its `when`"
                )
    for name, keys in several.overrides.items():
        by = limits[name].by
        planned = {p: figures[name] for p, figures in several.plans.items() if name in figures}
        for key, strategy in keys.items():
            path = ("overrides", name, key)
            yield from _of_figures(path, limits[name], strategy, planned)
            if by is not None and not _may_be(limits[name], by, key):
                yield Warned(
                    path, f"is never used: {name} does not apply to this {by}, see its `when`"
                )


def _of_figures(
    path: Path, limit: LimitSpec, strategy: Strategy | None, instead_of: Figures
) -> Iterator[Warned]:
    if strategy is None:
        return
    # An override with the usual figures does change something if a plan has others.
    if not instead_of and strategy.values == limit.strategy.values:
        yield Warned(path, f"changes nothing: these are the figures of {limit.name}; leave it out")
    elif _is_bursty(strategy) and not _is_bursty(limit.strategy):
        yield from _burst(path, strategy)


def _may_be(limit: LimitSpec, attribute: str, value: str) -> bool:
    """Whether a limit can apply if an attribute has that value."""
    return all(each.holds({attribute: value}) for each in limit.when if each.attribute == attribute)


def _never_asked(path: Path, several: SeveralSpec, limit: LimitSpec) -> Iterator[Warned]:
    for condition in limit.when:
        name = condition.attribute
        below = (*path, "when", name)
        if name in (limit.by, limit.cost) and not condition.values and not condition.exists:
            use = "key" if name == limit.by else "cost"
            yield Warned(below, f"holds only without {name}, which is the {use} of this limit")
        if several.plans and name == several.plan_by:
            for value in condition.values:
                if value not in several.plans:
                    known = ", ".join(several.plans)
                    yield Warned(below, f"{value!r} is not a plan of this policy; it has {known}")


def _never_binding(path: Path, several: SeveralSpec, at: int) -> Iterator[Warned]:
    limit = several.limits[at]
    for where, other in enumerate(several.limits):
        if where == at or not can_never_bind(several, limit, other):
            continue
        # Of two equal limits, the warning is about the second.
        same = can_never_bind(several, other, limit._replace(shadow=False))
        if same and at < where and not limit.shadow:
            continue
        reason = f"{other.name} {'says the same' if same else 'is tighter at every span'}"
        if limit.shadow:
            yield Warned(path, f"is a shadow that never reports anything: {reason}, and denies")
        else:
            yield Warned(path, f"never denies anything: {reason}; leave one of them out")
        return


_MOST_COMBINATIONS = 10_000


def can_never_bind(several: SeveralSpec, limit: LimitSpec, other: LimitSpec) -> bool:
    """Whether `limit` provably admits whatever `other` admits, for every key and plan, as long as
    neither is reset or paused."""
    if other.shadow or other.by not in (None, limit.by) or other.cost != limit.cost:
        return False
    if other.when and not _implies_all(limit.when, other.when):
        return False
    # Whether both are charged with the same requests.
    same_when = other.when == limit.when or set(other.when) == set(limit.when)
    alongside = other.by == limit.by and same_when
    usual = limit.strategy, other.strategy
    # Nearly always enough, so that the figures of plans and keys need not be compared.
    if not _is_looser(*usual, alongside=alongside, steady=limit.cost is None):
        return False
    pairs = _pairs(several, limit, other)
    if pairs is None or any(tight is None for loose, tight in pairs if loose is not None):
        return False
    alongside = alongside and all((loose is None) == (tight is None) for loose, tight in pairs)
    asked = [(loose, tight) for loose, tight in pairs if loose is not None and tight is not None]
    # A cost may be an estimate, and be settled at more than was admitted.
    steady = limit.cost is None and len(asked) == 1
    # Where figures change, states are converted: equal figures are converted alike, and others may
    # have less left afterwards, though they admitted more before.
    if len(asked) > 1 and any(loose.figures != tight.figures for loose, tight in asked):
        return False
    return all(
        _is_looser(loose, tight, alongside=alongside, steady=steady) for loose, tight in asked
    )


def _is_looser(loose: Strategy, tight: Strategy, *, alongside: bool, steady: bool) -> bool:
    return (
        _speaks_for_itself(type(loose))
        and _speaks_for_itself(type(tight))
        and loose.is_looser_than(tight, alongside=alongside, steady=steady)
    )


def _implies_all(given: tuple[Condition, ...], wanted: tuple[Condition, ...]) -> bool:
    return all(any(_implies(each, one) for each in given) for one in wanted)


def _implies(given: Condition, wanted: Condition) -> bool:
    """Whether the second holds whenever the first does."""
    if given.attribute != wanted.attribute:
        return False
    if given.values and wanted.values:
        return set(given.values) <= set(wanted.values)
    return given == wanted or (bool(given.values) and not wanted.values and wanted.exists)


_Pair = tuple[Strategy | None, Strategy | None]


def _pairs(several: SeveralSpec, limit: LimitSpec, other: LimitSpec) -> list[_Pair] | None:
    """All pairs of strategies that both limits may have for a request; None if there are too
    many."""
    plans: list[Figures] = [{}, *several.plans.values()]
    by_plan = {_named(_under(plan, limit), _under(plan, other)): plan for plan in plans}
    own, others = (several.overrides.get(each.name, {}) for each in (limit, other))
    keys: list[str | None] = [None, *dict.fromkeys([*own, *others])]
    if len(keys) * len(by_plan) > _MOST_COMBINATIONS:
        return None
    found: dict[tuple[str, str], _Pair] = {}
    for key, plan in product(keys, by_plan.values()):
        loose = own[key] if key is not None and key in own else _under(plan, limit)
        tight = others[key] if key is not None and key in others else _under(plan, other)
        found[_named(loose, tight)] = loose, tight
    return list(found.values())


def _under(plan: Figures, limit: LimitSpec) -> Strategy | None:
    return plan.get(limit.name, limit.strategy)


def _named(loose: Strategy | None, tight: Strategy | None) -> tuple[str, str]:
    return repr(loose), repr(tight)


@lru_cache(maxsize=256)
def _speaks_for_itself(cls: type[Strategy]) -> bool:
    """Whether the proofs of a class are about its own `check`: a subclass that overrides `check`
    does not inherit the proofs of its base."""
    return all(
        _definer(cls, word) is Strategy or issubclass(_definer(cls, word), _definer(cls, "check"))
        for word in ("is_looser_than", "most_within", "looks_back_ms")
    )


def _definer(cls: type[Strategy], word: str) -> type:
    return next(each for each in cls.__mro__ if word in vars(each))
