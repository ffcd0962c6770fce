"""Several limits on a store that writes one key at a time: charged in order, and taken back."""

from __future__ import annotations

import random

import pytest

from penstock import Limit, Limits, ManualClock, Strategy, Verdict, fixed_window, rate_limit
from penstock.core._steps import Step
from penstock.core._transform import checking, peeking
from tests.conformance.broken_stores import DictStore
from tests.stores.mixtures import START, STRATEGIES, OracleStore
from tests.support.effort import count

STEPS = (0, 0, 1, 3, 20, 90, 130, 400, 1_100, -50, -700)
LATER_MS = (0, 37, 600, 2_000)


def _all_limits(store: DictStore, clock: ManualClock, rng: random.Random) -> Limits:
    limits = {
        name: Limit(strategy, optional=True, shadow=rng.random() < 0.25)
        for name, strategy in STRATEGIES.items()
    }
    return Limits(limits, store=store, clock=clock)


def _told(limits: Limits, clock: ManualClock, keys: dict[str, str]) -> list[Verdict]:
    """What there is of each key, now and later."""
    now, told = clock.now(), []
    for later in LATER_MS:
        clock.set(now + later)
        told.append(limits.peek(keys))
    clock.set(now)
    return told


@pytest.mark.parametrize("seed", range(count(20, 200)))
def test_a_denied_request_leaves_every_limit_as_it_was_whatever_the_clock_did(seed: int) -> None:
    """Also where a clock that went back has units counted in a window that is ahead of it."""
    rng = random.Random(seed)
    clock = ManualClock(START + rng.randrange(1_000_000))
    limits = _all_limits(DictStore(), clock, rng)
    denied = 0
    for _ in range(150):
        clock.set(clock.now() + rng.choice(STEPS))
        keys = dict.fromkeys(rng.sample(list(STRATEGIES), rng.randint(2, 4)), "k")
        before = _told(limits, clock, keys)
        if not limits.check(keys, {name: rng.choice((0, 1, 1, 2, 3)) for name in keys}):
            denied += 1
            assert _told(limits, clock, keys) == before
    assert denied


def test_a_shadow_before_another_step_of_its_key_is_charged_first() -> None:
    """Whether a store can write several keys or not."""
    one = checking(fixed_window(1, 60_000))
    steps = [Step("k", one, shadow=True), Step("other", one), Step("k", one)]
    answers = [store.apply_all(steps, START) for store in (OracleStore(), DictStore())]
    assert [decision.allowed for decision in answers[0]] == [True, True, False]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("seed", range(count(10, 100)))
def test_shadows_are_charged_as_by_a_store_that_writes_all_at_once(seed: int) -> None:
    """And so is everything else: from the highest instant on that a clock has shown, each key has
    what it would have if the requests that were denied had never been made."""
    rng = random.Random(seed)
    at_once, in_order = OracleStore(), DictStore()
    now = START + rng.randrange(1_000_000)
    shadows = 0
    for _ in range(150):
        now += rng.choice([step for step in STEPS if step >= 0])
        names = rng.sample(list(STRATEGIES), rng.randint(2, 4))
        names += rng.sample(names, rng.choice((0, 0, 1)))
        steps = [
            Step(name, checking(STRATEGIES[name]), rng.randint(0, 3), rng.random() < 0.35)
            for name in names
        ]
        told = at_once.apply_all(steps, now), in_order.apply_all(steps, now)
        admitted = [all(s.shadow or d for s, d in zip(steps, each, strict=True)) for each in told]
        assert admitted[0] == admitted[1]
        shadows += admitted[0] and not all(told[0])
        for name, strategy in STRATEGIES.items():
            for later in LATER_MS:
                peek = peeking(strategy)
                left = [s.apply(name, peek, now + later, 1).remaining for s in (at_once, in_order)]
                assert left[0] == left[1], (name, later)
    assert shadows


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=repr)
def test_what_is_taken_back_from_a_new_key_leaves_no_more_than_the_instant(
    strategy: Strategy,
) -> None:
    """A clock that goes back behind it may be served less, and all again when it is there."""
    store, check = DictStore(), checking(strategy)
    never = Step("never", checking(fixed_window(1, 60_000)), 2)
    assert not all(store.apply_all([Step("k", check, 2), never], START))
    store.apply("k", peeking(strategy), START - 700, 1)
    assert store.apply("k", check, START, strategy.limit).allowed


@pytest.mark.parametrize("name", [name for name in STRATEGIES if not STRATEGIES[name].is_held])
@pytest.mark.parametrize("seed", range(count(20, 200)))
def test_after_a_denial_a_clock_that_goes_back_finds_at_most_one_limit_more(
    name: str, seed: int
) -> None:
    """A denied request replaces a state that had expired. A store that is atomic keeps it."""
    rng, strategy = random.Random(seed), STRATEGIES[name]
    used = [(rng.randrange(900), rng.randint(1, 3)) for _ in range(rng.randint(1, 6))]
    ahead = rng.choice((1_000, 1_500, 2_500, 90_000))
    check, denying = checking(strategy), checking(fixed_window(1, 10**9))
    admitted = []
    for store in (OracleStore(), DictStore()):
        store.apply("spent", denying, START, 1)
        units, now = 0, START
        for gap, cost in used:
            now += gap // 10
            units += cost * store.apply("k", check, now, cost).allowed
        steps = [Step("k", check), Step("spent", denying)]
        assert not store.apply_all(steps, START + ahead)[1].allowed
        while store.apply("k", check, now, 1).allowed:
            units += 1
        admitted.append(units)
    assert admitted[1] <= admitted[0] + strategy.limit


@pytest.mark.parametrize("name", [name for name in STRATEGIES if not STRATEGIES[name].is_held])
def test_a_charge_from_before_a_reset_gives_back_at_most_its_own_units(name: str) -> None:
    """If another process has reset the key: the bound is one limit, and what was open then."""
    strategy = STRATEGIES[name]
    clock = ManualClock(START)
    limiter = rate_limit(strategy, store=DictStore(), clock=clock)
    charges = [limiter.reserve("k") for _ in range(3)]
    limiter.store.reset("k")
    used = 0
    for charge in (*charges, *charges):
        while limiter.check("k"):
            used += 1
        charge.cancel()
    while limiter.check("k"):
        used += 1
    assert used <= strategy.limit + len(charges)
