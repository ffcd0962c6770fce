"""What a new policy file does to the counts of an old one.

A count is found again under the prefix, the policy's name, the form of its states, and where there
are several limits the limit's name and the attributes that tell its keys and units. So it is lost
with each of these, and kept through all others: figures, plans, shadows, fail modes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ..core._strategy import Strategy
from ._model import LimitSpec, PolicyFile, PolicySpec, SeveralSpec
from ._words import in_words, limit_in_words

__all__ = ["Changes", "changes_between"]


class Changes(NamedTuple):
    """A line for each: counts that are `lost`, and figures that are `changed` with counts kept."""

    lost: list[str]
    changed: list[str]


class _Count(NamedTuple):
    """What is counted under one name."""

    strategy: Strategy
    words: str
    limit: LimitSpec | None = None


def changes_between(old: PolicyFile, new: PolicyFile) -> Changes:
    """From `old` to `new`, in the order of the old one."""
    if old.prefix != new.prefix:
        told = f"all counts: the prefix was {old.prefix!r} and is {new.prefix!r}"
        return Changes([told], [*_changed(old.policies, new.policies)])
    lost = [
        line
        for name, spec in old.policies.items()
        for line in _lost(name, spec, new.policies.get(name))
    ]
    return Changes(lost, [*_changed(old.policies, new.policies)])


def _lost(name: str, old: PolicySpec, new: PolicySpec | None) -> Iterator[str]:
    if new is None:
        yield f"{name}: the policy is gone"
        return
    if (old.several is None) != (new.several is None):
        yield f"{name}: was of the kind {old.kind} and is of the kind {new.kind}"
        return
    counts = _counts(new)
    for label, before in _counts(old).items():
        after = counts.get(label)
        place = _place(name, label)
        if after is None:
            yield f"{place}: is gone"
        elif after.strategy.state_form != before.strategy.state_form:
            was, now = before.strategy.state_form, after.strategy.state_form
            yield f"{place}: counts of {was} cannot be read as {now}"
        elif (key := _keyed(before)) != _keyed(after):
            yield f"{place}: was counted {key} and is counted {_keyed(after)}"
    if old.budget is not None and old.max_keys != new.max_keys and new.budget is not None:
        yield f"{name}.tokenBudget: in memory it begins afresh, in another table"
    if old.concurrency is not None and old.concurrency != new.concurrency:
        yield f"{name}.concurrency: slots begin afresh, beside those in flight"


def _changed(old: Mapping[str, PolicySpec], new: Mapping[str, PolicySpec]) -> Iterator[str]:
    for name in old:
        if name not in new:
            continue
        one, other = old[name], new[name]
        if (one.several is None) != (other.several is None):
            continue
        before, after = _counts(one), _counts(other)
        for label in before:
            if label not in after or _loses(before[label], after[label]):
                continue
            if before[label].words != after[label].words:
                place = _place(name, label)
                yield f"{place}: was {before[label].words}; is {after[label].words}"


def _loses(before: _Count, after: _Count) -> bool:
    same_form = before.strategy.state_form == after.strategy.state_form
    return not same_form or _keyed(before) != _keyed(after)


def _keyed(count: _Count) -> str:
    """By what its keys and its units are told: under another attribute they mean something else."""
    if count.limit is None:
        return "per key"
    who = "for all together" if count.limit.by is None else f"per {count.limit.by}"
    return f"{who}, in {count.limit.cost or 'requests'}"


def _counts(spec: PolicySpec) -> dict[str, _Count]:
    """By the name below the policy; the axes of a policy of one limit have those of the file."""
    several = spec.several
    if several is not None:
        return {
            limit.name: _Count(limit.strategy, _words_of(several, limit), limit)
            for limit in several.limits
        }
    found = {}
    if spec.strategy is not None:
        words = in_words(PolicySpec(spec.name, spec.strategy, two_tier=spec.two_tier))
        found["strategy"] = _Count(spec.strategy, words)
    if spec.budget is not None:
        found["tokenBudget"] = _Count(
            spec.budget, in_words(PolicySpec(spec.name, budget=spec.budget))
        )
    return found


def _words_of(several: SeveralSpec, limit: LimitSpec) -> str:
    """Without its name, and with whether it denies."""
    said = limit_in_words(several, limit).partition(": ")[2]
    return f"a shadow of {said}" if limit.shadow else said


def _place(name: str, label: str) -> str:
    return name if label == "strategy" else f"{name}.{label}"
