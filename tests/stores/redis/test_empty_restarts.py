"""A server that lost its scripts, on every path: each call is answered at its first attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import Limits, fixed_window, gcra, rate_limit, sliding_window_log, slots
from penstock.stores.redis import RedisStore
from tests.servers import RedisServer, Valkey, require
from tests.stores.redis.live import PATIENT_MS, SPAN_MS, new_key, running, url_of

BOTH = {"a": "k", "b": "k"}


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    require("valkey")
    with Valkey() as started:
        yield started


def sync_calls(store: RedisStore, prefix: str) -> dict[str, Callable[[], Any]]:
    rate = rate_limit(gcra(1_000, SPAN_MS), store=store, prefix=f"{prefix}:r")
    log = rate_limit(sliding_window_log(5_000, SPAN_MS), store=store, prefix=f"{prefix}:l")
    slot = rate_limit(slots(100), store=store, prefix=f"{prefix}:s")
    limits = Limits(
        {"a": gcra(1_000, SPAN_MS), "b": fixed_window(1_000, SPAN_MS)},
        store=store,
        prefix=f"{prefix}:a",
    )
    return {
        "check": lambda: rate.check("k"),
        "check_many": lambda: rate.check_many([f"{n}" for n in range(600)]),
        "peek": lambda: rate.peek("k"),
        "heavy": lambda: log.check("k", 1_000),
        "reserve": lambda: rate.reserve("k"),
        "slot": lambda: slot.reserve("k"),
        "limits": lambda: limits.check(BOTH),
    }


def async_calls(store: RedisStore, prefix: str) -> dict[str, Callable[[], Any]]:
    rate = rate_limit(gcra(1_000, SPAN_MS), store=store, prefix=f"{prefix}:r")
    slot = rate_limit(slots(100), store=store, prefix=f"{prefix}:s")
    limits = Limits(
        {"a": gcra(1_000, SPAN_MS), "b": fixed_window(1_000, SPAN_MS)},
        store=store,
        prefix=f"{prefix}:a",
    )
    return {
        "check": lambda: rate.acheck("k"),
        "check_many": lambda: rate.acheck_many([f"{n}" for n in range(600)]),
        "peek": lambda: rate.apeek("k"),
        "reserve": lambda: rate.areserve("k"),
        "slot": lambda: slot.areserve("k"),
        "limits": lambda: limits.acheck(BOTH),
    }


def lose_scripts(kind: str, store: RedisStore, server: RedisServer) -> None:
    if kind == "restarted":
        server.restart()
    elif kind == "flushed":
        server.call("SCRIPT", "FLUSH")
    else:
        for node in running("cluster").nodes:
            node.call("SCRIPT", "FLUSH")


@pytest.mark.parametrize("kind", ["restarted", "flushed", "cluster"])
def test_calls_after_a_loss_of_all_scripts_are_answered(server: RedisServer, kind: str) -> None:
    url = url_of("cluster") if kind == "cluster" else server.url
    store = RedisStore.from_url(url, timeout_ms=PATIENT_MS)
    # In a cluster all limits of a request are in one slot.
    calls = sync_calls(store, f"{{{new_key()}}}")
    for call in calls.values():
        call()
    for call in calls.values():
        lose_scripts(kind, store, server)
        assert call()
    store.close()

    async def main() -> None:
        store = RedisStore.from_url(url, timeout_ms=PATIENT_MS)
        calls = async_calls(store, f"{{{new_key()}}}")
        for call in calls.values():
            await call()
        for call in calls.values():
            lose_scripts(kind, store, server)
            answers = await asyncio.gather(*[call() for _ in range(5)])
            assert all(answers)
        await store.aclose()

    asyncio.run(main())
