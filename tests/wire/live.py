"""Scripts on real servers: a client per server, and many requests in one round trip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from penstock.core._accelerator import LuaAccelerator
from penstock.core._decision import Decision
from penstock.core._lua import LuaScript
from penstock.core._strategy import Strategy
from tests.servers import Redis7, Redis8, RedisServer, Valkey, require
from tests.wire.timelines import Crowd

SERVERS: dict[str, type[RedisServer]] = {"valkey": Valkey, "redis8": Redis8, "redis7": Redis7}

Fields = tuple[int, int, int, int, int]
Request = tuple[str, Strategy, int, int]

_CHUNK = 2_000


@contextmanager
def connected(name: str) -> Iterator[redis.Redis]:
    """A client of a fresh server; skips the test where the server is not installed."""
    require(name)
    # A script of a million units may take long on a busy machine, and must not be sent twice.
    with SERVERS[name](args=["--lua-time-limit", "120000"]) as server:
        place = {"host": server.host, "port": server.port}
        with redis.Redis(**place, socket_timeout=120, retry=Retry(NoBackoff(), 0)) as client:
            yield client


def accelerator(strategy: Strategy) -> LuaAccelerator:
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
    lua = accelerator(strategy)
    reply: Fields = tuple(run(client, lua.check, key, *lua.argv(now, cost)))
    return reply


def check_many(
    client: redis.Redis, strategy: Strategy, keys: Sequence[str], now: int, cost: int = 1
) -> list[Fields]:
    """All keys by the script for many."""
    lua = accelerator(strategy)
    assert lua.many is not None
    reply: Any = client.eval(lua.many.source, len(keys), *keys, *lua.argv(now, cost))
    return unfolded(reply)


def unfolded(reply: Sequence[int]) -> list[Fields]:
    """What the script for many said, as the check would have said it of each key."""
    limit, *rest = reply
    answers: list[Fields] = []
    for start in range(0, len(rest), 4):
        count, left, reset_at, retry = rest[start : start + 4]
        answers += [(int(retry == 0), limit, left, reset_at, retry)] * count
    return answers


def read(client: redis.Redis, strategy: Strategy, key: str) -> Any:
    """The state of a key, as Python sees it."""
    return strategy.read_state(run(client, accelerator(strategy).read, key))


def check_all(client: redis.Redis, requests: Iterable[Request]) -> list[Fields]:
    """Check one after the other, in few round trips."""
    replies: list[Fields] = []
    loaded: set[str] = set()
    pipe = client.pipeline(transaction=False)
    for key, strategy, now, cost in requests:
        lua = accelerator(strategy)
        if lua.check.sha1 not in loaded:
            client.script_load(lua.check.source)
            loaded.add(lua.check.sha1)
        pipe.evalsha(lua.check.sha1, 1, key, *lua.argv(now, cost))
        if len(pipe) >= _CHUNK:
            replies += map(tuple, pipe.execute())
    replies += map(tuple, pipe.execute())
    return replies


def check_crowd(client: redis.Redis, crowd: Crowd) -> list[list[Fields]]:
    """The batches of a crowd in one round trip: most by the script for many, the odd one by one
    check per key, as another client of the same keys would make them."""
    lua = accelerator(crowd.strategy)
    assert lua.many is not None
    many, one = client.script_load(lua.many.source), client.script_load(lua.check.source)
    pipe = client.pipeline(transaction=False)
    for number, (keys, now, cost) in enumerate(crowd.batches):
        if number % 4 == 3:
            for key in keys:
                pipe.evalsha(one, 1, key, *lua.argv(now, cost))
        else:
            pipe.evalsha(many, len(keys), *keys, *lua.argv(now, cost))
    replies = iter(pipe.execute())
    answers: list[list[Fields]] = []
    for number, (keys, _, _) in enumerate(crowd.batches):
        single = number % 4 == 3
        answers.append([tuple(next(replies)) for _ in keys] if single else unfolded(next(replies)))
    return answers
