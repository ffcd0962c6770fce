"""Our client and one written from the contract alone share keys without a difference."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import redis

from tests.wire import independent
from tests.wire.independent import IndependentClient
from tests.wire.live import check, fields, read, rider
from tests.wire.timelines import KINDS, make_timelines

STEPS = 1_500


@pytest.fixture
def other(client: redis.Redis) -> Iterator[IndependentClient]:
    address = client.connection_pool.connection_kwargs
    other = IndependentClient(address["host"], address["port"])
    yield other
    other.close()


@pytest.mark.parametrize("kind", KINDS)
def test_two_clients_interleave_on_the_same_keys(
    client: redis.Redis, other: IndependentClient, kind: str
) -> None:
    """Whoever writes, the next one reads it and decides as the oracle does."""
    whose = Random(kind)
    for line in make_timelines(kind, 7, STEPS):
        argv = rider(line.strategy).argv
        for (now, cost), decision in zip(line.requests, line.decisions, strict=True):
            ours = whose.random() < 0.5
            reply = (
                check(client, line.strategy, line.key, now, cost)
                if ours
                else other.check(kind, line.key, *argv(now, cost))
            )
            assert reply == fields(decision), (line.strategy, now, cost)
        now = line.requests[-1][0]
        state = read(client, line.strategy, line.key)
        assert line.strategy.peek(state, now) == line.strategy.peek(line.state, now)


def test_the_independent_client_is_independent() -> None:
    """It imports the standard library only."""
    tree = ast.parse(Path(str(independent.__file__)).read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    assert modules | names == {"__future__", "typing", "hashlib", "socket"}
