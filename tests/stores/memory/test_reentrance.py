"""MemoryStore when its own work calls it back: a state's finalizer, the collector, a strategy.

Dropping a state of the user's may run a finalizer, and making a tuple may run the collector, which
may run any. Whatever those ask of the same store, a key has one record and a limit of 1 admits 1.
"""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    Decision,
    Limiter,
    ManualClock,
    MemoryStore,
    Outcome,
    Strategy,
    gcra,
    sliding_window_log,
)
from tests.support.helpers import NOW, both_paths, make_limiter, make_store


class Dying:
    """A state that calls back when it is released."""

    def __init__(self, last_words: Callable[[], object]) -> None:
        self.last_words = last_words

    def __del__(self) -> None:
        self.last_words()


class Keep(Strategy):
    """Admits once, and keeps whatever it is told to for as long as it is told to."""

    name = "keep"
    limit = 1

    def __init__(self, make: Callable[[], object], ttl_ms: Any = 1_000) -> None:
        self.make = make
        self.ttl_ms = ttl_ms

    def check(self, state: Any, now: int, cost: int) -> Outcome[Decision]:
        if state is not None:
            return Outcome(state, Decision(False, 1, 0, now + 1, 1), 0, False)
        return Outcome(self.make(), Decision(True, 1, 0, now + 1, 0), self.ttl_ms, True)


class World:
    """One store and one clock, with a limiter that admits each key once."""

    def __init__(self, path: str, max_keys: int | None = None, overflow: str = "evict") -> None:
        self.path = path
        self.clock = ManualClock(NOW)
        self.store: MemoryStore = make_store(path, max_keys, overflow)
        self.once = self.limiter(gcra(1, 1_000_000))
        self.inner: list[bool] = []

    def limiter(self, strategy: Strategy) -> Limiter:
        return make_limiter(self.path, strategy, self.clock, self.store)

    def spend(self, key: str) -> None:
        """What the finalizers do: take the key's one unit."""
        self.inner.append(bool(self.once.check(key)))


@both_paths
def test_the_finalizer_of_an_evicted_state_asks_for_the_key_that_evicts_it(path: str) -> None:
    world = World(path, max_keys=2)
    keep = world.limiter(Keep(lambda: Dying(lambda: world.spend("new"))))
    assert keep.check("old")
    assert world.once.check("other")
    assert world.once.check("new")
    assert world.inner == [False]
    assert len(world.store) == 2
    world.once.reset("new")
    assert len(world.store) == 1
    assert world.once.peek("new")


@both_paths
def test_the_finalizer_of_an_expired_state_asks_for_the_key_it_makes_way_for(path: str) -> None:
    world = World(path, max_keys=1)
    keep = world.limiter(Keep(lambda: Dying(lambda: world.spend("new")), ttl_ms=10))
    assert keep.check("old")
    world.clock.advance(20)
    outer = bool(world.once.check("new"))
    assert [*world.inner, outer].count(True) == 1
    assert len(world.store) == 1
    world.once.reset("new")
    assert len(world.store) == 0


@both_paths
def test_the_finalizer_of_a_replaced_state_moves_the_key(path: str) -> None:
    """The expired state of one strategy gives way to another's, and its finalizer takes the key
    away and another key into its place: each keeps its own."""
    world = World(path)

    def shuffle() -> None:
        world.store.reset("key")
        world.spend("other")
        world.spend("key")

    keep = world.limiter(Keep(lambda: Dying(shuffle), ttl_ms=10))
    assert keep.check("key")
    world.clock.advance(20)
    assert world.once.check("key")
    assert world.inner == [True, True]
    assert not world.once.check("key")
    assert not world.once.check("other")
    assert len(world.store) == 2


@both_paths
def test_finalizers_that_run_in_a_sweep_lose_no_spending(path: str) -> None:
    world = World(path)
    keys = [f"key {number}" for number in range(20)]
    for key in keys:
        again = iter(keys)
        dying = Keep(lambda again=again: Dying(lambda: world.spend(next(again))), ttl_ms=10)
        world.limiter(dying).check(key)
    world.clock.advance(20)
    assert world.store.sweep(world.clock.now()) == len(keys)
    assert world.inner.count(True) == len(world.store)
    world.clock.advance(2_000_000)
    world.store.sweep(world.clock.now())
    assert len(world.store) == 0


@both_paths
def test_a_key_that_came_in_meanwhile_is_not_evicted_by_a_store_that_denies(path: str) -> None:
    world = World(path, max_keys=1, overflow="deny")
    keep = world.limiter(Keep(lambda: world.spend("first") or "state"))
    assert not keep.check("second")
    assert world.inner == [True]
    assert world.store.evictions == 0
    assert world.store.refusals == 1
    assert not world.once.check("first")


