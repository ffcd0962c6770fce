"""MemoryStore on both paths: what it remembers, what it gives back, and what it does when full."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
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
    sliding_window_log,
)
from penstock.core._transform import Transform, checking, peeking
from penstock.stores.memory._table import RECLAIM_FLOOR
from tests.support.helpers import NOW, both_paths, make_limiter, make_store


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
