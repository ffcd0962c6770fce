"""What the scripts promise beside their decisions: clocks, expiry, encodings, sizes."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from penstock import fixed_window, gcra, sliding_window, sliding_window_log, token_bucket
from penstock.core._lua import MARGIN_MS, MAX_MARGIN_MS
from penstock.core._strategy import Strategy
from penstock.core._validation import MAX_INSTANT_MS, MAX_SAFE, MAX_SPAN_MS
from tests.wire.live import accelerator, check, fields, read, run

NOW = 1_700_000_000_000
HOUR = 3_600_000
# PTTL is read a moment after it was set.
LAG = 2_000


def _all(limit: int, window_ms: int) -> list[Strategy]:
    return [
        gcra(limit, window_ms),
        token_bucket(limit, limit * 1000 / window_ms),
        fixed_window(limit, window_ms),
        fixed_window(limit, window_ms, "first"),
        sliding_window(limit, window_ms),
        sliding_window(limit, window_ms, 1),
        sliding_window_log(limit, window_ms),
    ]


def each(limit: int, window_ms: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("strategy", _all(limit, window_ms), ids=repr)


def _server_ms(client: redis.Redis) -> int:
    seconds, micros = client.time()
    return int(seconds) * 1000 + int(micros) // 1000


@each(5, 1000)
def test_a_now_of_zero_asks_the_server(client: redis.Redis, strategy: Strategy, key: str) -> None:
    """One clock for a fleet: the decision is as of an instant between two readings of TIME."""
    before = _server_ms(client)
    reply = check(client, strategy, key, 0, 2)
    after = _server_ms(client)
    possible = [fields(strategy.check(None, now, 2).result) for now in range(before, after + 1)]
    assert reply in possible


@each(5, 1)
def test_a_ttl_of_a_millisecond_leaves_a_minute(
    client: redis.Redis, strategy: Strategy, key: str
) -> None:
    """However slow the next caller is, the key is still there."""
    assert check(client, strategy, key, _server_ms(client), 1)[0]
    assert client.pttl(key) > MARGIN_MS - LAG


@each(5, 600_000)
def test_a_key_outlives_its_ttl_twice(client: redis.Redis, strategy: Strategy, key: str) -> None:
    """Callers may be slow by as much as the ttl itself."""
    now = _server_ms(client)
    outcome = strategy.check(None, now, 5)
    check(client, strategy, key, now, 5)
    assert client.pttl(key) > 2 * outcome.ttl_ms - LAG


@each(5, 30 * 24 * HOUR)
def test_a_key_outlives_a_long_ttl_by_a_day_and_no_more(
    client: redis.Redis, strategy: Strategy, key: str
) -> None:
    """Whoever leaves a key for a month does not leave it for two, by whichever clock."""
    for now in (0, _server_ms(client)):
        client.delete(key)
        ttl_ms = strategy.check(None, _server_ms(client), 5).ttl_ms
        assert check(client, strategy, key, now, 5)[0]
        # Near its end, a window of the calendar has less than a day to go.
        margin = min(max(ttl_ms, MARGIN_MS), MAX_MARGIN_MS)
        assert ttl_ms + margin - LAG < client.pttl(key) <= ttl_ms + margin + LAG


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (gcra(5, 1_000), gcra(5, 3_600_000)),
        (token_bucket(5, 5), token_bucket(5, 0.001)),
        (fixed_window(5, 1_000, "first"), fixed_window(5, 3_600_000, "first")),
        (fixed_window(5, 1_000), fixed_window(5, 3_600_000)),
        (sliding_window(5, 1_000, 1), sliding_window(5, 3_600_000, 3_600)),
        (sliding_window_log(5, 1_000), sliding_window_log(5, 3_600_000)),
    ],
    ids=lambda strategy: f"{strategy.name}-{strategy.ttl_ms}",
)
def test_a_limit_that_was_made_longer_is_remembered_as_long(
    client: redis.Redis, key: str, before: Strategy, after: Strategy
) -> None:
    """A policy was changed and the key goes on: what it needs now counts, not what it was given."""
    check(client, before, key, 0, 1)
    reply = check(client, after, key, 0, 1)
    assert reply[0] == 1
    assert client.pttl(key) > reply[3] - _server_ms(client) + MARGIN_MS - LAG


@pytest.mark.parametrize("behind_ms", [5_000, HOUR, NOW // 2])
@each(5, 1000)
def test_a_caller_behind_the_server_keeps_its_margin(
    client: redis.Redis, strategy: Strategy, key: str, behind_ms: int
) -> None:
    """Where the caller's clock stands does not shorten what it needs."""
    now = _server_ms(client) - behind_ms
    outcome = strategy.check(None, now, 5)
    check(client, strategy, key, now, 5)
    assert client.pttl(key) > outcome.ttl_ms + MARGIN_MS - LAG


