"""MemoryStore on both paths: what it remembers, what it gives back, and what it does when full."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
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
    fixed_window,
    gcra,
    rate_limit,
    sliding_window_log,
    unlimited,
)
from penstock.core._transform import Transform, checking, peeking
from penstock.stores.memory._table import RECLAIM_FLOOR
from tests.support.helpers import NOW, PATHS, Quota, make_limiter, make_store

both_paths = pytest.mark.parametrize("path", PATHS)


class Stamp(Strategy):
    """Remembers when it was last asked, for as many ms as the cost says."""

    limit = 1

    def check(self, state: Any, now: int, cost: int) -> Outcome[Decision]:
        return Outcome(now, Decision(True, 1, 0 if state is None else 1, 0, 0), cost, True)

    def peek(self, state: Any, now: int) -> Decision:
        return Decision(True, 1, 0 if state is None else 1, 0, 0)


STAMP, SEEN = checking(Stamp()), peeking(Stamp())


def write(store: MemoryStore, key: str, now: int, ttl_ms: int) -> None:
    store.apply(key, STAMP, now, ttl_ms)


def holds(store: MemoryStore, key: str, now: int) -> bool:
    return bool(store.apply(key, SEEN, now, 1).remaining)


@both_paths
@pytest.mark.parametrize("keys", [300, 3_000])
def test_expiry_is_that_of_a_naive_model(path: str, keys: int) -> None:
    """Below and above the floor: at every instant, what is there is what has not expired."""
    rng = random.Random(f"naive/{keys}")
    store, model, now = make_store(path), {}, NOW
    for step in range(8_000):
        now += rng.choice((0, 0, 0, 1, 2, rng.randrange(300), 0 if rng.random() < 0.99 else 10**6))
        key = str(rng.randrange(keys))
        if rng.random() < 0.6:
            # Renewals never shorten, as with the strategies.
            expires = max(now + rng.choice((1, 255, 256, 257, 65_536, 70_000)), model.get(key, 0))
            model[key] = expires
            write(store, key, now, expires - now)
        else:
            assert holds(store, key, now) == (now < model.get(key, 0)), step
        if step % 97 == 0:
            assert len(store) == sum(now < expires for expires in model.values())


@both_paths
@pytest.mark.parametrize(
    "ttl_ms",
    [1, 2, 254, 255, 256, 257, 511, 65_535, 65_536, 65_537, 2**24 - 1, 2**24, 2**32, 2**40],
)
def test_each_level_of_the_wheel_is_exact(path: str, ttl_ms: int) -> None:
    """A key leaves at its millisecond whatever the distance, and not one earlier."""
    for start in (NOW, NOW + 255, NOW + 65_535, NOW + 2**24 - 1):
        store = make_store(path)
        store.sweep(start)
        write(store, "k", start, ttl_ms)
        for stop in (1, ttl_ms // 2, ttl_ms - 1):
            store.sweep(start + max(0, stop if stop < ttl_ms else 0))
            assert len(store) == 1
        assert store.sweep(start + ttl_ms) == 1
        assert len(store) == 0


# Reads the raw state of whatever kind, and writes nothing.
RAW: Transform[Any] = Transform(
    None, "peek", lambda state, _now, _cost: Outcome(None, state, 0, False), lambda *_: None
)


@both_paths
def test_no_jump_of_the_clock_admits_more_than_an_honest_one(path: str) -> None:
    """With thousands of keys expiring and the clock going back behind what was reclaimed: each
    admission counts from an instant that was really reached, these never go back, and no window
    of them holds more than the limit."""
    rng = random.Random("horizon")
    clock, store = ManualClock(NOW), make_store(path)
    limiter = make_limiter(path, sliding_window_log(2, 1_000), clock, store)
    admitted: dict[str, list[int]] = {}
    latest, raised = NOW, 0
    for _ in range(40_000):
        dice = rng.random()
        if dice < 0.002:
            clock.set(max(NOW, clock.now() - rng.randrange(2_500)))
        elif dice < 0.006:
            clock.advance(rng.randrange(1_500))
        elif dice < 0.3:
            clock.advance(rng.randrange(3))
        latest = max(latest, clock.now())
        key = str(rng.randrange(3_000))
        if limiter.check(key):
            stamp = store.apply(key, RAW, clock.now(), 1)[-1][0]
            assert clock.now() <= stamp <= latest
            raised += stamp > clock.now()
            admitted.setdefault(key, []).append(stamp)
    for stamps in admitted.values():
        assert stamps == sorted(stamps)
        assert all(late - early >= 1_000 for early, late in zip(stamps, stamps[2:], strict=False))
    assert latest > NOW + 20_000
    assert raised > 100


@both_paths
def test_a_key_that_was_dropped_is_decided_as_of_the_horizon(path: str) -> None:
    """Going back behind a reclaim does not reopen what was spent there."""
    clock, store = ManualClock(NOW), make_store(path)
    limiter = make_limiter(path, fixed_window(1, 1_000, anchor="first"), clock, store)
    for number in range(RECLAIM_FLOOR + 10):
        limiter.check(str(number))
    clock.set(NOW + 1_000)
    limiter.check("somebody")
    clock.set(NOW + 500)
    again = limiter.check("7")
    assert again.allowed
    assert again.reset_at == NOW + 2_000
    assert not limiter.check("7").allowed
    clock.set(NOW + 1_999)
    assert not limiter.check("7").allowed


@both_paths
def test_below_the_floor_a_clock_may_come_back_to_what_it_left(path: str) -> None:
    """Small stores drop nothing on their own, so a jump there and back changes nothing."""
    clock = ManualClock(NOW)
    limiter = make_limiter(path, fixed_window(1, 1_000, anchor="first"), clock)
    for number in range(RECLAIM_FLOOR // 2):
        limiter.check(str(number))
    clock.set(NOW + 10**6)
    assert limiter.peek("7").allowed
    clock.set(NOW + 500)
    decision = limiter.check("7")
    assert not decision.allowed
    assert decision.reset_at == NOW + 1_000


@both_paths
def test_the_horizon_moves_only_when_something_was_dropped(path: str) -> None:
    """A sweep that finds nothing leaves earlier instants as they are."""
    clock, store = ManualClock(NOW), make_store(path)
    limiter = make_limiter(path, fixed_window(1, 10_000, anchor="first"), clock, store)
    limiter.check("kept")
    assert store.sweep(NOW + 5_000) == 0
    assert limiter.check("new").reset_at == NOW + 10_000
    assert store.sweep(NOW + 10_000) == 2
    assert limiter.check("new").reset_at == NOW + 20_000


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
@pytest.mark.parametrize("strategy", [sliding_window_log(10_000, 1_000), Album()])
def test_memory_of_few_but_heavy_keys_is_given_back_too(path: str, strategy: Strategy) -> None:
    """Far fewer keys than the floor, and megabytes in them."""
    clock = ManualClock(NOW)
    store = make_store(path)
    limiter = make_limiter(path, strategy, clock, store)
    keys = 40 if path == "interpreted" else 200
    tracemalloc.start()
    for _ in range(500):
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


@both_paths
def test_evicting_keeps_the_keys_that_are_used(path: str) -> None:
    """Second chance: what was asked for since the hand last passed stays, what was not goes."""
    clock, store = ManualClock(NOW), make_store(path, 10, "evict")
    limiter = make_limiter(path, fixed_window(100, 60_000), clock, store)
    for number in range(10):
        limiter.check(f"old {number}")
    for number in range(200):
        limiter.check("hot")
        limiter.check(f"passing {number}")
    assert limiter.peek("hot").remaining < 5 or not limiter.peek("hot").allowed
    assert len(store) == 10
    assert store.evictions >= 200


@both_paths
def test_a_denied_or_peeked_key_counts_as_used(path: str) -> None:
    """An abuser who is being denied must not be the first to be forgotten."""
    clock, store = ManualClock(NOW), make_store(path, 3, "evict")
    limiter = make_limiter(path, fixed_window(1, 60_000), clock, store)
    for key in ("abuser", "b", "c"):
        limiter.check(key)
    assert not limiter.check("abuser").allowed
    limiter.check("newcomer")
    assert not limiter.check("abuser").allowed
    assert store.evictions == 1


@both_paths
def test_expired_keys_go_before_live_ones(path: str) -> None:
    """Nobody is evicted, or refused, while somebody else's time is up."""
    for overflow in ("evict", "deny"):
        clock, store = ManualClock(NOW), make_store(path, 100, overflow)
        limiter = make_limiter(path, fixed_window(1, 1_000, anchor="first"), clock, store)
        for number in range(50):
            limiter.check(f"early {number}")
        clock.advance(500)
        for number in range(50):
            limiter.check(f"late {number}")
        clock.advance(500)
        assert all(limiter.check(f"new {number}").allowed for number in range(50))
        assert not any(limiter.check(f"late {number}").allowed for number in range(50))
        assert (store.evictions, store.refusals) == (0, 0)


