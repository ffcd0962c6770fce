"""What is under a key may be somebody else's: it is refused and kept, never taken for a new key."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    Limiter,
    ManualClock,
    Strategy,
    calendar_quota,
    fixed_window,
    gcra,
    rate_limit,
    sliding_window,
    sliding_window_log,
    token_bucket,
)
from penstock.budget import token_budget
from penstock.core._transform import checking
from penstock.stores.record import pack, restore
from penstock.stores.redis import RedisStore
from penstock.stores.sqlite import SqliteStore
from tests.stores.redis.live import PATIENT_MS, new_key, running
from tests.support.helpers import NOW, sharing

STRATEGIES: dict[str, Strategy] = {
    "gcra": gcra(5, 60_000),
    "token_bucket": token_bucket(5, 1),
    "fixed_window": fixed_window(5, 60_000),
    "fixed_window_first": fixed_window(5, 60_000, "first"),
    "calendar_quota": calendar_quota(5, "hour"),
    "sliding_window": sliding_window(5, 60_000),
    "sliding_window_log": sliding_window_log(5, 60_000),
    "token_budget": token_budget(5, 60_000),
}
LIMIT = 5

# Texts that a number of a state never is, and that some parsers take for one.
NO_NUMBERS = [
    "",
    "nonsense",
    "nan",
    "-nan",
    "inf",
    "-inf",
    "1e400",
    "0x10",
    " 7",
    "7 ",
    "-7",
    "1,5",
]
NO_WHOLES = [*NO_NUMBERS, "1.5", "1e3", "9" * 30]

Set = Callable[[Any, str], object]


def hashed(**fields: str) -> Set:
    return lambda client, key: client.call(
        "HSET", key, *(w for pair in fields.items() for w in pair)
    )


def text(value: str) -> Set:
    return lambda client, key: client.call("SET", key, value)


def scored(*scores: str) -> Set:
    members = [word for number, score in enumerate(scores) for word in (score, f"m{number}")]
    return lambda client, key: client.call("ZADD", key, *members)


OTHER_TYPES: list[Set] = [
    lambda client, key: client.call("RPUSH", key, "somebody's"),
    lambda client, key: client.call("SADD", key, "somebody's"),
    lambda client, key: client.call("XADD", key, "*", "field", "somebody's"),
]
STRANGE_HASHES: list[Set] = [
    hashed(name="alice"),
    hashed(t="5"),
    hashed(s="5"),
    hashed(l="5", c="1"),
]

STARTED = str(NOW // 60_000 * 60_000)
ENDED = str(NOW // 60_000 * 60_000 + 3_600_000)
FOREIGN: dict[str, list[Set]] = {
    "gcra": [*map(text, NO_NUMBERS), text("9" * 30), hashed(t="1", l="1"), scored("1")],
    "token_bucket": [
        *STRANGE_HASHES,
        # Below zero is a debt, which may be a state.
        *(hashed(t=value, l=str(NOW)) for value in NO_NUMBERS if not value.startswith("-")),
        hashed(t="-" + "9" * 30, l=str(NOW)),
        hashed(t="--5", l=str(NOW)),
        *(hashed(t="3", l=value) for value in NO_WHOLES),
        hashed(s=STARTED, c="1"),
        text("5"),
        scored("1"),
    ],
    "fixed_window": [
        *STRANGE_HASHES,
        *(hashed(s=value, c="1") for value in NO_WHOLES),
        *(hashed(s=STARTED, c=value) for value in NO_WHOLES),
        hashed(t="1", l=str(NOW)),
        text("5"),
        scored("1"),
    ],
    "calendar_quota": [
        *STRANGE_HASHES,
        *(hashed(s=value, e=ENDED, c="1") for value in NO_WHOLES),
        *(hashed(s=STARTED, e=value, c="1") for value in NO_WHOLES),
        *(hashed(s=STARTED, e=ENDED, c=value) for value in NO_WHOLES),
        hashed(s=STARTED, c="1"),
        hashed(s=ENDED, e=STARTED, c="1"),
        text("5"),
        scored("1"),
    ],
    "sliding_window": [
        *(
            hashed(**{"1": value})
            for value in (*NO_WHOLES, "7", "7:", ":7", "7:7:7", "7:-1", "7:1.5")
        ),
        hashed(opens="12:30"),
        hashed(**{"1": f"{'9' * 15}:1"}),
        hashed(**{"1": f"1:{'9' * 30}"}),
        hashed(s=STARTED, c="1"),
        text("5"),
        scored("1"),
    ],
    "sliding_window_log": [
        scored("1.5"),
        scored("-1"),
        scored("-inf"),
        scored("inf"),
        scored("1e15"),
        scored(str(NOW), str(NOW + 0.5)),
        scored("1", "+inf"),
        hashed(t="1", l="1"),
        text("5"),
    ],
}
FOREIGN["fixed_window_first"] = FOREIGN["token_budget"] = FOREIGN["fixed_window"]
CASES = [(kind, put) for kind, puts in FOREIGN.items() for put in (*puts, *OTHER_TYPES)]


@pytest.fixture(params=["valkey", "redis8"])
def server(request: pytest.FixtureRequest) -> Any:
    return running(request.param)


def test_a_redis_key_that_holds_anything_else_is_refused_and_kept(server: Any) -> None:
    """By a check, by one of many, by a look and by a forecast, whatever is in it."""
    store = RedisStore.from_url(server.url, use_server_time=False, timeout_ms=PATIENT_MS)
    for kind, put in CASES:
        key = new_key()
        put(server, key)
        before = server.call("DUMP", key)
        limiter = sharing(Limiter(STRATEGIES[kind], store, clock=ManualClock(NOW)))
        for ask in asks(limiter, key):
            assert taken(ask) is None, (kind, before)
        assert server.call("DUMP", key) == before
        limiter.reset(key)
        assert limiter.check(key).remaining == LIMIT - 1
    store.close()


def asks(limiter: Limiter, key: str) -> list[Callable[[], Any]]:
    other = new_key()
    return [
        lambda: limiter.check(key),
        lambda: limiter.check(key, LIMIT + 1),
        lambda: limiter.check_many([other, key]),
        lambda: limiter.check_many([key, key]),
        lambda: limiter.peek(key),
        lambda: limiter.forecast(key),
    ]


def taken(ask: Callable[[], Any]) -> Any:
    """The answer, if what was found was taken for a state; None if it was refused as another's."""
    try:
        return ask()
    except ConfigInvalidError as error:
        return None if "holds the state of something else" in str(error) else error


