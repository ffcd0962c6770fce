"""Which counts are lost when one policy file is replaced by another.

The key of a count contains the prefix, the name of the policy, the form of its states, and, where
there are several limits, the name of the limit and the attributes that are its key and cost. A
change of any of these loses the count. All other changes keep it: figures, plans, shadows, fail
modes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ..core._strategy import WITH_FIGURES, Strategy
from ._model import ConcurrencySpec, LimitSpec, PolicyFile, PolicySpec, SeveralSpec
from ._words import in_words, limit_in_words

__all__ = ["Changes", "changes_between"]


class Changes(NamedTuple):
    """One line for each count that is `lost`, and for each limit that is `changed` and keeps its
    count."""

    lost: list[str]
    changed: list[str]


class _Count(NamedTuple):
    """A limit that has counts of its own."""

    strategy: Strategy
    words: str
    limit: LimitSpec | None = None


def changes_between(old: PolicyFile, new: PolicyFile) -> Changes:
    """The changes from `old` to `new`, in the order of `old`."""
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
        yield f"{name}: the policy is removed"
        return
    if (old.several is None) != (new.several is None):
        yield f"{name}: was of the kind {old.kind} and is of the kind {new.kind}"
        return
    counts = _counts(new)
    for label, before in _counts(old).items():
        after = counts.get(label)
        place = _place(name, label)
        if after is None:
            yield f"{place}: is removed"
        elif after.strategy.state_form != before.strategy.state_form:
            was, now = _form(before.strategy), _form(after.strategy)
            yield f"{place}: counts of {was} cannot be read as {now}"
        elif (key := _keyed(before)) != _keyed(after):
            yield f"{place}: was counted {key} and is counted {_keyed(after)}"
    if old.budget is not None and old.max_keys != new.max_keys and new.budget is not None:
        yield f"{name}.tokenBudget: starts afresh if it is kept in memory, in a new table"
    if old.concurrency is not None:
        if new.concurrency is None:
            yield f"{name}.concurrency: is removed"
        elif old.concurrency.per_key != new.concurrency.per_key:
            yield f"{name}.concurrency: perKey is another one; slots in flight are not counted"


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
        yield from _changed_slots(name, one.concurrency, other.concurrency)


def _changed_slots(
    name: str, old: ConcurrencySpec | None, new: ConcurrencySpec | None
) -> Iterator[str]:
    if old is None or new is None or old.per_key != new.per_key or old == new:
        return
    was, now = (in_words(PolicySpec(name, concurrency=each)) for each in (old, new))
    yield (
        f"{name}.concurrency: was {was}; is {now}; slots in flight stay counted, and a ceiling "
        "that was inferred is inferred anew"
    )


def _loses(before: _Count, after: _Count) -> bool:
    same_form = before.strategy.state_form == after.strategy.state_form
    return not same_form or _keyed(before) != _keyed(after)


def _form(strategy: Strategy) -> str:
    """The form of its states, in words: all policies keep figures."""
    return strategy.state_form.removesuffix(WITH_FIGURES)


def _keyed(count: _Count) -> str:
    """What its keys and units are: with another attribute the same counts would mean something
    else."""
    if count.limit is None:
        return "per key"
    who = "for all together" if count.limit.by is None else f"per {count.limit.by}"
    return f"{who}, in {count.limit.cost or 'requests'}"


def _counts(spec: PolicySpec) -> dict[str, _Count]:
    """The counts of a policy, by the name of the limit, or by the field of the file for a policy
    with a single limit."""
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
    """The description of a limit without its name, and whether it is a shadow."""
    said = limit_in_words(several, limit).partition(": ")[2]
    return f"a shadow of {said}" if limit.shadow else said


def _place(name: str, label: str) -> str:
    return name if label == "strategy" else f"{name}.{label}"