@both_paths
def test_a_key_that_was_written_meanwhile_is_decided_again(path: str) -> None:
    world = World(path)
    calls: list[int] = []

    def make() -> str:
        calls.append(1)
        if len(calls) == 1:
            assert keep.check("key")
        return "state"

    keep = world.limiter(Keep(make))
    assert not keep.check("key")
    assert len(calls) == 2
    assert len(world.store) == 1


@both_paths
def test_the_collector_runs_while_a_state_is_read(path: str) -> None:
    """A log is handed to Python as tuples. Making them may run the collector, and its callback
    asks for the same key, whose log then grows and moves."""
    clock = ManualClock(NOW)
    limiter = make_limiter(path, sliding_window_log(5_000, 10_000_000), clock)
    admitted = 0

    def spend(count: int) -> None:
        nonlocal admitted
        for _ in range(count):
            clock.advance(1)
            admitted += bool(limiter.check("key"))

    def collecting(phase: str, _info: dict[str, int]) -> None:
        if phase == "start" and admitted < 4_000:
            spend(300)

    spend(200)
    threshold = gc.get_threshold()
    gc.callbacks.append(collecting)
    gc.set_threshold(5)
    try:
        for _ in range(30):
            seen = limiter.peek("key").remaining
            assert 5_000 - admitted <= seen <= 5_000 - 200
    finally:
        gc.callbacks.remove(collecting)
        gc.set_threshold(*threshold)
    assert limiter.peek("key").remaining == 5_000 - admitted


@both_paths
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this platform has no timer signals")
def test_an_exception_out_of_a_signal_handler_leaves_no_lock_behind(path: str) -> None:
    """Ctrl-C in a notebook, or a timeout by signal: wherever it strikes, others go on."""
    limiter = make_limiter(path, gcra(10_000, 1_000, 1_000_000))

    class StruckError(Exception):
        pass

    def strike(_number: int, _frame: object) -> None:
        raise StruckError

    def work() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.0003)
        while True:
            limiter.check("key")
            limiter.peek("key")

    before = signal.signal(signal.SIGALRM, strike)
    try:
        for _ in range(400):
            with pytest.raises(StruckError):
                work()
    finally:
        signal.signal(signal.SIGALRM, before)
    other = threading.Thread(target=limiter.check_many, args=(["key"],), daemon=True)
    other.start()
    other.join(20)
    assert not other.is_alive()


class Shortening(Strategy):
    """Keeps its first state for a day and the next for a moment."""

    limit = 1

    def check(self, state: Any, now: int, cost: int) -> Outcome[Decision]:
        ttl_ms = 86_400_000 if state is None else 10
        return Outcome("state", Decision(True, 1, 0, now + ttl_ms, 0), ttl_ms, True)


@both_paths
def test_a_state_that_is_to_go_sooner_than_it_was_goes_sooner(path: str) -> None:
    clock = ManualClock(NOW)
    store = make_store(path, max_keys=1, overflow="deny")
    limiter = make_limiter(path, Shortening(), clock, store)
    limiter.check("key")
    limiter.check("key")
    clock.advance(10)
    assert limiter.check("other")
    assert store.refusals == 0
    limiter.check("other")
    clock.advance(10)
    assert store.sweep(clock.now()) == 1
    assert len(store) == 0


@both_paths
@pytest.mark.parametrize("ttl_ms", [10.0, float("nan"), 2**70, 2**53, -(2**70), None, "10", True])
def test_a_nonsense_ttl_is_refused_by_name_and_nothing_is_written(path: str, ttl_ms: Any) -> None:
    store = make_store(path)
    keep = make_limiter(path, Keep(lambda: "state", ttl_ms), ManualClock(NOW), store)
    with pytest.raises(ConfigInvalidError, match="'keep' returned a ttl_ms of"):
        keep.check("key")
    assert len(store) == 0


@both_paths
def test_a_nonsense_ttl_leaves_the_state_that_was_there(path: str) -> None:
    world = World(path)
    strategy = Keep(lambda: "state", 10)
    keep = world.limiter(strategy)
    assert keep.check("key")
    world.clock.advance(10)
    strategy.ttl_ms = -(2**70)
    with pytest.raises(ConfigInvalidError, match="whole milliseconds"):
        keep.check("key")
    strategy.ttl_ms = 10
    assert keep.check("key")
    assert not keep.check("key")
