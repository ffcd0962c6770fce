"""Credits in a store against the spender, and the compiled kernel against the interpreted one."""

from __future__ import annotations

import random
from typing import Any

import pytest

from penstock import Decision, ManualClock
from penstock.core._validation import MAX_SPAN_MS
from penstock.leasing import LeaseSpender
from penstock.leasing._credits import Credits, granting
from tests.support.helpers import NOW, PATHS, make_limiter, make_store, needs_native

SEEDS = range(40)


def draw_events(rng: random.Random, window_ms: int) -> list[tuple[int, int | None, int]]:
    """(now, cost or None for a grant, capacity): a clock that never goes back."""
    now, events = NOW, []
    for _ in range(120):
        now += rng.choice((0, 0, 1, rng.randint(1, window_ms // 3), rng.randint(1, window_ms)))
        grant = rng.random() < 0.3
        events.append((now, None if grant else rng.choice((1, 1, 2, 5, 30)), rng.randint(0, 12)))
    return events


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("coupled", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_credits_follow_the_spender(seed: int, coupled: bool, path: str) -> None:
    """The same grants and spends, the same answers: of one window, and across its end."""
    rng, window_ms = random.Random(seed), 1_000
    clock = ManualClock(NOW)
    credits, store = Credits(20, aligned=coupled), make_store(path)
    local = make_limiter(path, credits, clock, store)
    spender = LeaseSpender(20, window_ms, coupled)
    for now, cost, capacity in draw_events(rng, window_ms):
        clock.set(now)
        if cost is None:
            end = (now // window_ms + 1) * window_ms
            # A lease is taken after a spend has failed, and that drops what is void.
            spender.spend(now, 2**40)
            spender.apply_lease(capacity, end)
            until = end if coupled else now + MAX_SPAN_MS
            held = store.apply("key", granting(credits, (capacity, end, until)), now, 1)
            assert held == spender.credits
        else:
            decision = local.check("key", cost)
            assert (decision if decision.allowed else None) == spender.spend(now, cost)
            assert decision.allowed or decision.remaining == spender.credits


@needs_native
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_kernel_agrees_with_the_strategy(seed: int, aligned: bool) -> None:
    """Field by field, with peeks, forecasts, jumps back and windows of any end in between."""
    rng = random.Random(seed)
    clock = ManualClock(NOW)
    credits = Credits(50, aligned=aligned)
    sides = []
    for path in ("interpreted", "native"):
        store = make_store(path)
        sides.append((make_limiter(path, credits, clock, store), store))
    for _ in range(300):
        clock.set(max(0, clock.now() + rng.choice((0, 0, 1, 7, 400, -3, -900))))
        step = draw_step(rng, clock.now())
        answers = [play(step, limiter, store, credits, clock) for limiter, store in sides]
        assert answers[0] == answers[1], step


def draw_step(rng: random.Random, now: int) -> tuple[str, str, Any]:
    key, dice = rng.choice("ab"), rng.random()
    if dice < 0.3:
        fresh = (rng.randint(0, 9), now + rng.choice((500, 1000)), now + rng.randint(-5, 1_500))
        return "grant", key, fresh
    verb = "check" if dice < 0.8 else "peek" if dice < 0.9 else "forecast"
    return verb, key, rng.choice((1, 1, 2, 6))


def play(
    step: tuple[str, str, Any], limiter: Any, store: Any, credits: Credits, clock: ManualClock
) -> Any:
    verb, key, what = step
    if verb == "grant":
        return store.apply(key, granting(credits, what), clock.now(), 1)
    return limiter.peek(key) if verb == "peek" else getattr(limiter, verb)(key, what)


def test_a_grant_whose_window_has_ended_adds_nothing() -> None:
    """It took too long on its way."""
    store, credits = make_store(PATHS[-1]), Credits(10)
    assert store.apply("key", granting(credits, (5, 1_000, 900)), 950, 1) == 0
    assert len(store) == 0


def test_of_two_leases_of_a_window_the_earlier_end_stands() -> None:
    """Each `until` is safe for its own credits; the earlier one is safe for both."""
    credits = Credits(10)
    outcome = credits.grant((3, 1_000, 880), 500, (4, 1_000, 890))
    assert (outcome.state, outcome.result) == ((7, 1_000, 880), 7)


def test_aligned_credits_of_another_window_are_void() -> None:
    """Even if by this node's reckoning that window has not ended, as after a jump of the store."""
    assert Credits(10).grant((3, 1_000, 880), 500, (4, 2_000, 1_890)).state == (4, 2_000, 1_890)
    rolling = Credits(10, aligned=False)
    assert rolling.grant((3, 1_000, 880), 500, (4, 2_000, 1_890)).state == (7, 2_000, 880)


@pytest.mark.parametrize(
    ("end", "granted_at", "state"),
    [
        (1_400, 999, (7, 1_400, 880)),
        (1_400, 1_000, (4, 1_400, 1_300)),
        (900, 400, (4, 900, 1_300)),
        (1_000, 999, (7, 1_000, 880)),
    ],
    ids=["had not ended", "had ended", "a clock went back", "the same"],
)
def test_the_instant_of_a_grant_tells_whether_held_credits_are_still_good(
    end: int, granted_at: int, state: tuple[int, int, int]
) -> None:
    """Where it is not known whether windows slide; both then end with the earlier one."""
    assert Credits(10).grant((3, 1_000, 880), 500, (4, end, 1_300), granted_at).state == state


def test_a_missing_credit_is_no_denial() -> None:
    """What a near tier says when it lacks credits: how many it has, and to ask at once."""
    assert Credits(10).check((2, 1_000, 900), 500, 3).result == Decision(False, 10, 2, 501, 1)
