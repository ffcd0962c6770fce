"""Several keys of a table as one decision.

All states are read, the steps decided on them, and what they leave is written at once, provided
that nobody has written in between; else it is all done again. Strategies may be Python code of the
user's, which can let other threads in, so the table sees to the last part: `commit` runs nothing
of the kind.

A full table may have no room for a key. Then the request is denied by that limit and nothing is
written, unless it is a shadow, which goes without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...core._transform import READING, Step, decide_all, looked_at

__all__ = ["apply_all"]


def apply_all(table: Any, steps: Sequence[Step], now: int) -> list[Any]:
    """The results, in the order of the steps."""
    steps = looked_at(steps)
    if len(steps) == 1:
        ((key, transform, cost, _),) = steps
        return [table.apply(key, transform, now, cost)]
    without: set[str] = set()
    while True:
        held: dict[str, Any] = {}
        for step in steps:
            if step.key not in held:
                held[step.key] = table.read(step.key, step.transform, now)
        results, writes = decide_all(steps, *_readers(held))
        _refuse_looks(table, steps, held, results)
        made = []
        for key, (transform, outcome) in writes.items():
            if key in without:
                continue
            before, at, until, mark = held[key]
            expires = at + table.require_ttl(transform, outcome.ttl_ms)
            decision = transform.decision_in(outcome.result)
            made.append((key, transform, outcome.state, expires, mark, before, until, decision))
        done = table.commit(made)
        if done is None:
            continue
        if done is not True:
            key = made[done][0]
            without.add(key)
            if any(step.key == key and not step.shadow for step in steps):
                _refuse(table, steps, held, results, without)
                return results
            continue
        _refuse(table, steps, held, results, without)
        return results


def _readers(
    held: dict[str, Any],
) -> tuple[Callable[[str, Any], Any], Callable[[str], int]]:
    """The state of a key, and the instant to decide it at."""
    return lambda key, _transform: held[key][0], lambda key: held[key][1]


def _refuse(
    table: Any, steps: Sequence[Step], held: dict[str, Any], results: list[Any], keys: set[str]
) -> None:
    """There was no room for these keys."""
    for place, step in enumerate(steps):
        if step.key in keys and step.transform.role not in READING:
            results[place] = step.transform.refuse(held[step.key][1], table.due_in())


def _refuse_looks(
    table: Any, steps: Sequence[Step], held: dict[str, Any], results: list[Any]
) -> None:
    """Those who only look are told what a check would be."""
    for place, (key, transform, cost, _) in enumerate(steps):
        state, at, *_ = held[key]
        if state is not None or transform.role not in READING or not table.is_shut(key):
            continue
        if transform.needs_room(at, cost):
            results[place] = transform.refuse(at, table.due_in())
