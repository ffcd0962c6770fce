"""Several limits on a store that writes one key at a time: charged in order, and taken back."""

from __future__ import annotations

import random

import pytest

from penstock import Limit, Limits, ManualClock, Verdict, fixed_window
from penstock.core._steps import Step
from penstock.core._transform import checking
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
