"""MemoryStore with `max_bytes`: what counts as full."""

from __future__ import annotations

import gc
import random
import tracemalloc
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    Decision,
    ManualClock,
    MemoryStore,
    Outcome,
    Strategy,
    fixed_window,
    gcra,
    sliding_window,
    sliding_window_log,
)
from penstock.stores import open_store
from tests.support.helpers import NOW, Quota, both_paths, make_limiter, make_store

from .floods import fill_up, flood

# What is full.


@both_paths
def test_a_long_key_costs_no_more_than_a_short_one(path: str) -> None:
    """One emoji makes Python hold four bytes a character, in a key that a caller chooses."""
    limiter = make_limiter(path, gcra(10, 60_000), ManualClock(NOW), make_store(path))
    limiter.check("\U0001f600" + "x" * 4_092)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(2_000):
            limiter.check(f"\U0001f600{number:04092d}")
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken < 2_000 * 600


@both_paths
def test_max_bytes_bounds_what_keys_of_any_length_take(path: str) -> None:
    """As the allocator sees it, and as the store counts it."""
    bound, keys = (300_000, 6_000) if path == "interpreted" else (1_000_000, 20_000)
    for lead in ("", "\U0001f600", "ü", "x" * 100):
        store = make_store(path, max_bytes=bound)
        limiter = make_limiter(path, gcra(10, 60_000), ManualClock(NOW), store)
        gc.collect()
        tracemalloc.start()
        try:
            flood(limiter, keys, lead)
            taken = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert 0.5 * bound < taken < 1.25 * bound
        assert 0.9 * bound < store.stats()["bytes"] <= bound
        assert store.evictions == keys - len(store)


@both_paths
def test_states_that_grow_are_counted_as_they_grow(path: str) -> None:
    """Logs push others out, and the idle ones first."""
    clock, store = ManualClock(NOW), make_store(path, max_bytes=200_000)
    logs = make_limiter(path, sliding_window_log(5_000, 60_000), clock, store, prefix="log")
    small = make_limiter(path, fixed_window(10, 60_000), clock, store, prefix="small")
    fill_up(small, "blocked", 10)
    assert not small.check("blocked")
    while not store.evictions:
        flood(small, 100, f"{len(store)}")
    before = len(store)
    for number in range(2_000):
        clock.advance(1)
        logs.check(f"log {number % 3}")
        assert store.stats()["bytes"] <= 200_000
    assert len(store) < before
    assert store.evictions > 0
    assert not small.check("blocked")


@both_paths
def test_a_log_that_may_not_grow_is_denied(path: str) -> None:
    """With "deny" nobody else has to go for it; what is there stays, and what expires makes way."""
    clock = ManualClock(NOW)
    store = make_store(path, overflow="deny", max_bytes=20_000)
    limiter = make_limiter(path, sliding_window_log(5_000, 10_000), clock, store)
    admitted = 0
    while limiter.check("growing"):
        clock.advance(1)
        admitted += 1
    assert 50 < admitted < 1_200
    assert store.refusals == 1
    assert store.stats()["bytes"] <= 20_000
    assert limiter.peek("growing").remaining == 5_000 - admitted
    clock.advance(10_000)
    assert limiter.check("growing")


@both_paths
@pytest.mark.parametrize("overflow", ["evict", "deny"])
def test_a_state_that_would_fill_the_store_alone_is_denied(path: str, overflow: str) -> None:
    """There is nobody left who could make room for it."""
    store = make_store(path, overflow=overflow, max_bytes=20_000)
    limiter: Any = make_limiter(path, Weighty(), ManualClock(NOW), store)
    assert limiter.check("modest", 10_000)
    refused = limiter.check("too much", 30_000)
    assert (refused.allowed, refused.remaining) == (False, 0)
    assert refused.retry_after_ms > 0
    assert limiter.check("modest", 12_000)
    assert not limiter.check("modest", 30_000)
    assert store.refusals == 2
    assert store.evictions == 0
    assert store.stats()["bytes"] > 12_000


class Weighty(Strategy):
    """Keeps as many bytes as a request costs."""

    limit = 100_000
    ttl_ms = 60_000

    def check(self, state: Any, now: int, cost: int) -> Outcome[Decision]:
        return Outcome(bytes(cost), Decision(True, self.limit, 50_000, now, 0), 60_000, True)


