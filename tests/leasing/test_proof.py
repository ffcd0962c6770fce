"""The proof holds, the flawed variants are refuted, and the model does what the code does."""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock import ManualClock, MemoryStore, fixed_window
from penstock._queueing import Place
from penstock.core._transform import Grant, leasing
from penstock.leasing._credits import term_of
from penstock.leasing._near import LeaseRequest, NearTier
from proofs.explore import explore
from proofs.leases import CASES, REFUTED, table, tell
from proofs.model import Rules, State, Step, start, successors
from tests.support.effort import count

DOCS = Path(__file__).parents[2] / "proofs" / "README.md"


def named(rules: Rules) -> str:
    term = "coupled" if rules.coupled else "carried"
    return f"{term}-{rules.nodes}-nodes-low-{rules.low_water}-costs-{max(rules.costs)}"


@pytest.fixture(scope="module")
def explored() -> dict[Rules, Any]:
    return {rules: explore(rules) for rules in CASES}


@pytest.mark.parametrize("rules", CASES, ids=named)
def test_the_bound_is_reached_and_never_exceeded(rules: Rules, explored: dict[Rules, Any]) -> None:
    """In every reachable state of the fleet, after any number of windows."""
    result = explored[rules]
    assert not result.stopped, tell(result)
    assert result.most == rules.bound
    assert rules.bound == (
        rules.limit if rules.coupled else rules.limit + rules.nodes * (rules.batch - 1)
    )


def test_fleets_of_one_to_four_nodes_are_covered() -> None:
    """Coupled and carried over, on demand and ahead of need."""
    covered = {(r.coupled, r.nodes, r.low_water > 0) for r in CASES}
    assert covered >= {(c, n, a) for c in (0, 1) for n in (1, 2, 3, 4) for a in (0, 1)}


@pytest.mark.parametrize("rules", REFUTED, ids=lambda rules: rules.flaw)
def test_a_flaw_is_found_with_its_counter_example(rules: Rules) -> None:
    """So the exploration does look where it hurts."""
    result = explore(rules)
    assert result.stopped
    assert result.most == rules.bound + 1
    story = tell(result)
    assert "the window rolls" in story
    assert story.splitlines()[-1].endswith(f"admitted {result.most:2}")


def test_the_documented_counts_are_those_of_the_run(explored: dict[Rules, Any]) -> None:
    """Run `python -m proofs.leases` and paste its table when this fails."""
    block = re.search(r"<!-- proof -->\n(.*?)<!-- end -->", DOCS.read_text(), re.DOTALL)
    assert block is not None
    assert block[1] == table([explored[rules] for rules in CASES])


class Fleet:
    """The code in the place of the model: a near tier per node, leases driven by hand."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.clock = ManualClock(1_000)
        self.strategy = fixed_window(rules.limit, 1_000)
        self.store = MemoryStore()
        self.nodes = [Member(self) for _ in range(rules.nodes)]

    def play(self, step: Step, after: State) -> None:
        if step.verb == "rolls":
            self.clock.advance(1_000)
        elif step.verb == "dies":
            self.nodes[step.node] = Member(self)
        elif step.verb == "asks":
            # The step says how much is leased, and the state for which request.
            asked = after.nodes[step.node].asked
            assert asked is not None
            self.nodes[step.node].asks(asked[2], step.amount)
        else:
            getattr(self.nodes[step.node], step.verb.replace(" ", "_"))(step.amount)


class Member:
    def __init__(self, fleet: Fleet) -> None:
        rules = fleet.rules
        self.fleet = fleet
        self.near = NearTier(
            limit=rules.limit,
            batch=rules.batch,
            term=term_of(fleet.strategy, rules.coupled),
            idle_ms=None,
            max_keys=10,
            clock=fleet.clock,
        )
        self.request: LeaseRequest | None = None
        self.cost = 0
        self.grant: Grant | None = None
        self.denied_cost = 0
        self.waited = False

    def spends(self, cost: int) -> None:
        assert self.near.local.check("key", cost).allowed

    def asks(self, cost: int, want: int) -> None:
        place = Place.of_thread(self.near.queues, "key", sys._getframe())
        assert place is not None
        settled = self.near.settle("key", cost, place)
        if settled is not None:
            # A denial that still holds: the model asks the store again, which says the same.
            assert not settled.allowed
            place.leave()
            self.denied_cost = cost
            return
        place.leave()
        self.cost, self.request = cost, self.near.ask("key", cost)
        assert (self.request.want, self.request.need) == (want, cost)

    def asks_ahead(self, want: int) -> None:
        self.cost, self.request = 0, self.near.ask_ahead("key", self.fleet.rules.low_water)
        assert self.request is None or self.request.want == want

    def is_granted(self, taken: int) -> None:
        if self.request is None:
            self.asks(self.denied_cost or 1, max(self.fleet.rules.batch, self.denied_cost))
        assert self.request is not None
        lease = leasing(self.fleet.strategy, self.request.need)
        self.grant = self.fleet.store.apply("key", lease, self.fleet.clock.now(), self.request.want)
        assert self.grant is not None
        assert self.grant.capacity == taken
        self.waited = self.fleet.clock.now() > self.request.sent_at

    def is_refused(self, _: int) -> None:
        if self.request is not None:
            self.is_granted(0)
            self.receives(0)

    def receives(self, _: int) -> None:
        assert self.request is not None
        assert self.grant is not None
        self.near.receive(self.request, self.cost, self.grant)
        self.request = self.grant = None
        self.denied_cost = 0

    def drops(self, _: int) -> None:
        self.near.local.reset("key")


@pytest.mark.parametrize("rules", CASES, ids=named)
@pytest.mark.parametrize("seed", range(count(8, 30)))
def test_the_code_walks_the_model(rules: Rules, seed: int) -> None:
    """Random ways through the model, step by step: the same grants, the same credits held."""
    rng = random.Random(seed)
    state, fleet = start(rules), Fleet(rules)
    for _ in range(120):
        step, state = rng.choice(list(successors(rules, state)))
        fleet.play(step, state)
        state = follow(fleet, state)


@pytest.mark.parametrize("rules", [r for r in CASES if r.nodes == 3], ids=named)
def test_the_code_reaches_the_bound_the_way_the_model_does(
    rules: Rules, explored: dict[Rules, Any]
) -> None:
    """The shortest way to the most that can be admitted, replayed on the limiter's own parts."""
    fleet = Fleet(rules)
    for step, state in explored[rules].way():
        fleet.play(step, state)
        follow(fleet, state)


def follow(fleet: Fleet, state: State) -> State:
    """Deliver at once what the model delivers at once, then compare.

    A lease that was asked for before the window rolled and granted after it brings credits that
    are reckoned from the asking: too short, and here void at once. The model drops them, too.
    """
    nodes = []
    for member, node in zip(fleet.nodes, state.nodes, strict=True):
        if member.grant is not None and node.granted is None:
            member.receives(0)
        held = member.near.held("key")
        if held == 0 and fleet.rules.coupled and member.waited:
            node = node._replace(credits=0)
        assert held == node.credits
        nodes.append(node)
    return state._replace(nodes=tuple(nodes))