@each(5, 1000)
def test_a_caller_ahead_of_the_server_is_remembered_until_then(
    client: redis.Redis, strategy: Strategy, key: str
) -> None:
    """A clock an hour fast writes a state that matters to the others for that hour."""
    now = _server_ms(client) + HOUR
    outcome = strategy.check(None, now, 5)
    check(client, strategy, key, now, 5)
    assert client.pttl(key) > HOUR + outcome.ttl_ms + MARGIN_MS - LAG


@each(5, 1000)
def test_a_jump_back_does_not_shorten_the_memory(
    client: redis.Redis, strategy: Strategy, key: str
) -> None:
    """A write after the jump keeps the key until the stored instant is over, and the margin."""
    now = _server_ms(client)
    first = strategy.check(None, now, 1)
    check(client, strategy, key, now, 1)
    back = now - 10 * HOUR
    outcome = strategy.check(first.state, back, 1)
    reply = check(client, strategy, key, back, 1)
    assert reply == fields(outcome.result)
    if outcome.persist:
        assert client.pttl(key) > 10 * HOUR + MARGIN_MS - LAG


@each(1, MAX_SPAN_MS)
def test_the_longest_ttl_does_not_overflow(
    client: redis.Redis, strategy: Strategy, key: str
) -> None:
    """From the latest instant to the first, with the longest window there is."""
    assert check(client, strategy, key, MAX_INSTANT_MS)[0] == 1
    assert client.pttl(key) > 0
    late = strategy.check(None, MAX_INSTANT_MS, 1)
    assert check(client, strategy, key, 1) == fields(strategy.check(late.state, 1, 1).result)
    client.delete(key)
    assert check(client, strategy, key, 1)[0] == 1
    assert client.pttl(key) > MAX_SPAN_MS + MAX_MARGIN_MS - LAG


@each(3, 1000)
def test_a_denial_writes_nothing(client: redis.Redis, strategy: Strategy, key: str) -> None:
    """A check that denies runs even where writing is forbidden, and no byte changes."""
    check(client, strategy, key, NOW, 3)
    before = client.dump(key)
    client.pexpire(key, 5 * HOUR)
    lua = accelerator(strategy)
    reply = client.eval_ro(lua.check.source, 1, key, *lua.argv(NOW + 1, 1))
    assert reply[0] == 0
    cold = client.eval_ro(lua.check.source, 1, f"{key}:cold", *lua.argv(NOW, 4))
    assert cold[0] == 0
    assert client.dump(key) == before
    assert client.pttl(key) > 5 * HOUR - LAG
    assert not client.exists(f"{key}:cold")


@each(3, 1000)
def test_a_read_writes_nothing_and_sees_the_state(
    client: redis.Redis, strategy: Strategy, key: str
) -> None:
    """Reads run where writing is forbidden, on keys that are there and on keys that are not."""
    script = accelerator(strategy).read
    assert strategy.read_state(client.eval_ro(script.source, 1, key)) is None
    assert not client.exists(key)
    check(client, strategy, key, NOW, 2)
    before = client.dump(key)
    state = strategy.read_state(client.eval_ro(script.source, 1, key))
    assert state == strategy.check(None, NOW, 2).state
    assert client.dump(key) == before


def test_states_are_encoded_as_the_contract_says(client: redis.Redis, key: str) -> None:
    """Other clients read these bytes."""
    check(client, gcra(3, 1000), f"{key}:gcra", NOW, 1)
    assert client.get(f"{key}:gcra") == b"1700000000333.333"
    check(client, gcra(3000, 1000), f"{key}:grid", NOW, 1)
    assert client.get(f"{key}:grid") == b"1700000000000.333"
    check(client, gcra(7, 1000), f"{key}:digits", NOW, 1)
    assert client.get(f"{key}:digits") == b"1700000000142.8569"
    bucket = token_bucket(3, 0.7)
    check(client, bucket, f"{key}:bucket", NOW, 3)
    check(client, bucket, f"{key}:bucket", NOW + 1999, 1)
    expected = b"%.17g" % (0 + 1999 * (0.7 / 1000) - 1)
    assert client.hgetall(f"{key}:bucket") == {b"t": expected, b"l": b"1700000001999"}
    for anchor, start in (("epoch", b"1699999980000"), ("first", b"1700000000000")):
        check(client, fixed_window(10, 60_000, anchor), f"{key}:{anchor}", NOW, 4)
        assert client.hgetall(f"{key}:{anchor}") == {b"s": start, b"c": b"4"}
    ring = sliding_window(10, 1000, 4)
    check(client, ring, f"{key}:ring", NOW, 2)
    check(client, ring, f"{key}:ring", NOW + 260, 3)
    assert client.hgetall(f"{key}:ring") == {b"0": b"6800000000:2", b"1": b"6800000001:3"}
    log = sliding_window_log(10, 1000)
    check(client, log, f"{key}:log", NOW, 2)
    check(client, log, f"{key}:log", NOW - 5, 1)
    members: Any = client.zrange(f"{key}:log", 0, -1, withscores=True)
    assert [score for _, score in members] == [NOW] * 3
    assert len({member for member, _ in members}) == 3


