"""Every executor of a strategy says what the oracle says, on all five fields, to the bit.

Random timelines (see tests/wire/timelines.py) run through the oracle, the interpreted table, the
limiter (compiled, where that path is on) and Lua on every server. SEED=n and STEPS=n in the
environment choose others and more.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import pytest
import redis

from penstock import Decision, ManualClock, rate_limit
from penstock.core._transform import checking
from penstock.stores.memory._table import Table
from tests.support.effort import count
from tests.support.variables import figure
from tests.wire.live import SERVERS, check_all, check_crowd, connected, fields, read
from tests.wire.timelines import KINDS, Crowd, Timeline, make_crowds, make_timelines

SEED = figure("SEED", 1)
STEPS = figure("STEPS", count(6_000, 20_000))


@cache
def timelines(kind: str) -> list[Timeline]:
    return make_timelines(kind, SEED, STEPS)


@cache
def crowds(kind: str) -> list[Crowd]:
    return make_crowds(kind, SEED, STEPS)


@pytest.fixture(scope="module", params=SERVERS)
def client(request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    with connected(request.param) as client:
        yield client


@pytest.mark.parametrize("kind", KINDS)
def test_the_timelines_reach_every_kind_of_answer(kind: str) -> None:
    """A fuzzer that only ever sees admissions would prove little."""
    lines = timelines(kind)
    decisions = [decision for line in lines for decision in line.decisions]
    denied = sum(not decision.allowed for decision in decisions)
    pairs = [pair for line in lines for pair in zip(line.requests, line.requests[1:], strict=False)]
    back = sum(later[0] < earlier[0] for earlier, later in pairs)
    assert len(decisions) >= STEPS
    assert 0.15 < denied / len(decisions) < 0.85
    assert back / len(decisions) > 0.05
    assert sum(now > 10**12 for line in lines for now, _ in line.requests) > STEPS / 4


@pytest.mark.parametrize("kind", KINDS)
def test_state_past_its_ttl_decides_like_no_state(kind: str) -> None:
    """Lua has no logical expiry, and needs none."""
    for line in timelines(kind):
        assert line.expired == line.decisions, line.strategy


@pytest.mark.parametrize("kind", KINDS)
def test_the_interpreted_table_agrees(kind: str) -> None:
    """The table that serves where nothing is compiled makes the oracle's decisions."""
    for line in timelines(kind):
        table, transform = Table(None, None, True), checking(line.strategy)
        answers = [table.apply(line.key, transform, now, cost) for now, cost in line.requests]
        assert answers == line.decisions, line.strategy


@pytest.mark.parametrize("kind", KINDS)
def test_the_limiter_in_memory_agrees(kind: str) -> None:
    """A limiter on a MemoryStore, compiled or not, makes the oracle's decisions."""
    for line in timelines(kind):
        assert _limited(line) == line.decisions, line.strategy


@pytest.mark.parametrize("kind", KINDS)
def test_lua_agrees(client: redis.Redis, kind: str) -> None:
    """The scripts make the oracle's decisions and leave the oracle's state."""
    lines = timelines(kind)
    requests = [(line.key, line.strategy, *request) for line in lines for request in line.requests]
    replies = iter(check_all(client, requests))
    for line in lines:
        for decision, request in zip(line.decisions, line.requests, strict=True):
            assert next(replies) == fields(decision), (line.strategy, request)
        now = line.requests[-1][0]
        state = read(client, line.strategy, line.key)
        assert line.strategy.peek(state, now) == line.strategy.peek(line.state, now)
        assert line.strategy.forecast(state, now, 1) == line.strategy.forecast(line.state, now, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_crowds_reach_every_kind_of_batch(kind: str) -> None:
    """Batches that repeat a key, that are of two minds, and that go back in time."""
    batches = [batch for crowd in crowds(kind) for batch in crowd.batches]
    answers = [answer for crowd in crowds(kind) for answer in crowd.decisions]
    allowed = [decision.allowed for answer in answers for decision in answer]
    instants = [[now for _, now, _ in crowd.batches] for crowd in crowds(kind)]
    assert len(allowed) >= STEPS
    assert 0.15 < sum(allowed) / len(allowed) < 0.85
    assert sum(len(set(keys)) < len(keys) for keys, _, _ in batches) > len(batches) / 5
    assert sum(len({d.allowed for d in answer}) == 2 for answer in answers) > len(batches) / 20
    back = sum(b < a for line in instants for a, b in pairwise(line))
    assert back > len(batches) / 20


@pytest.mark.parametrize("kind", KINDS)
def test_lua_for_many_agrees(client: redis.Redis, kind: str) -> None:
    """Batches get what their keys would get one by one, and leave the same states."""
    for crowd in crowds(kind):
        replies = check_crowd(client, crowd)
        for batch, decisions, reply in zip(crowd.batches, crowd.decisions, replies, strict=True):
            assert reply == list(map(fields, decisions)), (crowd.strategy, batch)
        peek, now = crowd.strategy.peek, crowd.batches[-1][1]
        for key in {key for keys, _, _ in crowd.batches for key in keys}:
            state = read(client, crowd.strategy, key)
            assert peek(state, now) == peek(crowd.states.get(key), now), (crowd.strategy, key)


def _limited(line: Timeline) -> list[Decision]:
    clock = ManualClock()
    limiter = rate_limit(line.strategy, clock=clock)
    answers = []
    for now, cost in line.requests:
        clock.set(now)
        answers.append(limiter.check(line.key, cost))
    return answers