@both_paths
def test_rotating_through_more_keys_than_fit(path: str) -> None:
    """With "evict" rotation starts each key afresh, and is counted; with "deny" it gets nowhere."""
    for overflow, admitted in (("evict", 3 * 40), ("deny", 20)):
        clock, store = ManualClock(NOW), make_store(path, 20, overflow)
        limiter = make_limiter(path, fixed_window(1, 60_000), clock, store)
        seen = sum(limiter.check(str(n)).allowed for _ in range(3) for n in range(40))
        assert seen == admitted
        assert (store.evictions > 0) == (overflow == "evict")
        assert (store.refusals > 0) == (overflow == "deny")


@both_paths
def test_a_refusal_for_lack_of_room_is_a_sound_denial(path: str) -> None:
    """It spends nothing, tells when room may be made, and known keys are served all the same."""
    clock, store = ManualClock(NOW), make_store(path, 2, "deny")
    limiter = make_limiter(path, fixed_window(5, 1_000, anchor="first"), clock, store)
    limiter.check("a")
    clock.advance(100)
    limiter.check("b")
    refused = limiter.check("c")
    assert not refused.allowed
    assert (refused.limit, refused.remaining) == (5, 0)
    assert 1 <= refused.retry_after_ms <= 900
    assert refused.reset_at == clock.now() + refused.retry_after_ms
    assert limiter.check("a").allowed
    assert limiter.forecast("c").spendable_now == 0
    while not refused.allowed:
        clock.advance(refused.retry_after_ms)
        refused = limiter.check("c")
    assert clock.now() == NOW + 1_000