def test_counts_beyond_14_digits_keep_them_all(client: redis.Redis, key: str) -> None:
    """Where plain concatenation in Lua would write 9.007199254741e+15."""
    for strategy in (fixed_window(MAX_SAFE, 1000), sliding_window(MAX_SAFE, 1000)):
        name = f"{key}:{strategy.name}"
        assert check(client, strategy, name, NOW, MAX_SAFE - 2)[:3] == (1, MAX_SAFE, 2)
        assert check(client, strategy, name, NOW, 1)[:3] == (1, MAX_SAFE, 1)
        assert read(client, strategy, name)[-1] in (MAX_SAFE - 1, (17_000_000_000, MAX_SAFE - 1))


def test_the_largest_limit_of_a_log_fits_into_one_request(client: redis.Redis, key: str) -> None:
    """All units spent by one request, then found by rank and cleared by score."""
    log = sliding_window_log(5_000, 1000)
    assert check(client, log, key, NOW, 5_000) == (1, 5_000, 0, NOW + 1000, 0)
    assert client.zcard(key) == 5_000
    assert check(client, log, key, NOW + 1, 2_500) == (0, 5_000, 0, NOW + 1000, 999)
    assert check(client, log, key, NOW + 1000, 1) == (1, 5_000, 4_999, NOW + 2000, 0)
    assert client.zcard(key) == 1


def test_a_ring_of_100_001_fields_is_read_whole(client: redis.Redis, key: str) -> None:
    """The finest ring, every field of it filled, decides like the oracle."""
    ring = sliding_window(1_000_000, 100_000, 100_000)
    ticks = range(NOW - 100_000, NOW + 1)
    client.hset(key, mapping={tick % 100_001: f"{tick}:3" for tick in ticks})
    state = tuple((tick, 3) for tick in ticks)
    assert read(client, ring, key) == state
    for now, cost in ((NOW, 700_000), (NOW, 699_997), (NOW + 1, 3), (NOW + 1, 4)):
        outcome = ring.check(state, now, cost)
        assert check(client, ring, key, now, cost) == fields(outcome.result)
        state = outcome.state


def test_a_ring_of_more_buckets_than_units_keeps_only_ticks_that_count(
    client: redis.Redis, key: str
) -> None:
    """100,000 buckets and a limit of 3: ticks that have left the window are removed."""
    ring = sliding_window(3, 100_000, 100_000)
    state = None
    for now in range(NOW, NOW + 2_000_000, 40_000):
        outcome = ring.check(state, now, 1)
        assert check(client, ring, key, now, 1) == fields(outcome.result)
        state = outcome.state if outcome.persist else state
        assert client.hlen(key) <= 4


def test_members_of_another_client_do_not_stand_in_for_ours(client: redis.Redis, key: str) -> None:
    """Names that are taken are passed over: every admitted unit is counted."""
    log = sliding_window_log(20, 1000)
    taken = {f"u{NOW}.{n}": NOW for n in (1, 2, 5)} | {f"u{NOW}.3": NOW - 10}
    client.zadd(key, taken)
    assert check(client, log, key, NOW, 6)[:3] == (1, 20, 10)
    assert client.zcard(key) == 10
    assert read(client, log, key) == ((NOW - 10, 1), (NOW, 9))


def test_a_stamp_that_comes_back_is_counted_afresh(client: redis.Redis, key: str) -> None:
    """A clock that returns to an instant whose units are gone adds as many as it says."""
    log = sliding_window_log(4, 100)
    for now in (NOW, NOW + 100, NOW, NOW + 250, NOW + 100):
        check(client, log, key, now, 2)
    state = None
    for now in (NOW, NOW + 100, NOW, NOW + 250, NOW + 100):
        outcome = log.check(state, now, 2)
        state = outcome.state
    assert read(client, log, key) == state


def test_a_key_of_another_kind_is_refused(client: redis.Redis, key: str) -> None:
    """Two strategies on one key are a mistake, and said to be one."""
    check(client, gcra(5, 1000), key, NOW)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        run(
            client,
            accelerator(token_bucket(5, 5)).check,
            key,
            *accelerator(token_bucket(5, 5)).argv(NOW, 1),
        )
