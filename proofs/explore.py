"""Every state that a model can reach, breadth first, with the shortest way to each.

Nodes are alike, so two states that differ only in which node is which are one; states are kept
with their nodes in order. A way is told with its nodes apart again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from .model import Node, Rules, State, Step, start, successors

__all__ = ["Explored", "explore"]


@dataclass(frozen=True)
class Explored:
    """All of a model, or, where `stopped`, up to the first state that admitted more than claimed.

    `most` is the most that any window admitted, and `peak` the first state in which one did.
    """

    rules: Rules
    states: int
    steps: int
    most: int
    peak: State
    stopped: bool
    histogram: dict[int, int]
    parents: dict[State, State | None]

    @property
    def holds(self) -> bool:
        """The bound is never exceeded, and it is reached."""
        return not self.stopped and self.most == self.rules.bound

    def way(self) -> list[tuple[Step, State]]:
        """The shortest way to the peak: each step and the state after it, nodes apart."""
        chain = [self.peak]
        while (before := self.parents[chain[-1]]) is not None:
            chain.append(before)
        state, told = start(self.rules), []
        for goal in reversed(chain[:-1]):
            step, state = next(
                (step, after)
                for step, after in successors(self.rules, state)
                if _canonical(after) == goal
            )
            told.append((step, state))
        return told


def explore(rules: Rules) -> Explored:
    """Look at all of it; stop at the first window that admits more than the bound."""
    first = _canonical(start(rules))
    parents: dict[State, State | None] = {first: None}
    frontier, peak, steps = [first], first, 0
    histogram = {0: 1}
    while frontier and peak.admitted <= rules.bound:
        reached = []
        for state in frontier:
            for _, after in successors(rules, state):
                steps += 1
                found = _canonical(after)
                if found in parents:
                    continue
                parents[found] = state
                reached.append(found)
                histogram[found.admitted] = histogram.get(found.admitted, 0) + 1
                if found.admitted > peak.admitted:
                    peak = found
        frontier = reached
    stopped = peak.admitted > rules.bound
    return Explored(rules, len(parents), steps, peak.admitted, peak, stopped, histogram, parents)


@cache
def _order(node: Node) -> tuple[object, ...]:
    """Nodes hold None where nothing is under way, which does not compare with numbers."""
    return tuple(() if field is None else (field,) for field in node)


def _canonical(state: State) -> State:
    return State(state.used, state.admitted, tuple(sorted(state.nodes, key=_order)))
