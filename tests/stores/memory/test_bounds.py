"""MemoryStore with bounds: what it lets go of when it is full, and what it counts as full."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    Decision,
    ManualClock,
    Outcome,
    Strategy,
    fixed_window,
    gcra,
    rate_limit,
    sliding_window,
    sliding_window_log,
    token_bucket,
)
from penstock.budget import token_budget
from penstock.core._transform import leasing
from penstock.core._validation import LONGEST_KEPT
from penstock.leasing._credits import Credits, granting
from tests.support.helpers import NOW, Quota, both_paths, make_limiter, make_store

from .floods import fill_up, flood

LIMITED: list[Strategy] = [
    fixed_window(20, 60_000),
    gcra(20, 60_000),
    sliding_window(20, 60_000),
    sliding_window_log(20, 60_000),
    token_bucket(20, 0.3),
    token_budget(20, 60_000),
    Quota(20, 60_000),
]


# Which keys go.


@both_paths
@pytest.mark.parametrize("strategy", LIMITED)
def test_a_flood_of_cold_keys_frees_nobody_who_is_denied(path: str, strategy: Strategy) -> None:
    """Not even if the victim is not heard of while it lasts, whatever the strategy."""
    store = make_store(path, 1_000)
    limiter = make_limiter(path, strategy, ManualClock(NOW), store)
    fill_up(limiter, "blocked")
    assert not limiter.check("blocked")
    flood(limiter, 20_000)
    assert store.evictions >= 19_000
    assert not limiter.check("blocked")


@both_paths
@pytest.mark.parametrize("strategy", LIMITED)
def test_nor_does_it_free_who_has_hardly_anything_left(path: str, strategy: Strategy) -> None:
    """Whether it was spent bit by bit or at once."""
    limiter = make_limiter(path, strategy, ManualClock(NOW), make_store(path, 1_000))
    fill_up(limiter, "nearly", 19)
    assert limiter.check("at once", 20)
    flood(limiter, 20_000)
    assert limiter.check("nearly")
    assert not limiter.check("nearly")
    assert not limiter.check("at once")


@both_paths
def test_a_flood_by_a_policy_of_one_frees_nobody_whom_another_denies(path: str) -> None:
    """Keys that are spent with their first request do not outrank one that is denied."""
    clock, store = ManualClock(NOW), make_store(path, 1_000)
    ten = make_limiter(path, fixed_window(10, 60_000), clock, store, prefix="ten")
    one = make_limiter(path, fixed_window(1, 60_000), clock, store, prefix="one")
    fill_up(ten, "blocked", 10)
    assert not ten.check("blocked")
    flood(one, 20_000)
    assert not ten.check("blocked")


@both_paths
def test_a_key_that_is_no_longer_denied_loses_its_rank(path: str) -> None:
    """What counts is the last decision."""
    clock, store = ManualClock(NOW), make_store(path, 100)
    limiter = make_limiter(path, token_bucket(20, 20), clock, store)
    fill_up(limiter, "was denied")
    assert not limiter.check("was denied")
    clock.advance(900)
    assert limiter.check("was denied")
    flood(limiter, 1_000)
    assert limiter.peek("was denied").remaining == 20


@both_paths
def test_denied_keys_leave_room_for_newcomers(path: str) -> None:
    """A table full of keys that are denied still counts a quarter of others, and forgets of the
    denied ones the one that was denied longest ago."""
    store = make_store(path, 100)
    limiter = make_limiter(path, fixed_window(10, 60_000), ManualClock(NOW), store)
    for number in range(100):
        fill_up(limiter, f"denied {number}", 10)
        assert not limiter.check(f"denied {number}")
    for _ in range(9):
        for number in range(25):
            assert limiter.check(f"new {number}")
    assert all(limiter.peek(f"new {number}").remaining == 1 for number in range(25))
    freed = [number for number in range(100) if limiter.peek(f"denied {number}").allowed]
    assert freed == list(range(len(freed)))
    assert 25 <= len(freed) <= 26


@both_paths
def test_among_equals_the_one_in_use_stays(path: str) -> None:
    """Also among the denied, where somebody has to go."""
    store = make_store(path, 60)
    limiter = make_limiter(path, fixed_window(1, 60_000), ManualClock(NOW), store)
    for number in range(600):
        limiter.check(f"denied {number}")
        limiter.check(f"denied {number}")
        assert limiter.check("busy").allowed == (number == 0)


@both_paths
def test_a_look_counts_as_use_and_changes_no_rank(path: str) -> None:
    """A peek keeps a key from being next, and does not make an idle one a denied one."""
    store = make_store(path, 3)
    limiter = make_limiter(path, fixed_window(9, 60_000), ManualClock(NOW), store)
    for key in ("looked at", "b", "c"):
        limiter.check(key)
    limiter.peek("looked at")
    limiter.check("d")
    assert [limiter.peek(key).remaining for key in ("looked at", "b", "c", "d")] == [8, 9, 8, 8]


@both_paths
def test_a_lease_that_gets_nothing_is_a_denial(path: str) -> None:
    """Budget that nodes take in batches is kept like any other."""
    store, strategy = make_store(path, 1_000), fixed_window(20, 60_000)
    lease = leasing(strategy, 1)
    assert store.apply("leased", lease, NOW, 20).capacity == 20
    assert store.apply("leased", lease, NOW, 20).capacity == 0
    flood(make_limiter(path, strategy, ManualClock(NOW), store), 5_000)
    assert store.apply("leased", lease, NOW, 20).capacity == 0


@both_paths
def test_credits_that_are_spent_do_not_outlive_those_that_are_not(path: str) -> None:
    """They are no restriction: to forget an empty record costs nothing, to forget credits does."""
    store, credits = make_store(path, 10), Credits(100)
    limiter = make_limiter(path, credits, ManualClock(NOW), store)
    for number in range(10):
        grant = granting(credits, (5, NOW + 60_000, NOW + 60_000))
        store.apply(str(number), grant, NOW, 1)
    for number in range(5):
        assert limiter.check(str(number), 5)
        assert not limiter.check(str(number))
    for number in range(5, 10):
        limiter.peek(str(number))
    for number in range(5):
        store.apply(f"new {number}", granting(credits, (5, NOW + 9, NOW + 9)), NOW, 1)
    assert [limiter.peek(str(number)).remaining for number in range(10)] == [0] * 5 + [5] * 5
    assert store.evictions == 5


# Long keys.


@both_paths
def test_long_keys_are_told_apart_to_the_last_character(path: str) -> None:
    """And from what begins like them, at the length from which they are kept as digests."""
    limiter = make_limiter(path, fixed_window(1, 60_000), ManualClock(NOW))
    keys = ["ü" * 2_000, "ü" * 1_999 + "u", "\U0001f600" * 1_024]
    for size in range(LONGEST_KEPT - 1, LONGEST_KEPT + 3):
        keys += ["x" * size, "x" * (size - 1) + "ü", "ü" * size]
    for key in keys:
        assert limiter.check("".join(key)), key
    for key in keys:
        assert not limiter.check("".join([*key])), key
    assert len(limiter.store) == len(keys)  # type: ignore[arg-type]
    limiter.reset(keys[0])
    assert limiter.check(keys[0])


@both_paths
def test_a_clash_of_kinds_under_a_long_key_is_told_without_it(path: str) -> None:
    """Four thousand characters of somebody's choice are no part of a message."""
    clock, store = ManualClock(NOW), make_store(path)
    key = "somebody " * 400
    make_limiter(path, gcra(5, 60_000), clock, store).check(key)
    other = make_limiter(path, token_bucket(5, 1), clock, store)
    for call in (other.check, other.peek):
        with pytest.raises(ConfigInvalidError, match=r"^a long key holds the state of gcra"):
            call(key)


