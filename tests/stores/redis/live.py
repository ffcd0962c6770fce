"""Real servers for the tests of RedisStore: each started once per run, at its first use."""

from __future__ import annotations

import functools
import uuid
from typing import Any

import pytest

from penstock import fixed_window, gcra, sliding_window, sliding_window_log, token_bucket
from penstock.stores.redis import RedisStore, _multiplexed, _store
from tests.servers import Redis8, RedisCluster, RedisSentinel, Valkey, require

# Long enough that nothing is replenished while a test runs, on whichever clock.
SPAN_MS = 864_000_000
PATIENT_MS = 20_000

FIVE = {
    "gcra": lambda limit: gcra(limit, SPAN_MS),
    "token_bucket": lambda limit: token_bucket(limit, limit / (SPAN_MS / 1000)),
    "fixed_window": lambda limit: fixed_window(limit, SPAN_MS),
    "sliding_window": lambda limit: sliding_window(limit, SPAN_MS),
    "sliding_window_log": lambda limit: sliding_window_log(limit, SPAN_MS),
}


# The fixed window in its other form too.
SIX = {**FIVE, "fixed_window_first": lambda limit: fixed_window(limit, SPAN_MS, "first")}


@functools.cache
def running(name: str) -> Any:
    """A server that stays up to the end of the run."""
    require("redis8" if name == "redis8" else "valkey")
    makers = {"valkey": Valkey, "redis8": Redis8, "cluster": RedisCluster}
    return {**makers, "sentinel": RedisSentinel}[name]().__enter__()


def url_of(name: str) -> str:
    server = running(name)
    return server.url.replace("redis://", "redis+cluster://") if name == "cluster" else server.url


def patient_url_of(name: str) -> str:
    """With a deadline that is not met by chance, where every call has to be answered."""
    return f"{url_of(name)}?timeout_ms={PATIENT_MS}"


def open_empty(name: str) -> RedisStore:
    """A patient store that decides by the caller's clock, on an emptied server."""
    server = running(name)
    for member in getattr(server, "nodes", [server]):
        member.call("FLUSHALL")
    return RedisStore.from_url(url_of(name), use_server_time=False, timeout_ms=PATIENT_MS)


def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have checks made by their flow, as where nothing is compiled."""
    monkeypatch.setattr(_store, "native", None)
    monkeypatch.setattr(_multiplexed, "_pair_replies", _multiplexed.pair_replies)


def new_key() -> str:
    return f"key-{uuid.uuid4().hex[:12]}"
