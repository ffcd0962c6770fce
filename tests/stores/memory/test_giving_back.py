"""Memory that nobody needs is given back, by the calls of others and by the sweeper."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import tracemalloc
import weakref
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    Decision,
    ManualClock,
    MemoryStore,
    Outcome,
    Strategy,
    gcra,
    rate_limit,
    sliding_window_log,
)
from tests.support.helpers import NOW, Quota, both_paths, make_limiter, make_store


@both_paths
@pytest.mark.parametrize("strategy", [gcra(10, 10_000), sliding_window_log(5, 1_000), Quota(5)])
def test_memory_is_given_back_after_expiry(path: str, strategy: Strategy) -> None:
    """Less than 5% of it is left once all keys have expired and a few more checks ran."""
    clock, store = ManualClock(NOW), make_store(path)
    limiter = make_limiter(path, strategy, clock, store)
    gc.collect()
    tracemalloc.start()
    try:
        base = tracemalloc.get_traced_memory()[0]
        for number in range(20_000):
            limiter.check(f"key-{number:012d}")
        full = tracemalloc.get_traced_memory()[0] - base
        clock.advance(10**6)
        for number in range(5):
            limiter.check(f"late-{number}")
        left = tracemalloc.get_traced_memory()[0] - base
    finally:
        tracemalloc.stop()
    assert full > 20_000 * 60
    assert left < 0.05 * full
    assert len(store) == 5


class Album(Strategy):
    """Keeps a large state for a second."""

    limit = 1

    def check(self, state: Any, now: int, cost: int) -> Outcome[Decision]:
        return Outcome(bytes(100_000), Decision(True, 1, 0, now + 1_000, 0), 1_000, True)


@both_paths
@pytest.mark.parametrize(
    ("strategy", "checks"), [(sliding_window_log(5_000, 1_000), 300), (Album(), 2)]
)
def test_memory_of_few_but_heavy_keys_is_given_back_too(
    path: str, strategy: Strategy, checks: int
) -> None:
    """Far fewer keys than the floor, and megabytes in them."""
    clock = ManualClock(NOW)
    store = make_store(path)
    limiter = make_limiter(path, strategy, clock, store)
    keys = 60 if path == "interpreted" else 200
    tracemalloc.start()
    for _ in range(checks):
        for key in range(keys):
            limiter.check(f"k{key}")
        clock.advance(1)
    heavy = tracemalloc.get_traced_memory()[0]
    for _ in range(3):
        clock.advance(1_000)
        limiter.check("another")
    left = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert heavy > 1_000_000
    assert left < heavy / 3


@both_paths
def test_few_and_light_keys_stay_for_a_clock_that_comes_back(path: str) -> None:
    """However often they are weighed."""
    clock = ManualClock(NOW)
    limiter = make_limiter(path, sliding_window_log(5, 1_000), clock)
    limiter.check("k", 5)
    for _ in range(5):
        clock.advance(10_000)
        limiter.check("another")
    clock.set(NOW + 500)
    assert not limiter.check("k")


@both_paths
def test_memory_is_given_back_while_others_stay(path: str) -> None:
    """Keys that live on do not keep the room of those that went, but for the reclaim floor."""
    clock, store = ManualClock(NOW), make_store(path)
    brief = make_limiter(path, Quota(5, 1_000), clock, store)
    lasting = make_limiter(path, Quota(5, 10**9), clock, store, prefix="long")
    for number in range(100):
        lasting.check(str(number))
    gc.collect()
    tracemalloc.start()
    try:
        base = tracemalloc.get_traced_memory()[0]
        for number in range(30_000):
            if number % 50 == 0:
                clock.advance(1)
            brief.check(f"key-{number:012d}")
        full = tracemalloc.get_traced_memory()[0] - base
        for _ in range(1_500):
            clock.advance(1)
            lasting.check("7")
        left = tracemalloc.get_traced_memory()[0] - base
    finally:
        tracemalloc.stop()
    assert left < 0.1 * full
    assert len(store) == 100


@both_paths
def test_states_of_custom_strategies_are_released(path: str) -> None:
    """On expiry, reset, overwriting, eviction and with the store itself."""

    class Token:
        pass

    class Holder(Strategy):
        limit = 1

        def check(self, state: Any, now: int, cost: int) -> Outcome[Any]:
            token = Token()
            return Outcome(token, weakref.ref(token), 1_000, True)

    clock = ManualClock(NOW)
    store = make_store(path, 2, "evict")
    limiter: Any = make_limiter(path, Holder(), clock, store)
    first, second = limiter.check("k"), limiter.check("k")
    assert first() is None
    assert second() is not None
    limiter.reset("k")
    assert second() is None
    evicted = [limiter.check(key) for key in "abcd"]
    assert [ref() is None for ref in evicted] == [True, True, False, False]
    store.sweep(NOW + 1_000)
    assert all(ref() is None for ref in evicted)
    last = limiter.check("z")
    del limiter, store
    gc.collect()
    assert last() is None


def test_a_sweeper_on_another_clock_is_refused() -> None:
    """It would drop what still counts by the limiter's."""
    clock = ManualClock(NOW)
    for store, given in (
        (MemoryStore(sweep_every_ms=1_000), clock),
        (MemoryStore(sweep_every_ms=1_000, clock=clock), None),
    ):
        with pytest.raises(ConfigInvalidError, match="give both the same"):
            rate_limit("2/second", store=store, clock=given)
        store.close()
    fits = MemoryStore(sweep_every_ms=1_000, clock=clock)
    assert rate_limit("2/second", store=fits, clock=clock).check("k")
    fits.close()