# Called back while it makes room.


class Parting:
    """A state that uses the store when it is released."""

    def __init__(self, last_words: Any) -> None:
        self.last_words = last_words

    def __del__(self) -> None:
        self.last_words()


@both_paths
def test_states_that_call_back_while_they_make_way(path: str) -> None:
    """Several at once, each of which checks, resets and sweeps: a key has one record after that,
    and the bounds hold."""
    clock, store = ManualClock(NOW), make_store(path, max_bytes=40_000)
    once = make_limiter(path, fixed_window(1, 60_000), clock, store, prefix="once")
    said: list[int] = []

    def last_words() -> None:
        number = len(said)
        said.append(number)
        once.check(f"called {number % 7}")
        once.reset(f"called {number % 5}")
        store.sweep(clock.now())

    class Kept(Strategy):
        limit = 10

        def check(self, state: Any, now: int, cost: int) -> Outcome[Decision]:
            kept = (Parting(last_words), bytes(cost))
            return Outcome(kept, Decision(True, 10, 9, now, 0), 60_000, True)

    class Sized(Kept):
        def check(self, state: Any, now: int, cost: int) -> Outcome[Decision]:
            return Outcome(Heavy(last_words, cost), Decision(True, 10, 9, now, 0), 60_000, True)

    many, large = (
        make_limiter(path, kind(), clock, store, prefix=kind.__name__) for kind in (Kept, Sized)
    )
    for number in range(300):
        many.check(f"{number}")
        if number % 40 == 0:
            large.check("large", 25_000)
        assert store.stats()["bytes"] <= 40_000
    assert len(said) > 100
    assert not once.check("called 6")
    assert store.evictions > 100


class Heavy(Parting):
    """One that says what it weighs."""

    def __init__(self, last_words: Any, weight: int) -> None:
        super().__init__(last_words)
        self.weight = weight

    def __sizeof__(self) -> int:
        return self.weight


def test_the_default_is_no_bound() -> None:
    """A library does not forget by itself; the service has bounds."""
    limiter = rate_limit("5/minute", clock=ManualClock(NOW))
    flood(limiter, 3_000)
    assert limiter.store.stats()["keys"] == 3_000
    assert limiter.store.stats()["evictions"] == 0
