"""Policies described in English.

    user: 100 a minute per user, 20 at once; pro: 1,000; user alice: unlimited
    tokens: 800 a second per user, 50,000 at once, counted in tokens

A strategy describes what it grants (`Strategy.in_words`) as clauses between commas, of which the
first is the rate. Here the key, the cost, plans and overrides are added. Long lists of plans and
overrides are cut short, so that a limit is always one sentence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from ..core._durations import rate_in_words
from ..core._strategy import Strategy
from ._model import ConcurrencySpec, Condition, LimitSpec, PolicySpec, SeveralSpec, TwoTierSpec

__all__ = ["described", "figures_in_words", "in_words", "limit_in_words"]


_SHOWN = 5
_LONGEST_NAME = 40
LIFTED = "unlimited"


def described(name: str, kind: str, words: str, fail: str | None = None) -> list[str]:
    """The lines about a policy: one, or one for each of several limits below it."""
    mode = "" if fail is None else f", fail {fail}"
    if kind != "limits":
        return [f"{name}: {kind}, {words}{mode}"]
    return [f"{name}: {kind}{mode}", *(f"  {line}" for line in words.splitlines())]


def in_words(spec: PolicySpec) -> str:
    """The axes of a policy, in the order in which they decide; or one line per limit, if it has
    several."""
    if spec.several is not None:
        return "\n".join(limit_in_words(spec.several, limit) for limit in spec.several.limits)
    return ", ".join(_axes(spec))


def _axes(spec: PolicySpec) -> Iterator[str]:
    if spec.concurrency is not None:
        yield _slots(spec.concurrency)
    if spec.strategy is not None:
        yield _to(spec.strategy, "per key")
    if spec.budget is not None:
        budget = spec.budget
        yield f"{rate_in_words(budget.limit, budget.window_ms, of='tokens')} per key"
    if spec.two_tier is not None:
        yield _spent(spec.two_tier)
    if spec.federated is not None:
        yield f"leased to clients by at most {spec.federated:,}"


def _slots(spec: ConcurrencySpec) -> str:
    least, most = spec.law.min_limit, spec.law.max_limit
    ceiling = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    return f"{ceiling} in flight{' per key' if spec.per_key else ''}"


def _spent(spec: TwoTierSpec) -> str:
    if spec.mode == "leased":
        return f"leased by {spec.batch:,}"
    return "denials cached on each node" if spec.mode == "cached-deny" else "asked strictly"


def limit_in_words(several: SeveralSpec, limit: LimitSpec) -> str:
    """One of several limits: its name, what it grants per key, and for which plans and keys it
    differs."""
    who = "for all together" if limit.by is None else f"per {limit.by}"
    parts = [_to(limit.strategy, who)]
    if limit.cost is not None:
        parts.append(f"counted in {limit.cost}")
    if limit.optional:
        told = _told(limit)
        parts.append(f"if {' and '.join(told)} {'is' if len(told) == 1 else 'are'} told")
    if limit.when:
        parts.append(f"when {' and '.join(map(_condition, limit.when))}")
    plans = {
        plan: figures[limit.name]
        for plan, figures in several.plans.items()
        if limit.name in figures
    }
    others = [", ".join(parts), *_instead(limit.strategy, plans, "plans")]
    keys = several.overrides.get(limit.name, {})
    named = {f"{limit.by} {_short(key)}": figures for key, figures in keys.items()}
    others += _instead(limit.strategy, named, "keys")
    return f"{limit.name}{' (shadow)' * limit.shadow}: {'; '.join(others)}"


def _told(limit: LimitSpec) -> list[str]:
    return [each for each in (limit.by, limit.cost) if each is not None]


def _condition(condition: Condition) -> str:
    if condition.values:
        return f"{condition.attribute} is {' or '.join(map(_short, condition.values))}"
    return f"{condition.attribute} is {'told' if condition.exists else 'missing'}"


def _instead(base: Strategy, others: Mapping[str, Strategy | None], what: str) -> Iterable[str]:
    """`pro: 1,000`, for each of the first few."""
    for name, strategy in islice(others.items(), _SHOWN):
        yield f"{name}: {figures_in_words(strategy, base)}"
    if len(others) > _SHOWN:
        yield f"{len(others) - _SHOWN:,} more {what}"


def figures_in_words(strategy: Strategy | None, base: Strategy) -> str:
    """Other figures, reduced to what differs from `base`."""
    if strategy is None:
        return LIFTED
    clauses, usual = strategy.in_words().split(", "), base.in_words().split(", ")
    if len(clauses) != len(usual):
        return ", ".join(clauses)
    changed = [at for at, clause in enumerate(clauses) if clause != usual[at]]
    if changed != [0]:
        return ", ".join(clauses[at] for at in changed) or ", ".join(clauses)
    # If only the number differs, as in 1,000 a minute for 100 a minute, it is enough.
    words, before = clauses[0].split(), usual[0].split()
    return words[0] if words[1:] == before[1:] else clauses[0]


def _to(strategy: Strategy, who: str) -> str:
    """What a strategy grants, with `who` after its rate."""
    rate, *rest = strategy.in_words().split(", ")
    return ", ".join([f"{rate} {who}", *rest])


def _short(text: str) -> str:
    shown = text if text.isprintable() else ascii(text)
    return shown if len(shown) <= _LONGEST_NAME else f"{shown[: _LONGEST_NAME - 3]}..."
