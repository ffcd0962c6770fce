"""Leases from a real server: its round trips, its clock, and its absence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import (
    Limiter,
    ManualClock,
    StoreUnavailableError,
    Strategy,
    fixed_window,
    gcra,
    token_bucket,
)
from penstock.leasing import two_tier
from penstock.stores.redis import RedisStore
from tests.servers import NotReady, RedisCluster, Valkey, eventually, require
from tests.support.helpers import Quota, run

DAY = 86_400_000
PATIENT_MS = 20_000


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    require("valkey")
    with Valkey() as running:
        yield running


@pytest.fixture
def store(server: Valkey) -> Iterator[RedisStore]:
    server.call("FLUSHALL")
    opened = RedisStore.from_url(server.url, timeout_ms=PATIENT_MS)
    yield opened
    opened.close()


def scripts_run(server: Valkey) -> int:
    """How many scripts the server has run, by its own count."""
    stats = str(server.call("INFO", "commandstats"))
    lines = [line for line in stats.splitlines() if line.startswith("cmdstat_eval")]
    return sum(int(line.partition("calls=")[2].partition(",")[0]) for line in lines)


# Each in one event loop, as a program would have it.
async def _sync(limiter: Limiter, times: int) -> list[bool]:
    return [limiter.check("key").allowed for _ in range(times)]


async def _async(limiter: Limiter, times: int) -> list[bool]:
    return [(await limiter.acheck("key")).allowed for _ in range(times)]


each_mode = pytest.mark.parametrize("spend", [_sync, _async], ids=["sync", "async"])


@each_mode
def test_a_batch_is_one_round_trip_by_the_servers_count(
    spend: Any, server: Valkey, store: RedisStore
) -> None:
    """1,000 requests at batch 100: 10 scripts; the rest of the window is taken as it is."""

    async def story() -> None:
        limiter = two_tier(fixed_window(1_050, DAY), store, batch=100)
        before = scripts_run(server)
        assert all(await spend(limiter, 1_000))
        # One more if the server did not know the script yet.
        assert scripts_run(server) - before in (10, 11)
        assert await spend(limiter, 60) == [True] * 50 + [False] * 10
        await limiter.aclose()
        await store.aclose()

    run(story())


@each_mode
@pytest.mark.parametrize(
    "strategy",
    [fixed_window(95, DAY), gcra(95, DAY), token_bucket(95, 1e-3), Quota(95, DAY)],
    ids=lambda strategy: strategy.name,
)
def test_nodes_on_one_server_share_a_limit_to_the_unit(
    strategy: Strategy, spend: Any, store: RedisStore
) -> None:
    """Strategies with a script and one without, coupled and not."""

    async def story() -> None:
        nodes = [two_tier(strategy, store, batch=20) for _ in range(3)]
        granted = [sum(await spend(node, 30)) for node in nodes]
        granted += [sum(await spend(node, 60)) for node in nodes]
        assert sum(granted) == 95
        await store.aclose()

    run(story())


@each_mode
def test_cached_deny_spares_the_server_the_flood(
    spend: Any, server: Valkey, store: RedisStore
) -> None:
    """5 allowed, one denial asked for, 994 answered here."""

    async def story() -> None:
        limiter = two_tier(fixed_window(5, DAY), store, "cached-deny")
        await spend(limiter, 6)
        before = scripts_run(server)
        assert await spend(limiter, 994) == [False] * 994
        assert scripts_run(server) == before
        await store.aclose()

    run(story())


def test_a_lease_after_a_window_belongs_to_the_next_one(store: RedisStore) -> None:
    """On the server's clock, in real time: no credit crosses, no window exceeds."""
    limiter = two_tier(fixed_window(50, 100), store, batch=20)
    counts: dict[int, int] = {}
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        decision = limiter.check("key")
        if decision.allowed:
            counts[decision.reset_at] = counts.get(decision.reset_at, 0) + 1
        else:
            time.sleep(0.001)
    assert len(counts) >= 5
    assert max(counts.values()) == 50


