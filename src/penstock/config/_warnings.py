"""What is surely a mistake in a policy file, although it could be served.

A warning is told only where it can be proved: that no request is ever denied by a limit, that
figures are those that hold anyway, that nobody is ever asked by them. What strategies can be proved
about each other they know themselves: `Strategy.is_looser_than`.
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
    """A warning, and the place below the policy that it is about."""

    path: Path
    text: str


def warnings_of(spec: PolicySpec) -> list[Warned]:
    """In the order of the file, as far as it has one."""
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
            f"a batch of {tiers.batch:,} is more than the limit of {strategy.limit:,} ever has, so "
            "the first node that asks takes all of it; make it a fraction of the limit",
        )


def _is_bursty(strategy: Strategy) -> bool:
    """Whether more comes at once than a period brings, which so does not bound anything."""
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
        f"{strategy.limit:,} at once take {span_in_words(refill_ms)} to come back, longer than "
        f"the {span_in_words(span_ms)} that {units:,} are for; write at most burst: {units}, or, "
        f"where it is meant so, tokenBucket with capacity: {strategy.limit} and refillPerSec: "
        f"{per_sec:.6g}",
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
                    path, f"is never used: {name} is not asked under this plan, see `when`"
                )
    for name, keys in several.overrides.items():
        by = limits[name].by
        planned = {p: figures[name] for p, figures in several.plans.items() if name in figures}
        for key, strategy in keys.items():
            path = ("overrides", name, key)
            yield from _of_figures(path, limits[name], strategy, planned)
            if by is not None and not _may_be(limits[name], by, key):
                yield Warned(path, f"is never used: {name} is not asked for this {by}, see `when`")


def _of_figures(
    path: Path, limit: LimitSpec, strategy: Strategy | None, instead_of: Figures
) -> Iterator[Warned]:
    if strategy is None:
        return
    # One that pins the usual figures, whatever the plan, does change something.
    if not instead_of and strategy.values == limit.strategy.values:
        yield Warned(path, f"changes nothing: these are the figures of {limit.name}; leave it out")
    elif _is_bursty(strategy) and not _is_bursty(limit.strategy):
        yield from _burst(path, strategy)


def _may_be(limit: LimitSpec, attribute: str, value: str) -> bool:
    """Whether a limit can be asked where an attribute has that value."""
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
                    yield Warned(below, f"{value!r} is no plan here; there are {known}")


def _never_binding(path: Path, several: SeveralSpec, at: int) -> Iterator[Warned]:
    limit = several.limits[at]
    for where, other in enumerate(several.limits):
        if where == at or not can_never_bind(several, limit, other):
            continue
        # Of two that say the same, the second is one too many.
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
    """Whether `limit` certainly admits whatever `other` does, for everybody and under every plan.
    That a reset or a pause of one of them may change."""
    if other.shadow or other.by not in (None, limit.by) or other.cost != limit.cost:
        return False
    if other.when and not _implies_all(limit.when, other.when):
        return False
    # Charged with the same requests: those that either is not asked for are missing in one of them.
    same_when = other.when == limit.when or set(other.when) == set(limit.when)
    alongside = other.by == limit.by and same_when
    usual = limit.strategy, other.strategy
    # Nearly always they say enough, without the figures of plans and keys.
    if not _is_looser(*usual, alongside=alongside, steady=limit.cost is None):
        return False
    pairs = _pairs(several, limit, other)
    if pairs is None or any(tight is None for loose, tight in pairs if loose is not None):
        return False
    alongside = alongside and all((loose is None) == (tight is None) for loose, tight in pairs)
    asked = [(loose, tight) for loose, tight in pairs if loose is not None and tight is not None]
    # An estimate may be settled by more than was admitted.
    steady = limit.cost is None and len(asked) == 1
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
    """Whether the first holds only where the second does."""
    if given.attribute != wanted.attribute:
        return False
    if given.values and wanted.values:
        return set(given.values) <= set(wanted.values)
    return given == wanted or (bool(given.values) and not wanted.values and wanted.exists)


_Pair = tuple[Strategy | None, Strategy | None]


def _pairs(several: SeveralSpec, limit: LimitSpec, other: LimitSpec) -> list[_Pair] | None:
    """All that a request may be asked by under both names; None if that are too many."""
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
    """Whether what a class says of its decisions is about them: a `check` that replaces another
    does not inherit what was proved of that."""
    return all(
        _definer(cls, word) is Strategy or issubclass(_definer(cls, word), _definer(cls, "check"))
        for word in ("is_looser_than", "most_within", "looks_back_ms")
    )


def _definer(cls: type[Strategy], word: str) -> type:
    return next(each for each in cls.__mro__ if word in vars(each))