@both_paths
def test_what_keeps_nothing_needs_no_room(path: str) -> None:
    """A kill switch allows on a full store too, and a look that is refused is not counted."""
    clock = ManualClock(NOW)
    store = make_store(path, 1, "deny")
    make_limiter(path, gcra(5, 60_000), clock, store).check("held")
    switch = make_limiter(path, unlimited(), clock, store)
    assert switch.check("new").allowed
    assert switch.peek("new").allowed
    shut = make_limiter(path, gcra(5, 60_000), clock, store)
    assert not shut.peek("new").allowed
    assert shut.forecast("new").spendable_now == 0
    assert store.refusals == 0
    assert not shut.check("new").allowed
    assert store.refusals == 1


@both_paths
def test_a_subclass_that_decides_for_itself_is_asked(path: str) -> None:
    """The compiled limiter does not go round it, nor does a batch."""

    class Counted(MemoryStore):
        asked = 0

        def apply(self, key: str, transform: Any, now: int, cost: int) -> Any:  # type: ignore[override]
            self.asked += 1
            return super().apply(key, transform, now, cost)

    store = Counted()
    if path == "interpreted":
        store.table = make_store(path).table
    limiter = make_limiter(path, gcra(5, 60_000), ManualClock(NOW), store)
    limiter.check("k")
    limiter.check_many(["k", "l"])
    asyncio.run(limiter.acheck("k"))
    assert store.asked == 4
    assert limiter.peek("k").remaining == 2


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


@both_paths
def test_a_reset_makes_room(path: str) -> None:
    """A key that was reset no longer counts."""
    store = make_store(path, 1, "deny")
    limiter = make_limiter(path, gcra(1, 60_000), ManualClock(NOW), store)
    limiter.check("a")
    assert not limiter.check("b").allowed
    limiter.reset("b")
    limiter.reset("a")
    assert len(store) == 0
    assert limiter.check("b").allowed