def test_a_crowd_of_tasks_costs_one_round_trip_per_batch(server: Valkey, store: RedisStore) -> None:
    """200 tasks that miss at once, on one key."""

    async def story() -> None:
        limiter = two_tier(fixed_window(10**6, DAY), store, batch=50)
        await limiter.acheck("warm")
        before = scripts_run(server)
        decisions = await asyncio.gather(*(limiter.acheck("key") for _ in range(200)))
        assert all(decisions)
        assert scripts_run(server) - before == 4
        await store.aclose()

    run(story())


def test_keys_with_credits_outlive_a_store_that_stops() -> None:
    """For 2 s the server answers nothing: credits are spent, others raise, and all recovers."""
    require("valkey")
    with Valkey() as server:
        store = RedisStore.from_url(server.url, timeout_ms=200)
        limiter = two_tier(fixed_window(10**6, DAY), store, batch=5_000, low_water=4_500)
        assert limiter.check("hot").allowed
        server.pause()
        stopped = time.monotonic()
        served, slowest = 0, 0.0
        while time.monotonic() < stopped + 1.6:
            began = time.monotonic()
            if served < 4_000:
                assert limiter.check("hot").allowed
                served += 1
            slowest = max(slowest, time.monotonic() - began)
            if served % 1_000 == 0:
                refused(lambda: limiter.check("cold"))
        run(_async_refused(limiter))
        time.sleep(max(0.0, stopped + 2.0 - time.monotonic()))
        server.resume()
        assert served == 4_000
        # No spend waited for the server, not even for the lease that was due ahead of need.
        assert slowest < 0.2
        recovers(limiter)
        limiter.close()
        store.close()


def refused(check: Callable[[], Any]) -> None:
    with pytest.raises(StoreUnavailableError):
        check()


async def _async_refused(limiter: Limiter) -> None:
    with pytest.raises(StoreUnavailableError):
        await limiter.acheck("cold")
    assert (await limiter.acheck("hot")).allowed


def recovers(limiter: Limiter) -> None:
    """Nothing is restarted: the next miss that the server answers is served."""

    def probe() -> None:
        try:
            assert limiter.check("cold").allowed
        except StoreUnavailableError as error:
            raise NotReady from error

    eventually(probe, within=20, what="a lease")


@each_mode
def test_a_server_that_forgot_the_script_is_told_again(
    spend: Any, server: Valkey, store: RedisStore
) -> None:
    """And the lease is charged once."""

    async def story() -> None:
        limiter = two_tier(fixed_window(1_000, DAY), store, batch=100)
        server.call("SCRIPT", "FLUSH")
        assert all(await spend(limiter, 150))
        assert (await limiter.aforecast("key")).spendable_now == 850
        server.call("SCRIPT", "FLUSH")
        assert sum(await spend(limiter, 1_000)) == 850
        await limiter.aclose()
        await store.aclose()

    run(story())


@each_mode
def test_a_cluster_leases_each_key_from_its_owner(spend: Any) -> None:
    """Redirected where need be, and what is left is taken there as well."""
    require("valkey")

    async def story(url: str) -> None:
        opened = RedisStore.from_url(url, timeout_ms=PATIENT_MS)
        for prefix in ("one", "two", "three", "four"):
            limiter = two_tier(fixed_window(25, DAY), opened, batch=10, prefix=prefix)
            assert await spend(limiter, 30) == [True] * 25 + [False] * 5
        await opened.aclose()

    with RedisCluster() as cluster:
        run(story(cluster.url.replace("redis://", "redis+cluster://")))


def test_by_the_callers_clock_a_window_ends_when_that_says_so(server: Valkey) -> None:
    """Both tiers go by it."""
    server.call("FLUSHALL")
    clock = ManualClock(1_700_000_000_000 // DAY * DAY)
    opened = RedisStore.from_url(server.url, use_server_time=False, timeout_ms=PATIENT_MS)
    limiter = two_tier(fixed_window(100, 1_000), opened, batch=10, clock=clock)
    limiter.check("key")
    clock.advance(999)
    assert limiter.check("key").remaining == 8
    clock.advance(1)
    assert limiter.check("key").remaining == 9
    opened.close()
