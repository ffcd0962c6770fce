"""What the scripts for many keys promise beside their decisions: clocks, expiry, foreign keys."""

from __future__ import annotations

import pytest
import redis

from penstock import fixed_window, gcra, sliding_window, sliding_window_log, token_bucket
from penstock.core._lua import MARGIN_MS
from penstock.core._strategy import Strategy
from tests.wire.live import accelerator, check, check_many, fields, read, unfolded

NOW = 1_700_000_000_000
HOUR = 3_600_000
# PTTL is read a moment after it was set.
LAG = 2_000


def each(limit: int, window_ms: int) -> pytest.MarkDecorator:
    strategies = [
        gcra(limit, window_ms),
        token_bucket(limit, limit * 1000 / window_ms),
        fixed_window(limit, window_ms),
        fixed_window(limit, window_ms, "first"),
        sliding_window(limit, window_ms),
        sliding_window_log(limit, window_ms),
    ]
    return pytest.mark.parametrize("strategy", strategies, ids=repr)


def named(key: str, count: int) -> list[str]:
    return [f"{key}:{number}" for number in range(count)]


def server_ms(client: redis.Redis) -> int:
    seconds, micros = client.time()
    return int(seconds) * 1000 + int(micros) // 1000


@each(5, 1000)
def test_a_now_of_zero_is_one_instant_of_the_server(
    client: redis.Redis, strategy: Strategy, key: str
) -> None:
    """However many keys there are, all are decided as of the same reading of TIME."""
    before = server_ms(client)
    replies = check_many(client, strategy, named(key, 400), 0, 2)
    after = server_ms(client)
    assert len(set(replies)) == 1
    possible = [fields(strategy.check(None, now, 2).result) for now in range(before, after + 1)]
    assert replies[0] in possible


@each(5, 1000)
def test_a_repeated_key_is_charged_each_time(
    client: redis.Redis, strategy: Strategy, key: str
) -> None:
    """Cold or not, a later request of a batch sees what an earlier one has spent."""
    cold, warm = f"{key}:cold", f"{key}:warm"
    check(client, strategy, warm, NOW, 1)
    replies = check_many(client, strategy, [cold, warm, cold, warm, cold, warm, cold], NOW, 2)
    assert [reply[0] for reply in replies] == [1, 1, 1, 1, 0, 0, 0]
    assert check(client, strategy, cold, NOW, 1)[:3] == (1, 5, 0)
    assert check(client, strategy, warm, NOW, 1)[0] == 0


@each(5, 600_000)
def test_every_key_lives_as_long_as_after_a_check(
    client: redis.Redis, strategy: Strategy, key: str
) -> None:
    """At least; and at most as long as the state of a full key would."""
    keys = named(key, 4)
    now = server_ms(client) + HOUR
    for number, name in enumerate(keys[1:], start=1):
        check(client, strategy, name, now, number)
    states = [read(client, strategy, name) for name in keys]
    check_many(client, strategy, keys, now, 1)
    for name, state in zip(keys, states, strict=True):
        ttl_ms = strategy.check(state, now, 1).ttl_ms
        most_ms = HOUR + 2 * strategy.ttl_ms
        assert HOUR + 2 * ttl_ms - LAG < client.pttl(name) <= most_ms, name


@each(5, 1)
def test_a_ttl_of_a_millisecond_leaves_a_minute(
    client: redis.Redis, strategy: Strategy, key: str
) -> None:
    """However slow the next caller is, the keys are still there."""
    keys = named(key, 3)
    check_many(client, strategy, keys, server_ms(client), 1)
    assert all(client.pttl(name) > MARGIN_MS - LAG for name in keys)


@each(3, 1000)
def test_denials_write_nothing(client: redis.Redis, strategy: Strategy, key: str) -> None:
    """A batch that is denied runs even where writing is forbidden, and no byte changes."""
    full, cold = f"{key}:full", f"{key}:cold"
    check(client, strategy, full, NOW, 3)
    before = client.dump(full)
    lua = accelerator(strategy)
    assert lua.many is not None
    reply = client.eval_ro(lua.many.source, 2, full, cold, *lua.argv(NOW + 1, 4))
    assert [answer[0] for answer in unfolded(reply)] == [0, 0]
    assert client.dump(full) == before
    assert not client.exists(cold)


@pytest.mark.parametrize("cost", [1, 9])
@each(5, 1000)
def test_a_key_of_another_kind_is_refused_and_kept(
    client: redis.Redis, strategy: Strategy, key: str, cost: int
) -> None:
    """Also by commands that would pass it over, or write over it."""
    keys = named(key, 3)
    client.rpush(keys[1], "somebody's")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        check_many(client, strategy, keys, NOW, cost)
    assert client.lrange(keys[1], 0, -1) == [b"somebody's"]


def test_a_text_that_is_no_instant_is_refused_and_kept(client: redis.Redis, key: str) -> None:
    """A string of somebody else is not taken for a TAT, and nobody is charged."""
    keys = named(key, 3)
    client.set(keys[1], "somebody's")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE not the state of a gcra"):
        check_many(client, gcra(5, 1000), keys, NOW)
    assert client.get(keys[1]) == b"somebody's"
    assert not client.exists(keys[0], keys[2])


def test_states_are_encoded_as_by_a_check(client: redis.Redis, key: str) -> None:
    """Cold, warm and repeated: the bytes are those that one check after the other writes."""
    strategy = gcra(3, 1000, 7)
    many, single = named(f"{key}:many", 4), named(f"{key}:single", 4)
    for now, places in ((NOW, [0, 1, 0]), (NOW + 123, [0, 1, 2, 2, 3, 0]), (NOW - 50, [3, 2, 1])):
        together = check_many(client, strategy, [many[place] for place in places], now)
        assert together == [check(client, strategy, single[place], now) for place in places]
    assert client.mget(many) == client.mget(single)
