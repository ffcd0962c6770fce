"""A fleet that leases, made small enough to look at all of it.

Nodes hold credits and at most one lease each is under way: asked for, or granted and on its way
back. The store counts what it granted in the current window. What can happen, at any time and in
any order:

- a request comes to a node: it spends credits, or asks for a lease if they do not suffice;
- a node whose credits are low asks for a lease ahead of need;
- the store decides a lease, with which the request behind it is admitted, then and there;
- the answer reaches the node;
- the window rolls: the store counts from 0, and whatever is on its way belongs to the past;
- a node loses its credits (they were idle, or evicted, or it reckons their end too early);
- a node dies, with its credits and its lease, and starts again empty.

Windows have no number here, only "this one" and "before", so that what is found holds for any
number of them. `admitted` counts this window's requests, wherever they were admitted.

A correct node knows when its window has ended, because the store told it how long that lasts and
it counts from the moment of asking. So coupled credits are gone when the window rolls. The flaws
below are ways to get that wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

__all__ = ["FLAWS", "Node", "Rules", "State", "Step", "start", "successors"]

FLAWS = {
    "slow clock": "a node goes by its own clock, which is slow, and spends after its window ended",
    "blind sum": "a node adds a grant to what it holds without looking whose window that is",
    "whole batch": "a lease ahead of need takes a whole batch on top of what is held",
    "late grant": "a node counts a grant's window from when the answer came, not from the asking",
}


@dataclass(frozen=True, slots=True)
class Rules:
    """One fleet: how many nodes share which limit in what batches."""

    nodes: int
    limit: int
    batch: int
    coupled: bool
    low_water: int = 0
    costs: tuple[int, ...] = (1,)
    flaw: str = ""

    @property
    def bound(self) -> int:
        """The most that a window may admit, as claimed."""
        return self.limit if self.coupled else self.limit + self.nodes * (self.batch - 1)


class Node(NamedTuple):
    """`stale`: the credits are of an earlier window. `asked`: (wanted, needed, cost of the request
    behind it) of a lease that the store has not seen; `granted`: (credits, from an earlier window)
    of one that is on its way back."""

    credits: int = 0
    stale: bool = False
    asked: tuple[int, int, int] | None = None
    granted: tuple[int, bool] | None = None


class State(NamedTuple):
    used: int
    admitted: int
    nodes: tuple[Node, ...]


class Step(NamedTuple):
    """`node` is -1 for what happens to all."""

    node: int
    verb: str
    amount: int = 0


_EMPTY = Node()


def start(rules: Rules) -> State:
    return State(0, 0, (_EMPTY,) * rules.nodes)


def successors(rules: Rules, state: State) -> Iterator[tuple[Step, State]]:
    """Everything that can happen next."""
    for number, node in enumerate(state.nodes):
        for step, used, admitted, after in _all_moves(rules, state.used, node):
            nodes = (*state.nodes[:number], after, *state.nodes[number + 1 :])
            moved = State(state.used + used, state.admitted + admitted, nodes)
            yield Step(number, *step), moved
    yield Step(-1, "rolls"), State(0, 0, tuple(_rolled(rules, node) for node in state.nodes))


Move = tuple[tuple[str, int], int, int, Node]


@cache
def _all_moves(rules: Rules, used: int, node: Node) -> tuple[Move, ...]:
    """A node's moves depend on little, and come up again and again."""
    return tuple(_moves(rules, used, node))


def _moves(rules: Rules, used: int, node: Node) -> Iterator[Move]:
    """(what, units used, requests admitted, the node after it)."""
    yield from _requests(rules, node)
    if node.asked is not None:
        yield _decided(rules, used, node, *node.asked)
    if node.granted is not None:
        credits, late = node.granted
        yield ("receives", credits), 0, 0, _received(rules, node, credits, late)
    if node.credits:
        yield ("drops", node.credits), 0, 0, node._replace(credits=0, stale=False)
    if node != _EMPTY:
        yield ("dies", 0), 0, 0, _EMPTY


def _requests(rules: Rules, node: Node) -> Iterator[Move]:
    if node.stale and rules.flaw != "slow clock":
        # Whoever looks at credits whose window has ended drops them first.
        node = node._replace(credits=0, stale=False)
    held, under_way = node.credits, node.asked or node.granted
    for cost in rules.costs:
        if held >= cost:
            yield ("spends", cost), 0, cost, _spent(node, cost)
        elif not under_way:
            asked = (max(rules.batch, cost), cost, cost)
            yield ("asks", asked[0]), 0, 0, node._replace(asked=asked)
    want = rules.batch if rules.flaw == "whole batch" else rules.batch - 1 - held
    if 0 < held <= rules.low_water and want > 0 and not under_way:
        yield ("asks ahead", want), 0, 0, node._replace(asked=(want, 1, 0))


def _spent(node: Node, cost: int) -> Node:
    left = node.credits - cost
    return node._replace(credits=left, stale=node.stale and left > 0)


def _decided(rules: Rules, used: int, node: Node, want: int, need: int, cost: int) -> Move:
    left = rules.limit - used
    taken = want if want <= left else left if need <= left else 0
    if not taken:
        return ("is refused", 0), 0, 0, node._replace(asked=None)
    # Without credits to bring, the answer changes nothing any more.
    granted = (taken - cost, False) if taken > cost else None
    return ("is granted", taken), taken, cost, node._replace(asked=None, granted=granted)


def _received(rules: Rules, node: Node, credits: int, late: bool) -> Node:
    if not rules.coupled:
        return Node(node.credits + credits)
    if late and rules.flaw != "late grant":
        return node._replace(granted=None)
    held = node.credits if not node.stale or rules.flaw == "blind sum" else 0
    return Node(held + credits)


@cache
def _rolled(rules: Rules, node: Node) -> Node:
    granted = None if node.granted is None else (node.granted[0], True)
    if not rules.coupled:
        return node._replace(granted=granted)
    kept = node.credits if rules.flaw in ("slow clock", "blind sum") else 0
    return Node(kept, kept > 0, node.asked, granted)