@both_paths
def test_states_of_ones_own_are_counted_as_python_weighs_them(path: str) -> None:
    """Whatever `sys.getsizeof` says, when they come, change and go."""
    store = make_store(path, max_bytes=1_000_000)
    limiter = make_limiter(path, Weighty(), ManualClock(NOW), store)
    limiter.check("k", 1)
    least = store.stats()["bytes"]
    limiter.check("k", 50_001)
    assert store.stats()["bytes"] == least + 50_000
    limiter.check("k", 1)
    assert store.stats()["bytes"] == least
    limiter.reset("k")
    assert store.stats() == {"keys": 0, "bytes": 0, "evictions": 0, "refusals": 0}


@both_paths
def test_many_make_way_for_one_that_is_large(path: str) -> None:
    """And the bound holds throughout."""
    store = make_store(path, max_bytes=50_000)
    limiter = make_limiter(path, Weighty(), ManualClock(NOW), store)
    while not store.evictions:
        limiter.check(f"small {len(store)}", 1)
    before = len(store)
    assert limiter.check("large", 40_000)
    assert len(store) < before - 20
    assert store.stats()["bytes"] <= 50_000


@both_paths
def test_what_has_expired_makes_way_before_what_counts(path: str) -> None:
    """For a new key and for one that grows."""
    for overflow in ("evict", "deny"):
        clock, store = ManualClock(NOW), make_store(path, overflow=overflow, max_bytes=30_000)
        brief = make_limiter(path, sliding_window_log(1_000, 100), clock, store, prefix="brief")
        lasting = make_limiter(path, sliding_window_log(1_000, 60_000), clock, store)
        fill_up(lasting, "grows", 1)
        while not store.evictions and not store.refusals:
            lasting.peek("grows")
            brief.check(f"{len(store)}")
        before = (store.evictions, store.refusals)
        clock.advance(100)
        for _ in range(149):
            clock.advance(1)
            assert lasting.check("grows")
        flood(lasting, 5)
        assert (store.evictions, store.refusals) == before
        assert lasting.peek("grows").remaining == 850


@both_paths
@pytest.mark.parametrize("seed", range(5))
def test_the_count_of_bytes_never_drifts(path: str, seed: int) -> None:
    """Kept up step by step it is what a look at every key comes to."""
    rng = random.Random(f"drift/{seed}")
    clock = ManualClock(NOW)
    counted, looked = make_store(path, 10**6, max_bytes=10**9), make_store(path)
    strategies: list[Strategy] = [
        gcra(5, 2_000),
        sliding_window_log(50, 2_000),
        sliding_window(50, 2_000, 20),
        Quota(5, 1_500),
    ]
    pairs = [
        [make_limiter(path, one, clock, store, prefix=one.name) for store in (counted, looked)]
        for one in strategies
    ]
    for step in range(6_000):
        clock.advance(rng.choice((0, 0, 1, 3, 40 if rng.random() < 0.05 else 0)))
        pair, key = rng.choice(pairs), f"{rng.randrange(600)}" * rng.choice((1, 1, 1, 60))
        call = rng.choice(("check", "check", "check", "peek", "reset"))
        for limiter in pair:
            getattr(limiter, call)(key)
        if rng.random() < 0.01:
            assert counted.sweep(clock.now()) == looked.sweep(clock.now())
        if step % 50 == 0:
            assert len(counted) == len(looked)
            assert counted.stats() == looked.stats()
    clock.advance(10**7)
    counted.sweep(clock.now())
    assert counted.stats()["bytes"] == 0


@both_paths
def test_both_bounds_hold_at_once(path: str) -> None:
    """Whichever is reached first."""
    store = make_store(path, 50, max_bytes=10**6)
    flood(make_limiter(path, gcra(5, 60_000), ManualClock(NOW), store), 500)
    assert len(store) == 50
    store = make_store(path, 10**6, max_bytes=20_000)
    flood(make_limiter(path, gcra(5, 60_000), ManualClock(NOW), store), 500)
    assert 30 < len(store) < 200


def test_a_url_takes_the_bound() -> None:
    """As it takes the other one."""
    store = open_store("memory://?max_keys=5&max_bytes=10000&overflow=deny")
    assert isinstance(store, MemoryStore)
    assert (store.max_keys, store.max_bytes, store.overflow) == (5, 10_000, "deny")
    assert repr(store) == "MemoryStore(max_keys=5, overflow='deny', max_bytes=10000)"
    for url in ("memory://?max_bytes=x", "memory://?max_bytes=-1", "memory://?max_bytes=10"):
        with pytest.raises(ConfigInvalidError, match="max_bytes"):
            open_store(url)
