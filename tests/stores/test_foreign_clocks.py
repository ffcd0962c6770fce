"""Callers whose clocks differ: what they admit together, who waits, and how it is told."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    Limiter,
    ManualClock,
    Store,
    Strategy,
    fixed_window,
    gcra,
    sliding_window,
    sliding_window_log,
    token_bucket,
)
from penstock.budget import token_budget
from penstock.config import parse_policies
from penstock.core._clock import FOREIGN_CLOCKS, TOLERATED_MS, ForeignClocks
from penstock.core._transform import checking, leasing
from penstock.service import build_service
from penstock.service.http._pages import exposition
from penstock.stores.redis import RedisStore
from penstock.stores.sqlite import SqliteStore
from tests.stores.redis.live import PATIENT_MS, new_key, url_of
from tests.support.helpers import NOW, Quota, Reference

HOUR = 3_600_000
MINUTE = 60_000
LIMIT = 20

STRATEGIES: dict[str, Strategy] = {
    "gcra": gcra(LIMIT, MINUTE),
    "token_bucket": token_bucket(LIMIT, LIMIT / 60),
    "fixed_window": fixed_window(LIMIT, MINUTE),
    "fixed_window_first": fixed_window(LIMIT, MINUTE, "first"),
    "sliding_window": sliding_window(LIMIT, MINUTE),
    "sliding_window_log": sliding_window_log(LIMIT, MINUTE),
}
each_strategy = pytest.mark.parametrize("kind", STRATEGIES)


@pytest.fixture(params=["valkey", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened: Store = (
        SqliteStore(tmp_path / "limits.db", timeout_ms=PATIENT_MS)
        if request.param == "sqlite"
        else RedisStore.from_url(url_of("valkey"), use_server_time=False, timeout_ms=PATIENT_MS)
    )
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def talkative(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not warned yet."""
    monkeypatch.setattr(FOREIGN_CLOCKS, "_quiet_until", 0)


class Fleet:
    """Nodes that share a store, each with a clock that is ahead by so much."""

    def __init__(self, store: Store, strategy: Strategy, *ahead_ms: int) -> None:
        self.clocks = [ManualClock(NOW + ms) for ms in ahead_ms]
        lead = new_key()
        self.nodes = [Limiter(strategy, store, clock=clock, prefix=lead) for clock in self.clocks]

    def advance(self, ms: int) -> None:
        for clock in self.clocks:
            clock.advance(ms)


def admitted(limiter: Limiter, requests: int = 2 * LIMIT) -> int:
    return sum(limiter.check("k").allowed for _ in range(requests))


