"""Random timelines: a strategy with random parameters, and requests that aim at its edges.

Instants go on from the last one by nothing, a little, a good part of the window, several windows,
or to exactly where the last decision said that something changes, give or take a millisecond; and
back, by a little or a lot. Costs are mostly small, and often exactly what is left or one more.
A seed makes the same timelines everywhere.

A crowd is the same for many keys of one strategy, which ask together: each request is a batch of
some of them, cold or not, idle or not, and often one of them twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from penstock import Decision, Strategy
from penstock.core._register import find_strategy, registered
from penstock.core._validation import MAX_INSTANT_MS, MAX_SAFE
from penstock.testkit import draw_strategy


@dataclass
class Timeline:
    """Requests to one key, from cold, and the oracle's answers. `state` is what it ends with."""

    key: str
    strategy: Strategy
    requests: list[tuple[int, int]]
    decisions: list[Decision]
    expired: list[Decision]
    state: Any


@dataclass
class Crowd:
    """Batches of requests, and the oracle's answers. `states` is what they end with."""

    strategy: Strategy
    batches: list[tuple[tuple[str, ...], int, int]]
    decisions: list[list[Decision]]
    states: dict[str, Any]


def make_crowds(kind: str, seed: int, steps: int) -> list[Crowd]:
    """At least `steps` decisions, over as many crowds as that takes."""
    random = Random(f"{kind} many {seed}")
    crowds: list[Crowd] = []
    while steps > 0:
        name = f"{kind}:many:{seed}:{len(crowds)}"
        keys = [f"{name}:{number}" for number in range(random.choice((2, 3, 8, 30)))]
        crowds.append(_crowd(random, keys, _strategy(random, kind), random.choice((5, 20, 60))))
        steps -= sum(map(len, crowds[-1].decisions))
    return crowds


def _crowd(random: Random, keys: list[str], strategy: Strategy, length: int) -> Crowd:
    crowd = Crowd(strategy, [], [], {})
    now = _first_instant(random)
    last: Decision | None = None
    for _ in range(length):
        if last is not None:
            now = _next_instant(random, strategy, now, last)
        cost = _cost(random, strategy, last)
        size = random.randint(1, len(keys))
        pick = random.choices if random.random() < 0.5 else random.sample
        batch = tuple(pick(keys, k=size))
        answers = []
        for key in batch:
            outcome = strategy.check(crowd.states.get(key), now, cost)
            answers.append(outcome.result)
            if outcome.persist:
                crowd.states[key] = outcome.state
        crowd.batches.append((batch, now, cost))
        crowd.decisions.append(answers)
        last = random.choice(answers)
    return crowd


def make_timelines(kind: str, seed: int, steps: int) -> list[Timeline]:
    """At least `steps` requests, over as many keys as that takes."""
    random = Random(f"{kind} {seed}")
    timelines: list[Timeline] = []
    while steps > 0:
        length = random.choice((20, 50, 150, 400))
        key = f"{kind}:{seed}:{len(timelines)}"
        timelines.append(_timeline(random, key, _strategy(random, kind), length))
        steps -= length
    return timelines


def _timeline(random: Random, key: str, strategy: Strategy, length: int) -> Timeline:
    now = _first_instant(random)
    timeline = Timeline(key, strategy, [], [], [], None)
    expires = 0
    decision: Decision | None = None
    for _ in range(length):
        if decision is not None:
            now = _next_instant(random, strategy, now, decision)
        cost = _cost(random, strategy, decision)
        state = timeline.state
        outcome = strategy.check(state, now, cost)
        decision = outcome.result
        forgetful = strategy.check(state if now < expires else None, now, cost).result
        timeline.requests.append((now, cost))
        timeline.decisions.append(decision)
        timeline.expired.append(forgetful)
        if outcome.persist:
            timeline.state, expires = outcome.state, now + outcome.ttl_ms
    return timeline


def _first_instant(random: Random) -> int:
    return random.choice((1, random.randint(1, 5_000), 0, 0, 0, MAX_INSTANT_MS)) or (
        random.randint(1_600_000_000_000, 2_000_000_000_000)
    )


def _next_instant(random: Random, strategy: Strategy, now: int, last: Decision) -> int:
    span = strategy.window_ms or strategy.ttl_ms
    pick = random.random()
    if pick < 0.30:
        after = now + random.choice((0, 0, 1, 1, 2, 3))
    elif pick < 0.55:
        after = now + random.randint(0, max(1, 4 * span // max(1, min(strategy.limit, 50))))
    elif pick < 0.70:
        after = now + last.retry_after_ms + random.choice((-1, 0, 0, 1))
    elif pick < 0.80:
        after = last.reset_at + random.choice((-1, 0, 0, 1))
    elif pick < 0.86:
        after = now + random.choice((span - 1, span, span + 1, 2 * span, 7 * span))
    elif pick < 0.95:
        after = now - random.choice((1, 2, random.randint(1, 2 * span), span, span + 1))
    elif pick < 0.98:
        after = now + random.choice((60_000, 3_600_000, 86_400_000))
    else:
        after = random.choice((now - 10 * span, now // 2, now - 86_400_000))
    return min(max(after, 1), MAX_INSTANT_MS)


def _cost(random: Random, strategy: Strategy, last: Decision | None) -> int:
    pick = random.random()
    limit = strategy.limit
    left = limit if last is None else last.remaining
    if pick < 0.5:
        cost = 1
    elif pick < 0.7:
        cost = random.randint(1, max(1, min(limit // 3, 1_000)))
    elif pick < 0.88:
        cost = left + random.choice((-1, 0, 0, 1))
    elif pick < 0.95:
        cost = random.choice((limit - 1, limit, limit + 1, 2 * limit))
    else:
        cost = random.choice((MAX_SAFE, MAX_SAFE - 1, random.randint(1, MAX_SAFE), 10**9))
    return min(max(cost, 1), MAX_SAFE)


# One member of a set per unit: large limits would only test the server's patience.
_MOST_REMEMBERED = 1_500


def _strategy(random: Random, kind: str) -> Strategy:
    cls = find_strategy(kind)
    assert cls is not None
    while True:
        strategy = draw_strategy(cls, random)
        if not cls.unit_bytes or strategy.limit <= _MOST_REMEMBERED:
            return strategy


KINDS = tuple(cls.name for cls in registered() if cls.lua_sources)
