"""What holds for stores that write several keys at once, whatever they are made of."""

from __future__ import annotations

import asyncio
import random
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import cycle, permutations
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    Decision,
    ManualClock,
    Store,
    Strategy,
    fixed_window,
    rate_limit,
    token_bucket,
)
from penstock.core._steps import Step
from penstock.core._transform import checking, peeking
from tests.stores.mixtures import STRATEGIES, OracleStore

NOW = 1_700_000_000_000
_WINDOW_MS = 864_000_000
_PATIENCE_S = 60
PLENTY = fixed_window(1_000_000, _WINDOW_MS, "first")


class InTurn(Store):
    """Stores on the same data that serve one request each, so that what one of them remembers is
    out of date."""

    def __init__(self, *stores: Store) -> None:
        self._stores = cycle(stores)

    def apply_all(self, steps: Sequence[Step], now: int) -> list[Any]:
        return next(self._stores).apply_all(steps, now)


class OnALoop(Store):
    """The async calls of a store, for those who do not await."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.new_event_loop()

    def apply_all(self, steps: Sequence[Step], now: int) -> list[Any]:
        return self._loop.run_until_complete(self._store.aapply_all(steps, now))

    def close(self) -> None:
        self._loop.run_until_complete(self._store.aclose())
        self._loop.close()


def charged(store: Store, key: str) -> int:
    """What a key of `PLENTY` was charged with."""
    return PLENTY.limit - store.apply(key, peeking(PLENTY), NOW, 1).remaining


def assert_a_denial_charges_nothing(store: Store) -> None:
    """Neither before nor behind the step that denies; a shadow does not deny."""
    narrow = Step("narrow", checking(fixed_window(2, _WINDOW_MS, "first")))
    first, last = (Step(key, checking(PLENTY)) for key in ("first", "last"))
    for remaining in (1, 0):
        assert store.apply_all([first, narrow, last], NOW)[1].remaining == remaining
    decisions: list[Decision] = store.apply_all([first, narrow, last], NOW)
    assert [decision.allowed for decision in decisions] == [True, False, True]
    assert [charged(store, key) for key in ("first", "last")] == [2, 2]
    shadowed = store.apply_all([first, narrow._replace(shadow=True), last], NOW)
    assert [decision.allowed for decision in shadowed] == [True, False, True]
    assert [charged(store, key) for key in ("first", "last")] == [3, 3]


def assert_a_key_named_twice_is_charged_twice(store: Store) -> None:
    """Its second step is decided on what the first has left, and neither is charged alone."""
    narrow = checking(fixed_window(5, _WINDOW_MS, "first"))
    steps = [Step("k", narrow, 2), Step("other", checking(PLENTY)), Step("k", narrow, 2)]
    assert [decision.remaining for decision in store.apply_all(steps, NOW)] == [3, 999_999, 1]
    assert not all(store.apply_all(steps, NOW))
    assert store.apply("k", narrow, NOW, 1).remaining == 0
    assert charged(store, "other") == 1


def assert_foreign_state_charges_nothing(store: Store) -> None:
    """The error names the key, and the keys beside it are as they were."""
    store.apply("foreign", checking(token_bucket(5, 1)), NOW, 1)
    steps = [Step(key, checking(PLENTY)) for key in ("a", "foreign", "b")]
    for _ in range(2):
        with pytest.raises(ConfigInvalidError, match="'foreign' holds the state of") as caught:
            store.apply_all(steps, NOW)
        assert "charged" not in str(caught.value)
        assert [charged(store, key) for key in "ab"] == [0, 0]
    mixed = [Step("c", checking(PLENTY)), Step("c", checking(token_bucket(5, 1)))]
    with pytest.raises(ConfigInvalidError, match="'c' holds the state of something else"):
        store.apply_all(mixed, NOW)
    assert charged(store, "c") == 0


def assert_what_was_admitted_was_charged(stores: Sequence[Store], seed: int = 1) -> None:
    """Tasks that ask for one key, for several, and for several as one, on keys that they share:
    in the end every key was charged with what was admitted, to the unit."""
    due: Counter[str] = Counter()
    strategies = {f"k{n}": fixed_window(20 + 15 * n, _WINDOW_MS, "first") for n in range(6)}
    checks = {key: checking(strategy) for key, strategy in strategies.items()}

    async def ask(store: Store, rng: random.Random) -> None:
        keys = rng.sample(list(checks), rng.randint(1, 4))
        way = rng.random()
        if way < 0.2:
            if (await store.aapply(keys[0], checks[keys[0]], NOW, 1)).allowed:
                due[keys[0]] += 1
        elif way < 0.3:
            decisions = await store.aapply_many(keys, checks["k0"], NOW, 1)
            due.update(key for key, d in zip(keys, decisions, strict=True) if d.allowed)
        else:
            steps = [Step(key, checks[key], rng.randint(0, 2), rng.random() < 0.2) for key in keys]
            decisions = await store.aapply_all(steps, NOW)
            pairs = list(zip(steps, decisions, strict=True))
            if all(step.shadow or decision.allowed for step, decision in pairs):
                for step, decision in pairs:
                    due[step.key] += step.cost * decision.allowed

    async def main() -> None:
        rng = random.Random(seed)
        crowd = [ask(store, random.Random(rng.random())) for _ in range(120) for store in stores]
        await asyncio.gather(*crowd)
        for key, strategy in strategies.items():
            decision = await stores[0].aapply(key, peeking(strategy), NOW, 1)
            assert strategy.limit - decision.remaining == due[key], key
        for store in stores:
            await store.aclose()

    asyncio.run(main())
    assert sum(due.values()) > 100


def assert_a_look_sees_both_or_neither(writer: Store, reader: Store) -> None:
    """Somebody charges two keys together; whoever looks at both finds them alike, always."""
    keys = [f"{name}-{uuid.uuid4().hex}" for name in ("last", "first")]
    steps = [Step(key, checking(PLENTY)) for key in keys]
    is_over = threading.Event()

    def write() -> None:
        while not is_over.is_set():
            writer.apply_all(steps, NOW)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    seen = set()
    try:
        # Looked at in the order in which they are written, and in the other.
        looks = [[step._replace(cost=0) for step in order] for order in (steps, steps[::-1])]
        for number in range(2_000):
            one, other = reader.apply_all(looks[number % 2], NOW)
            assert one.remaining == other.remaining
            seen.add(one.remaining)
            if number > 100 and len(seen) > 20:
                break
    finally:
        is_over.set()
        thread.join(_PATIENCE_S)
    assert len(seen) > 3, "nobody has written meanwhile"


_RACES = [("pause", "reset"), ("pause", "cancel"), ("pause", "cancel", "reset"), ("pause", "check")]


def assert_pauses_race_as_if_in_turn(store: Store, rounds: int = 3) -> None:
    """What is paused, reset, given back and asked by threads at once is as if one had come after
    the other, in some order; and unless it was reset, nothing is admitted during the pause."""
    for name, strategy in STRATEGIES.items():
        for race in _RACES:
            possible = [_raced(OracleStore(), strategy, order, "k") for order in permutations(race)]
            for number in range(rounds):
                key = f"{name}-{'-'.join(race)}-{number}"
                assert _raced(store, strategy, race, key, at_once=True) in possible
            if "reset" not in race:
                assert not any(decision.allowed for told in possible for decision in told[:3])


def _raced(
    store: Store, strategy: Strategy, race: Sequence[str], key: str, at_once: bool = False
) -> list[Decision]:
    """What there is of a key afterwards: three times during the pause, and after it."""
    clock, until = ManualClock(NOW), NOW + 2_000
    limiter = rate_limit(strategy, store=store, clock=clock, prefix="race")
    charge = limiter.reserve(key, 2)
    calls: dict[str, Callable[[], object]] = {
        "pause": lambda: limiter.pause(key, until),
        "reset": lambda: limiter.reset(key),
        "cancel": charge.cancel,
        "check": lambda: limiter.check(key),
    }
    if at_once:
        start = threading.Barrier(len(race))

        def run(call: Callable[[], object]) -> None:
            start.wait(_PATIENCE_S)
            call()

        threads = [threading.Thread(target=run, args=(calls[name],)) for name in race]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_PATIENCE_S)
    else:
        for name in race:
            calls[name]()
    told = []
    for instant in (NOW, NOW + 900, until - 1, until + 1_500):
        clock.set(instant)
        told.append(limiter.peek(key))
    return told