def swept_store(clock: ManualClock | None = None) -> tuple[MemoryStore, threading.Thread]:
    """A store with a sweeper, and the thread that it has started."""
    before = set(threading.enumerate())
    store = MemoryStore(sweep_every_ms=1, clock=clock)
    started = set(threading.enumerate()) - before
    [thread] = [each for each in started if "sweep" in each.name]
    return store, thread


def test_the_sweeper_gives_back_what_nobody_asks_for_and_ends_with_close() -> None:
    """An idle program gets its memory back; closing ends the thread, twice if need be."""
    clock = ManualClock(NOW)
    store, sweeper = swept_store(clock)
    make_limiter("as is", gcra(1, 1_000), clock, store).check("k")
    assert store.stats()["keys"] == 1
    clock.advance(1_000)
    deadline = time.monotonic() + 10
    while store.stats()["keys"] and time.monotonic() < deadline:
        threading.Event().wait(0.001)
    assert store.stats()["keys"] == 0
    store.close()
    store.close()
    assert not sweeper.is_alive()


def test_a_dropped_store_takes_its_sweeper_along() -> None:
    """The thread holds the store weakly and ends with it."""
    store, thread = swept_store()
    assert thread.daemon
    del store
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_closing_from_a_coroutine_ends_the_sweeper_too() -> None:
    """`aclose` is `close`."""
    store, thread = swept_store()
    asyncio.run(store.aclose())
    assert not thread.is_alive()


def test_without_being_asked_to_a_store_starts_no_thread() -> None:
    """Expiry is driven by access; there is nothing to stop."""
    before = threading.active_count()
    store = MemoryStore()
    make_limiter("as is", gcra(1, 1_000), None, store).check("k")
    assert threading.active_count() == before
    store.close()


@both_paths
@pytest.mark.parametrize("now", [-1, 1.5, 2**46 + 1, "now", True])
def test_a_sweep_at_a_nonsense_instant_is_refused(path: str, now: Any) -> None:
    """Sweeping at the end of time would forget everybody."""
    with pytest.raises(ConfigInvalidError, match="epoch milliseconds"):
        make_store(path).sweep(now)
    store = make_store(path)
    store.clock = type("Odd", (), {"now": lambda self: now})()
    with pytest.raises(ConfigInvalidError, match="epoch milliseconds"):
        store.sweep()