@each_strategy
def test_a_node_an_hour_ahead_gets_one_more_limit_and_the_others_wait_for_it(
    store: Store, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Once: what can be promised, no less and no more."""
    fleet = Fleet(store, STRATEGIES[kind], 0, HOUR)
    honest, ahead = fleet.nodes
    assert [admitted(honest), admitted(ahead)] == [LIMIT, LIMIT]
    met = FOREIGN_CLOCKS.met
    with caplog.at_level(logging.WARNING, "penstock.clocks"):
        assert admitted(honest, 5) == 0
    # The node that is ahead has nothing to notice.
    assert not ahead.check("k").allowed
    assert FOREIGN_CLOCKS.met == met + 5
    (line,) = caplog.messages
    assert "s longer than its limit explains" in line
    assert "charged by a clock that is ahead" in line
    assert "use_server_time" in line
    denied = honest.check("k")
    if kind != "sliding_window":
        assert HOUR < denied.retry_after_ms <= HOUR + MINUTE
    fleet.advance(30 * MINUTE)
    assert not honest.check("k").allowed
    fleet.advance(30 * MINUTE + 2 * MINUTE)
    assert honest.check("k").allowed


def test_while_the_node_ahead_takes_everything_those_behind_get_nothing(store: Store) -> None:
    """They meet its instants each time, a little further on."""
    fleet = Fleet(store, gcra(LIMIT, MINUTE, 1), 0, 10_000)
    honest, ahead = fleet.nodes
    taken = [0, 0]
    for _ in range(30):
        fleet.advance(3_000)
        taken[1] += ahead.check("k").allowed
        taken[0] += honest.check("k").allowed
    assert taken == [0, 30]


def test_it_is_noticed_in_batches_and_leases_too(store: Store) -> None:
    """Whoever is denied for the sake of a foreign instant counts."""
    strategy = fixed_window(LIMIT, MINUTE)
    fleet = Fleet(store, strategy, 0, HOUR)
    honest, ahead = fleet.nodes
    ahead.check_many(["a", "b", "c"], LIMIT)
    met = FOREIGN_CLOCKS.met
    assert not any(honest.check_many(["a", "b", "c", "d", "d"], LIMIT)[:3])
    assert FOREIGN_CLOCKS.met == met + 3
    grant = store.apply(f"{honest.prefix}:a", leasing(strategy, 1), NOW, 5)
    assert grant.capacity == 0
    assert FOREIGN_CLOCKS.met > met + 3
    met = FOREIGN_CLOCKS.met
    honest.peek("a")
    honest.forecast("a")
    assert FOREIGN_CLOCKS.met == met


def test_a_little_is_no_matter(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """A caller may come to the store later than it read its clock; so may all by NTP."""
    fleet = Fleet(store, gcra(LIMIT, MINUTE), 0, TOLERATED_MS)
    met = FOREIGN_CLOCKS.met
    assert admitted(fleet.nodes[1]) == LIMIT
    assert admitted(fleet.nodes[0]) == 0
    assert FOREIGN_CLOCKS.met == met
    assert not caplog.messages


def test_a_server_whose_clock_decides_may_be_behind_too() -> None:
    """As the new master after a failover: its instants are told by the same sign."""
    strategy = fixed_window(LIMIT, MINUTE)
    key = new_key()
    by_caller = RedisStore.from_url(url_of("valkey"), use_server_time=False, timeout_ms=PATIENT_MS)
    by_server = RedisStore.from_url(url_of("valkey"), timeout_ms=PATIENT_MS)
    future = Limiter(strategy, by_caller, clock=ManualClock(2**45))
    assert future.check(key, LIMIT).allowed
    met = FOREIGN_CLOCKS.met
    assert not Limiter(strategy, by_server).check(key).allowed
    assert FOREIGN_CLOCKS.met == met + 1
    by_caller.close()
    by_server.close()


def test_a_strategy_of_the_users_is_left_alone(store: Store) -> None:
    """Nobody knows how long it may make a request wait."""
    limiter = Limiter(Quota(1), store, clock=ManualClock(NOW), prefix=new_key())
    met = FOREIGN_CLOCKS.met
    assert [limiter.check("k").allowed for _ in range(3)] == [True, False, False]
    assert FOREIGN_CLOCKS.met == met


def test_warnings_are_a_minute_apart(caplog: pytest.LogCaptureFixture) -> None:
    """However many are denied; the count goes on, and no key is named."""
    clock = ManualClock(NOW)
    clocks = ForeignClocks(clock)
    strategy = fixed_window(1, 1_000)
    state = strategy.check(None, NOW + HOUR, 1).state
    for _ in range(130):
        clocks.look_at(strategy.check(state, NOW, 1).result, checking(strategy), 1)
        clock.advance(1_000)
    assert clocks.met == 130
    assert len(caplog.messages) == 3


def test_a_service_shows_it_in_its_metrics(tmp_path: Path) -> None:
    """A node of a fleet on a store that goes by its callers' clocks."""
    url = f"sqlite:///{tmp_path}/limits.db"
    file = parse_policies("version: 1\nlimiters: {api: {strategy: gcra, limit: 2, period: 1m}}")

    async def ask(ahead_ms: int) -> tuple[list[bool], str]:
        service = build_service(file, store=SqliteStore.from_url(url), clock=at(ahead_ms))
        allowed = [(await service.check("api", "k")).allowed for _ in range(3)]
        text = exposition(service.snapshot(), {}, {})
        await service.aclose()
        return allowed, text

    def at(ahead_ms: int) -> ManualClock:
        return ManualClock(NOW + ahead_ms)

    met = FOREIGN_CLOCKS.met
    assert asyncio.run(ask(HOUR))[0] == [True, True, False]
    allowed, text = asyncio.run(ask(0))
    assert allowed == [False, False, False]
    assert f"penstock_foreign_clocks_total {met + 3}\n" in text


MOST: dict[str, Callable[[int], float]] = {
    "gcra": lambda ms: LIMIT + ms / (MINUTE / LIMIT),
    "token_bucket": lambda ms: LIMIT + ms * LIMIT / MINUTE,
    "fixed_window": lambda ms: LIMIT * (ms // MINUTE + 2),
    "fixed_window_first": lambda ms: LIMIT * (ms // MINUTE + 2),
    "sliding_window": lambda ms: LIMIT * (ms // MINUTE + 2),
    "sliding_window_log": lambda ms: LIMIT * (ms // MINUTE + 1),
}


@each_strategy
def test_clocks_that_differ_admit_what_one_clock_would_in_that_much_more_time(kind: str) -> None:
    """In any s milliseconds no more than one clock in s + D, for fleets of all sizes."""
    rng = random.Random(kind)
    strategy = STRATEGIES[kind]
    tight = 0
    for _ in range(150):
        apart = rng.choice((0, 50, 5_000, MINUTE, 3 * MINUTE, HOUR))
        nodes = [0, apart, *(rng.randint(0, apart) for _ in range(rng.choice((0, 0, 3, 30))))]
        key, now, seen = Reference(strategy), NOW, []
        for _ in range(rng.choice((50, 300))):
            now += rng.choice((0, 0, 0, 1, 300, 3_000, rng.randint(0, 2 * MINUTE)))
            cost = rng.choice((1, 1, 5, LIMIT))
            if key.check(now + rng.choice(nodes), cost):
                seen.append((now, cost))
        for first in range(len(seen)):
            total = 0
            for at, cost in seen[first:]:
                total += cost
                assert total <= MOST[kind](at - seen[first][0] + apart)
                tight += total > MOST[kind](at - seen[first][0])
    # Without D the bound does not hold, so it is D that makes it hold.
    assert tight


@pytest.mark.parametrize("kind", [*STRATEGIES, "token_budget"])
def test_one_clock_alone_never_looks_foreign(kind: str) -> None:
    """No request is told to wait for longer than its strategy says it can be."""
    rng = random.Random(kind)
    for _ in range(400):
        strategy = draw(kind, rng)
        key, now = Reference(strategy), NOW + rng.randrange(10**9)
        for _ in range(30):
            now += rng.choice((0, 0, 1, rng.randint(0, 2 * strategy.ttl_ms)))
            cost = rng.choice((1, strategy.limit, rng.randint(1, 2 * strategy.limit)))
            longest_ms: Any = strategy.longest_wait_ms(cost)
            assert key.check(now, cost).retry_after_ms <= longest_ms, (strategy, now, cost)


def draw(kind: str, rng: random.Random) -> Strategy:
    limit, window_ms = rng.randint(1, 1_000), rng.choice((1_000, 60_000, rng.randint(500, 10**7)))
    makers: dict[str, Callable[[], Strategy]] = {
        "gcra": lambda: gcra(limit, window_ms, rng.choice((None, 1, rng.randint(1, 2_000)))),
        "token_bucket": lambda: token_bucket(
            limit, rng.choice((0.1, 1 / 3, rng.uniform(0.01, 900)))
        ),
        "fixed_window": lambda: fixed_window(limit, window_ms),
        "fixed_window_first": lambda: fixed_window(limit, window_ms, "first"),
        "sliding_window": lambda: sliding_window(limit, window_ms, rng.randint(1, 100)),
        "sliding_window_log": lambda: sliding_window_log(limit, window_ms),
        "token_budget": lambda: token_budget(limit, window_ms),
    }
    return makers[kind]()
