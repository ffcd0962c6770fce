"""MemoryStore with `max_keys`: who makes way, and who needs no room."""

from __future__ import annotations

from penstock import ManualClock, fixed_window, gcra, unlimited
from tests.support.helpers import NOW, both_paths, make_limiter, make_store


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
