"""Taking many units at once from a shared store, to spend them elsewhere.

A lease is a check of a larger cost, with one twist: when less than wanted is left but enough for
the request that asks, what is left is taken, so that no budget is stranded at the end of a window.
`bargain` holds that rule once; the transform runs it against the oracle inside an atomic `apply`,
and a store with a faster `check` may run it against that, one atomic check at a time.
"""

from __future__ import annotations

from collections.abc import Generator
from operator import attrgetter
from typing import Any, NamedTuple

from .decision import Decision, Outcome
from .store import Transform
from .strategy import Strategy

__all__ = ["Grant", "bargain", "leasing"]

# Others may take what was left between two attempts; after this many the bare need decides.
_ATTEMPTS = 8


class Grant(NamedTuple):
    """`capacity` units, taken at `now` on the clock that decides; 0 is a refusal. `decision` is
    the store's answer to the last attempt."""

    capacity: int
    decision: Decision
    now: int


def bargain(want: int, need: int) -> Generator[int, Decision, tuple[int, Decision]]:
    """Yields the cost to try next and is sent the decision; returns what was taken."""
    cost = want
    for attempt in range(_ATTEMPTS):
        decision = yield cost
        if decision.allowed:
            return cost, decision
        if cost == need:
            break
        left = decision.remaining
        cost = left if need < left < cost and attempt < _ATTEMPTS - 2 else need
    return 0, decision


def leasing(strategy: Strategy, need: int) -> Transform[Grant]:
    """The transform behind a lease: `cost` is how much is wanted, `need` the least that helps."""

    def run(state: Any, now: int, want: int) -> Outcome[Grant]:
        deal = bargain(max(want, need), need)
        cost = next(deal)
        while True:
            outcome = strategy.check(state, now, cost)
            try:
                cost = deal.send(outcome.result)
            except StopIteration as settled:
                taken, decision = settled.value
                grant = Grant(taken, decision, now)
                return Outcome(outcome.state, grant, outcome.ttl_ms, outcome.persist)

    def refuse(now: int, retry_after_ms: int) -> Grant:
        denial = Decision(False, strategy.limit, 0, now + retry_after_ms, retry_after_ms)
        return Grant(0, denial, now)

    transform = Transform(strategy, "lease", run, refuse)
    transform.need = need
    transform.decision_in = attrgetter("decision")
    return transform