def test_a_refusal_says_what_is_wrong_in_words(server: Any) -> None:
    """Not where in a script it was noticed."""
    store = RedisStore.from_url(server.url, timeout_ms=PATIENT_MS)
    key = new_key()
    server.call("HSET", key, "name", "alice")
    with pytest.raises(ConfigInvalidError) as caught:
        rate_limit(token_bucket(5, 1), store=store).check(key)
    assert "(WRONGTYPE not the state of a tokenBucket):" in str(caught.value)
    assert "user_script" not in str(caught.value)
    store.close()


@pytest.mark.parametrize("kind", STRATEGIES)
def test_states_of_our_own_are_never_refused(server: Any, kind: str) -> None:
    """Those that are written by the strategy itself, at both ends of time."""
    store = RedisStore.from_url(server.url, use_server_time=False, timeout_ms=PATIENT_MS)
    strategy = STRATEGIES[kind]
    for start in (1, NOW, 2**46 - 200_000):
        clock = ManualClock(start)
        limiter = Limiter(strategy, store, clock=clock, prefix=new_key())
        for wait_ms in (0, 0, 1, 333, 0, 11_999, 60_000, 120_000):
            clock.set(min(clock.now() + wait_ms, 2**46))
            peeked = limiter.peek("k")
            assert limiter.check("k").allowed == peeked.allowed
    store.close()


RUNS = ([], [[1]], [[1, 2, 3]], [["1", 2]], [[2, 1], [1, 1]], [[1, -1]], [[1, 1.5]], [[-1, 1]], {})
NOT_A_PAIR = (1, "12", [1], [1, 2, 3], {"t": 1}, [[1], 2], True)
NO_STATE: dict[str, tuple[Any, ...]] = {
    "gcra": ("5", [], {}, True, -1, 2**47 + 1, 10**400, [1.5]),
    "token_bucket": (*NOT_A_PAIR, ["1", 1], [1, "1"], [1, 1.5], [-(2**60), 1], [1, -1], [2**60, 1]),
    "fixed_window": (*NOT_A_PAIR, ["1", 1], [1, "1"], [1.5, 1], [1, 1.5], [-1, 1], [1, -1]),
    "calendar_quota": (
        *(1, "123", [1], [1, 2], [1, 2, 3, 4], {"s": 1}, True),
        *(["1", 2, 3], [1, "2", 3], [1, 2, "3"], [1.5, 2, 3], [-1, 2, 3], [1, 2, -1]),
        *([2, 2, 3], [3, 2, 1], [1, 2**48, 1], [1, 2, 2**60]),
    ),
    "sliding_window": (*RUNS, 5, "5", [[10**15, 1]], [[1, 2**60]]),
    "sliding_window_log": (*RUNS, 5, "5", [[2**48, 1]], [[1, 2**60]]),
}
NO_STATE["fixed_window_first"] = NO_STATE["token_budget"] = NO_STATE["fixed_window"]


@pytest.mark.parametrize("kind", STRATEGIES)
def test_a_record_whose_state_cannot_be_one_is_refused(kind: str, tmp_path: Path) -> None:
    """In every store that keeps records: the envelope is ours and what is in it is not."""
    strategy = STRATEGIES[kind]
    store = SqliteStore(tmp_path / "limits.db", timeout_ms=PATIENT_MS)
    limiter = Limiter(strategy, store, clock=ManualClock(NOW))
    for number, state in enumerate(NO_STATE[kind]):
        key = f"key-{number}"
        plant(store, key, pack(strategy.name, state, NOW + 1))
        for ask in asks(limiter, key):
            assert taken(ask) is None, state
        limiter.reset(key)
        assert limiter.check(key).allowed
    store.close()


def plant(store: SqliteStore, key: str, record: str) -> None:
    store.init()
    with sqlite3.connect(store.path) as connection:
        connection.execute("REPLACE INTO penstock VALUES (?, ?, ?)", (key, record, NOW * 2))
    connection.close()


@pytest.mark.parametrize("kind", STRATEGIES)
def test_a_state_that_was_kept_comes_back_as_it_was(kind: str) -> None:
    """Whatever a strategy writes, it takes for its own."""
    transform = checking(STRATEGIES[kind])
    state = None
    for step in range(40):
        outcome = transform.run(state, NOW + step * 7_001, 1)
        if outcome.persist:
            state = outcome.state
            record = pack(transform.kind, state, 2**50)
            assert restore(record, "k", transform, NOW) == state