@both_paths
def test_peeks_and_denials_take_no_room(path: str) -> None:
    """Only what is written is kept: a flood of questions about unknown keys leaves nothing."""
    store = make_store(path)
    limiter = make_limiter(path, gcra(1, 60_000), ManualClock(NOW), store)
    for number in range(100):
        limiter.peek(str(number))
        limiter.forecast(str(number))
        assert not limiter.check(str(number), 2).allowed
    assert len(store) == 0


@both_paths
def test_len_counts_what_is_remembered_at_the_latest_instant(path: str) -> None:
    """Expired keys are not counted, whether or not anybody asked for them since."""
    clock, store = ManualClock(NOW), make_store(path)
    limiter = make_limiter(path, fixed_window(1, 1_000, anchor="first"), clock, store)
    assert len(store) == 0
    for number in range(5):
        limiter.check(str(number))
        clock.advance(100)
    assert len(store) == 5
    clock.set(NOW + 1_200)
    limiter.peek("anything")
    assert len(store) == 2
    assert store


def test_the_sweeper_gives_back_what_nobody_asks_for_and_ends_with_close() -> None:
    """An idle program gets its memory back; closing ends the thread, twice if need be."""
    clock = ManualClock(NOW)
    store = MemoryStore(sweep_every_ms=1, clock=clock)
    make_limiter("as is", gcra(1, 1_000), clock, store).check("k")
    sweeper = store._sweeper
    assert sweeper is not None
    clock.advance(1_000)
    deadline = time.monotonic() + 10
    table: Any = store.table
    while (len(table._records) if hasattr(table, "_records") else len(table)) and (
        time.monotonic() < deadline
    ):
        threading.Event().wait(0.001)
    assert len(store) == 0
    store.close()
    store.close()
    assert not sweeper._thread.is_alive()


def test_a_dropped_store_takes_its_sweeper_along() -> None:
    """The thread holds the store weakly and ends with it."""
    store = MemoryStore(sweep_every_ms=1)
    thread = store._sweeper._thread  # type: ignore[union-attr]
    assert thread.daemon
    del store
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_closing_from_a_coroutine_ends_the_sweeper_too() -> None:
    """`aclose` is `close`."""
    store = MemoryStore(sweep_every_ms=1)
    thread = store._sweeper._thread  # type: ignore[union-attr]
    asyncio.run(store.aclose())
    assert not thread.is_alive()


def test_without_being_asked_to_a_store_starts_no_thread() -> None:
    """Expiry is driven by access; there is nothing to stop."""
    before = threading.active_count()
    store = MemoryStore()
    make_limiter("as is", gcra(1, 1_000), None, store).check("k")
    assert threading.active_count() == before
    store.close()


@pytest.mark.parametrize(
    "options",
    [
        {"max_keys": 0},
        {"max_keys": -1},
        {"max_keys": 1.5},
        {"max_keys": True},
        {"max_keys": 2**31},
        {"max_keys": "10"},
        {"overflow": "drop"},
        {"overflow": None},
        {"sweep_every_ms": 0},
        {"sweep_every_ms": 0.5},
        {"clock": 5},
    ],
)
def test_nonsense_options_are_refused(options: dict[str, Any]) -> None:
    """Each with the name of the option and what would be right."""
    with pytest.raises(ConfigInvalidError, match=f"^{next(iter(options))} must be"):
        MemoryStore(**options)


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


class Stuck(Strategy):
    """Holds the store while it decides, until it is let go."""

    limit = 1

    def __init__(self) -> None:
        self.entered, self.free = threading.Event(), threading.Event()

    def check(self, state: Any, now: int, cost: int) -> Outcome[Decision]:
        self.entered.set()
        self.free.wait(20)
        return Outcome(state, Decision(True, 1, 1, now, 0), 0, False)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@both_paths
def test_a_child_forked_while_the_store_is_held_is_not_stuck(path: str) -> None:
    """The thread that held the lock does not exist in the child."""
    store, stuck = make_store(path), Stuck()
    holder = threading.Thread(target=store.apply, args=("k", checking(stuck), NOW, 1))
    holder.start()
    stuck.entered.wait(20)
    child = os.fork()
    if not child:
        signal.alarm(10)
        write(store, "other", NOW, 1)
        os._exit(0 if holds(store, "other", NOW) else 1)
    _, status = os.waitpid(child, 0)
    stuck.free.set()
    holder.join()
    assert os.waitstatus_to_exitcode(status) == 0
