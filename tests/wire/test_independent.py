"""Our client and one written from the contract alone share keys without a difference."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import redis

from penstock import (
    calendar_quota,
    fixed_window,
    gcra,
    sliding_window,
    sliding_window_log,
    token_bucket,
)
from penstock.core._strategy import Strategy
from penstock.core._transform import checking
from penstock.stores.redis import RedisStore
from tests.wire import independent
from tests.wire.independent import IndependentClient
from tests.wire.live import accelerator, check, fields, read
from tests.wire.timelines import make_timelines
from tools.wire.manifest import published

STEPS = 1_500
PATIENT_MS = 120_000
LONG_MS = 864_000_000

# Those that the other client knows: by strategy, and by script.
KINDS = sorted({source.strategy for source in published()})

# Limits of 20 that nothing is replenished of while a test runs.
SHARED = {
    "gcra": gcra(20, LONG_MS),
    "tokenBucket": token_bucket(20, 20 / (LONG_MS / 1000)),
    "fixedWindow": fixed_window(20, LONG_MS),
    "fixedWindowFirst": fixed_window(20, LONG_MS, "first"),
    "calendarQuota": calendar_quota(20, "year", "Asia/Tokyo"),
    "slidingWindow": sliding_window(20, LONG_MS),
    "slidingWindowLog": sliding_window_log(20, LONG_MS),
}


def script_of(strategy: Strategy) -> str:
    source = strategy.lua_source()
    assert source is not None
    return source.name


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
        argv = accelerator(line.strategy).argv
        for (now, cost), decision in zip(line.requests, line.decisions, strict=True):
            ours = whose.random() < 0.5
            reply = (
                check(client, line.strategy, line.key, now, cost)
                if ours
                else other.check(script_of(line.strategy), line.key, *argv(now, cost))
            )
            assert reply == fields(decision), (line.strategy, now, cost)
        now = line.requests[-1][0]
        state = read(client, line.strategy, line.key)
        assert line.strategy.peek(state, now) == line.strategy.peek(line.state, now)


@pytest.fixture
def url(client: redis.Redis) -> str:
    address = client.connection_pool.connection_kwargs
    return f"redis://{address['host']}:{address['port']}"


@pytest.mark.parametrize("kind", KINDS)
def test_the_store_and_another_client_interleave_on_the_same_keys(
    url: str, other: IndependentClient, kind: str
) -> None:
    """One check or a batch of ours, or one of theirs: each decides as the oracle does."""
    whose = Random(kind)
    store = RedisStore.from_url(url, use_server_time=False, timeout_ms=PATIENT_MS)
    for line in make_timelines(kind, 8, STEPS):
        transform, argv = checking(line.strategy), accelerator(line.strategy).argv
        for (now, cost), decision in zip(line.requests, line.decisions, strict=True):
            turn = whose.random()
            if turn < 0.3:
                reply = fields(store.apply(line.key, transform, now, cost))
            elif turn < 0.5:
                beside = f"{line.key}:beside"
                reply = fields(store.apply_many([beside, line.key], transform, now, cost)[1])
            else:
                reply = other.check(script_of(line.strategy), line.key, *argv(now, cost))
            assert reply == fields(decision), (line.strategy, now, cost)
    store.close()


@pytest.mark.parametrize("script", [source.name for source in published()])
def test_the_store_and_another_client_share_a_limit_by_the_servers_clock(
    url: str, other: IndependentClient, script: str
) -> None:
    """Both pass 0 for the instant, and together they get exactly the limit."""
    strategy, key = SHARED[script], f"shared:{script}"
    store = RedisStore.from_url(url, timeout_ms=PATIENT_MS)
    ours, argv = checking(strategy), accelerator(strategy).argv
    admitted = []
    for _ in range(10):
        admitted.append(store.apply(key, ours, 0, 1).allowed)
        admitted.append(other.check(script, key, *argv(0, 1))[0] == 1)
        pair = store.apply_many([key, f"{key}:beside", key], ours, 0, 1)
        admitted += [pair[0].allowed, pair[2].allowed]
    assert admitted == [True] * 20 + [False] * 20
    store.close()


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
