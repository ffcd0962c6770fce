"""Scripts on real servers: a client per server, and many requests in one round trip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import redis
from tests.servers import Redis7, Redis8, RedisServer, Valkey, require

from penstock.core.decision import Decision
from penstock.core.strategy import LuaRider, LuaScript, Strategy

SERVERS: dict[str, type[RedisServer]] = {"valkey": Valkey, "redis8": Redis8, "redis7": Redis7}

Fields = tuple[int, int, int, int, int]
Request = tuple[str, Strategy, int, int]

_CHUNK = 2_000


@contextmanager
def connected(name: str) -> Iterator[redis.Redis]:
    """A client of a fresh server; skips the test where the server is not installed."""
    require(name)
    with SERVERS[name]() as server, redis.Redis(host=server.host, port=server.port) as client:
        yield client


def rider(strategy: Strategy) -> LuaRider:
    assert strategy.lua is not None
    return strategy.lua


def fields(decision: Decision) -> Fields:
    """A decision as the reply of a script."""
    return (
        int(decision.allowed),
        decision.limit,
        decision.remaining,
        decision.reset_at,
        decision.retry_after_ms,
    )


def run(client: redis.Redis, script: LuaScript, key: str, *argv: Any) -> Any:
    return client.eval(script.source, 1, key, *argv)


def check(client: redis.Redis, strategy: Strategy, key: str, now: int, cost: int = 1) -> Fields:
    """One check, in one round trip of its own."""
    lua = rider(strategy)
    reply: Fields = tuple(run(client, lua.check, key, *lua.argv(now, cost)))
    return reply


def read(client: redis.Redis, strategy: Strategy, key: str) -> Any:
    """The state of a key, as Python sees it."""
    return strategy.read_state(run(client, rider(strategy).read, key))


def check_all(client: redis.Redis, requests: Iterable[Request]) -> list[Fields]:
    """Check one after the other, in few round trips."""
    replies: list[Fields] = []
    loaded: set[str] = set()
    pipe = client.pipeline(transaction=False)
    for key, strategy, now, cost in requests:
        lua = rider(strategy)
        if lua.check.sha1 not in loaded:
            client.script_load(lua.check.source)
            loaded.add(lua.check.sha1)
        pipe.evalsha(lua.check.sha1, 1, key, *lua.argv(now, cost))
        if len(pipe) >= _CHUNK:
            replies += map(tuple, pipe.execute())
    replies += map(tuple, pipe.execute())
    return replies
