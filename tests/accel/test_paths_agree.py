"""The compiled path and the interpreted one give the same answer to the same question.

Random timelines run through a limiter on each, side by side; every field of every decision must
match, and so must what the two stores then hold.
"""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    Decision,
    Limiter,
    ManualClock,
    Strategy,
    fixed_window,
    gcra,
    sliding_window,
)
from penstock.core import native
from penstock.core._register import find_strategy, registered
from penstock.stores.memory._table import RECLAIM_FLOOR
from tests.support.effort import count
from tests.support.helpers import (
    HUGE,
    KINDS,
    NOW,
    Quota,
    draw_strategy,
    draw_timeline,
    make_limiter,
    make_store,
    needs_native,
)

pytestmark = needs_native

# Of each kind.
TIMELINES = count(2_000, 10_000)


class Pair:
    """A strategy on both paths, on one clock."""

    def __init__(self, *bounds: Any) -> None:
        self.clock = ManualClock(NOW)
        self.stores = [make_store(path, *bounds) for path in ("interpreted", "native")]

    def limiters(self, strategy: Strategy) -> list[Limiter]:
        return [
            make_limiter(path, strategy, self.clock, store)
            for path, store in zip(("interpreted", "native"), self.stores, strict=True)
        ]

    def assert_same_stores(self) -> None:
        plain, compiled = self.stores
        assert len(plain) == len(compiled)
        assert (plain.evictions, plain.refusals) == (compiled.evictions, compiled.refusals)


def fields(decision: Decision) -> tuple[Any, ...]:
    numbers = (decision.limit, decision.remaining, decision.reset_at, decision.retry_after_ms)
    return (decision.allowed, *numbers)


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_agrees_over_random_timelines(kind: str) -> None:
    """Over 10,000 timelines in all: random parameters, costs up to the largest, jumps both ways."""
    rng = random.Random(f"agree/{kind}")
    for batch in range(TIMELINES // 100):
        pair = Pair()
        for number in range(100):
            strategy = draw_strategy(kind, rng)
            plain, compiled = pair.limiters(strategy)
            key = f"{batch}:{number}"
            for now, cost in draw_timeline(strategy, rng, 10):
                pair.clock.set(now)
                seen, wanted = compiled.check(key, cost), plain.check(key, cost)
                assert seen == wanted, (strategy, now, cost)
        pair.assert_same_stores()


@pytest.mark.parametrize("kind", KINDS)
def test_long_histories_agree(kind: str) -> None:
    """A key that is used for long fills, prunes and refills its state the same way."""
    rng = random.Random(f"long/{kind}")
    for _ in range(40):
        strategy, pair = draw_strategy(kind, rng), Pair()
        plain, compiled = pair.limiters(strategy)
        for now, cost in draw_timeline(strategy, rng, 400, huge=False):
            pair.clock.set(now)
            assert compiled.check("k", cost) == plain.check("k", cost), (strategy, now, cost)
        assert compiled.peek("k") == plain.peek("k")


@pytest.mark.parametrize("start", [0, 1, 1_000, 2**41 - 5_000, 2**46 - 10**7])
@pytest.mark.parametrize("kind", KINDS)
def test_the_ends_of_time_agree(kind: str, start: int) -> None:
    """From the first ms of the epoch to the last that a clock may show."""
    rng = random.Random(f"ends/{kind}/{start}")
    for _ in range(100):
        strategy, pair = draw_strategy(kind, rng), Pair()
        plain, compiled = pair.limiters(strategy)
        for _ in range(12):
            pair.clock.set(start + rng.randrange(10_000))
            cost = rng.choice((1, 1, strategy.limit, HUGE, rng.randint(1, strategy.limit)))
            assert compiled.check("k", cost) == plain.check("k", cost), (strategy, pair.clock)


def draw_operation(rng: random.Random, limit: int) -> tuple[str, tuple[Any, ...]]:
    key = f"key {rng.randrange(6)}"
    cost = rng.choice((1, 1, 1, 2, rng.randint(1, limit), HUGE))
    return rng.choice(
        (
            ("check", (key, cost)),
            ("check", (key, cost)),
            ("check", (key, 1)),
            ("check_many", ([f"key {rng.randrange(6)}" for _ in range(3)], cost)),
            ("peek", (key,)),
            ("forecast", (key, cost)),
            ("reset", (key,)),
        )
    )


@pytest.mark.parametrize("kind", [*KINDS, "custom"])
def test_all_operations_agree_in_any_order(kind: str) -> None:
    """check, check_many, peek, forecast and reset, mixed; and the stores' sizes and sweeps."""
    rng = random.Random(f"operations/{kind}")
    for _ in range(150):
        strategy = Quota(7, 3_000) if kind == "custom" else draw_strategy(kind, rng)
        pair = Pair()
        plain, compiled = pair.limiters(strategy)
        for now, _ in draw_timeline(strategy, rng, 30):
            pair.clock.set(now)
            name, arguments = draw_operation(rng, strategy.limit)
            if name == "forecast" and kind == "custom":
                continue
            seen = getattr(compiled, name)(*arguments)
            assert seen == getattr(plain, name)(*arguments), (strategy, now, name, arguments)
            if rng.random() < 0.1:
                pair.assert_same_stores()
            if rng.random() < 0.1:
                swept = [store.sweep(now) for store in pair.stores]
                assert swept[0] == swept[1]


@pytest.mark.parametrize("kind", KINDS)
def test_many_keys_expire_alike(kind: str) -> None:
    """Above the floor from which memory is reclaimed, jumps behind the horizon included."""
    rng = random.Random(f"reclaim/{kind}")
    cls, pair = find_strategy(kind), Pair()
    assert cls is not None
    strategy = cls.per(3, 1_700) if cls.has_per() else cls(limit=3, period="hour")
    plain, compiled = pair.limiters(strategy)
    now = NOW
    for step in range(12_000):
        dice = rng.random()
        if dice < 0.01:
            now = max(NOW, now - rng.randint(1, 4_000))
        elif dice < 0.02:
            now += rng.randint(1, 3_000)
        pair.clock.set(now)
        key, cost = str(rng.randrange(4_000)), rng.choice((1, 1, 2))
        assert compiled.check(key, cost) == plain.check(key, cost), (step, now, key)
        if step % 500 == 0:
            pair.assert_same_stores()
    assert max(map(len, pair.stores)) > 0
    assert RECLAIM_FLOOR < 4_000


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_store_that_denies_denies_alike(kind: str) -> None:
    """With overflow="deny" even the refusals of newcomers carry the same retry."""
    rng = random.Random(f"deny/{kind}")
    for _ in range(20):
        strategy, pair = draw_strategy(kind, rng), Pair(8, "deny")
        plain, compiled = pair.limiters(strategy)
        for now, cost in draw_timeline(strategy, rng, 150):
            pair.clock.set(now)
            key = str(rng.randrange(20))
            assert compiled.check(key, cost) == plain.check(key, cost), (strategy, now, cost)
            assert compiled.peek(key) == plain.peek(key)
            assert compiled.forecast(key, cost) == plain.forecast(key, cost)
            pair.assert_same_stores()


@pytest.mark.parametrize("kind", [*KINDS, "custom"])
def test_a_full_store_that_evicts_lets_go_of_the_same_keys(kind: str) -> None:
    """Ranks, second chances and all: every answer is the same, so what is remembered is."""
    rng = random.Random(f"evict/{kind}")
    evictions = 0
    for most in (1, 2, 5, 20, 50) * 6:
        strategy = Quota(5, 3_000) if kind == "custom" else draw_strategy(kind, rng)
        pair = Pair(most, "evict")
        plain, compiled = pair.limiters(strategy)
        other = pair.limiters(Quota(2, 500))
        for now, cost in draw_timeline(strategy, rng, 400):
            pair.clock.set(now)
            # Some keys are asked for again and again, others hardly ever.
            key = f"key {min(rng.randrange(most * 4 + 3), rng.randrange(most * 4 + 3))}"
            call = rng.choice(("check", "check", "check", "check_twice", "peek", "reset", "other"))
            if call == "other":
                assert other[0].check(f"q{key}") == other[1].check(f"q{key}")
            elif call in ("peek", "reset"):
                assert getattr(plain, call)(key) == getattr(compiled, call)(key)
            else:
                for _ in range(2 if call == "check_twice" else 1):
                    assert plain.check(key, cost) == compiled.check(key, cost), (strategy, now)
            assert pair.stores[0].evictions == pair.stores[1].evictions
        pair.assert_same_stores()
        evictions += pair.stores[0].evictions
    assert evictions > 500


def test_an_expiry_that_packs_the_table_keeps_the_order_of_the_rest() -> None:
    """The compiled table moves its records then; the next to go are the same all the same."""
    pair = Pair(6_000, "evict")
    brief, lasting = pair.limiters(gcra(1, 1_000)), pair.limiters(fixed_window(3, 10**9))
    for number in range(6_000):
        for limiter in brief if number % 5 else lasting:
            limiter.check(str(number))
    for number in range(0, 6_000, 15):
        for limiter in lasting:
            assert limiter.check(str(number), 2)
            assert number % 2 or not limiter.check(str(number))
    pair.clock.advance(1_000)
    assert [store.sweep(pair.clock.now()) for store in pair.stores] == [4_800, 4_800]
    for number in range(5_500):
        for limiter in lasting:
            limiter.check(f"new {number}")
    pair.assert_same_stores()
    for number in range(0, 6_000, 5):
        assert lasting[0].peek(str(number)) == lasting[1].peek(str(number)), number


@pytest.mark.parametrize("held", [*KINDS, "custom"])
@pytest.mark.parametrize("asked", [*KINDS, "custom"])
def test_a_clash_of_kinds_is_refused_in_the_same_words(held: str, asked: str) -> None:
    """A live state is never read by a strategy of another kind; an expired one is no obstacle."""
    strategies: dict[str, Strategy] = {cls.name: _five(cls) for cls in registered()}
    strategies["custom"] = Quota(5, 1_000)
    pair, texts = Pair(), []
    for first, second in zip(
        pair.limiters(strategies[held]), pair.limiters(strategies[asked]), strict=True
    ):
        first.check("k", 5)
        for call in (second.check, second.peek):
            if held == asked:
                assert not call("k").allowed
                continue
            with pytest.raises(ConfigInvalidError, match="prefix each") as caught:
                call("k")
            texts.append(str(caught.value))
        assert not first.check("k").allowed
    assert len(set(texts)) <= 1
    pair.clock.advance(3_600_000)
    later = [limiter.check("k", 2) for limiter in pair.limiters(strategies[asked])]
    assert later[0] == later[1]
    assert later[0].allowed


def _five(cls: type[Strategy]) -> Strategy:
    return cls.per(5, 1_000) if cls.has_per() else cls(limit=5, period="hour")


class OtherQuota(Quota):
    """The same, by another name."""

    name = "other quota"


def test_two_custom_strategies_clash_too() -> None:
    """Custom kinds are told apart by name on both paths."""
    for path in ("interpreted", "native"):
        store, clock = make_store(path), ManualClock(NOW)
        make_limiter(path, Quota(), clock, store).check("k")
        with pytest.raises(ConfigInvalidError, match="holds the state of Quota"):
            make_limiter(path, OtherQuota(), clock, store).check("k")


class Doubled(gcra(5, 1_000).__class__):  # type: ignore[misc]
    """A subclass of a built-in that changes its mind about the price."""

    def check(self, state: Any, now: int, cost: int) -> Any:
        return super().check(state, now, 2 * cost)


def test_a_subclass_that_overrides_check_is_obeyed_on_both_paths() -> None:
    """An accelerator that no longer stands for `check` must not be taken in its place."""
    pair = Pair()
    for limiter in pair.limiters(Doubled(10, 1_000)):
        assert [limiter.check("k").allowed for _ in range(6)] == [True] * 5 + [False]


class Doubling:
    """The same change of mind, as a mixin."""

    def check(self, state: Any, now: int, cost: int) -> Any:
        return super().check(state, now, 2 * cost)  # type: ignore[misc]


class Mixed(Doubling, gcra(5, 1_000).__class__):  # type: ignore[misc]
    pass


class MixedAgain(Mixed):
    pass


@pytest.mark.parametrize("kind", [Mixed, MixedAgain])
def test_a_mixin_that_overrides_check_is_obeyed_on_both_paths(kind: type[Strategy]) -> None:
    pair = Pair()
    strategy = kind(10, 1_000)  # type: ignore[call-arg]
    assert strategy.name == "Mixed"
    for limiter in pair.limiters(strategy):
        assert [limiter.check("k").allowed for _ in range(6)] == [True] * 5 + [False]


def test_a_family_of_strategies_may_share_an_unfinished_base() -> None:
    """Which has no name to hand down: their states are not each other's."""

    class Unfinished(Strategy):
        pass

    class One(Unfinished):
        def check(self, state: Any, now: int, cost: int) -> Any:
            raise NotImplementedError

    class Two(Unfinished):
        def check(self, state: Any, now: int, cost: int) -> Any:
            raise NotImplementedError

    assert One.name.endswith("One")
    assert Two.name.endswith("Two")


def test_a_subclass_that_leaves_check_alone_is_still_accelerated() -> None:
    class Named(gcra(5, 1_000).__class__):  # type: ignore[misc]
        def __repr__(self) -> str:
            return "named"

    assert Named(5, 1_000).is_accelerated
    assert Named.name == "gcra"


def test_windows_with_other_ticks_on_one_key_agree_and_come_to_an_end() -> None:
    """Two that share a key by mistake read each other's ticks; taken at its word, the finer one's
    would lie far beyond the end of time."""
    pair = Pair()
    fine = pair.limiters(sliding_window(100, 1_000, buckets=1_000))
    coarse = pair.limiters(sliding_window(100, 86_400_000, buckets=1))
    for limiters in (fine, coarse, fine, coarse):
        plain, compiled = limiters
        assert compiled.check("k") == plain.check("k")
        assert compiled.peek("k") == plain.peek("k")
        assert compiled.forecast("k") == plain.forecast("k")
    assert compiled.peek("k").reset_at <= 2**46 + 2 * 86_400_000
    pair.assert_same_stores()


def test_odd_but_valid_keys_agree() -> None:
    """Unicode of every width, subclasses of str, and the longest key there is."""

    class Name(str):
        __slots__ = ()

    pair = Pair()
    plain, compiled = pair.limiters(fixed_window(2, 1_000))
    keys = [
        "é",
        "鍵",
        "🔑",
        "a\x00b",
        " ",
        "x" * 4096,
        "鍵" * 1365,
        Name("sub"),
        "sub",
        "\xff",
        "ÿ",
    ]
    for key in keys * 3:
        assert compiled.check(key) == plain.check(key), key
    pair.assert_same_stores()


def test_keys_whose_text_is_equal_are_one_key() -> None:
    """Identity of the string object does not matter, only its text."""
    for path in ("interpreted", "native"):
        limiter = make_limiter(path, fixed_window(1, 1_000), ManualClock(NOW))
        assert limiter.check("".join(["a", "b"])).allowed
        assert not limiter.check("".join(["a", "b"])).allowed


def test_a_prefix_is_joined_alike() -> None:
    """A limiter with a prefix and one that spells it out share a key, on both paths."""
    for path in ("interpreted", "native"):
        store, clock = make_store(path), ManualClock(NOW)
        make_limiter(path, fixed_window(1, 1_000), clock, store, prefix="api").check("k")
        assert not make_limiter(path, fixed_window(1, 1_000), clock, store).check("api:k").allowed


def test_decisions_of_both_kinds_look_the_same() -> None:
    """Equality, hash, repr, pickling, pattern matching and immutability."""
    decision = Decision(True, 5, 4, NOW, 0)
    assert decision == Decision(True, 5, 4, NOW, 0)
    assert decision != Decision(False, 5, 4, NOW, 1)
    assert decision != (True, 5, 4, NOW, 0)
    assert hash(decision) == hash(Decision(True, 5, 4, NOW, 0))
    assert pickle.loads(pickle.dumps(decision)) == decision
    assert repr(decision) == (
        f"Decision(allowed=True, limit=5, remaining=4, reset_at={NOW}, retry_after_ms=0)"
    )
    match decision:
        case Decision(allowed, limit, remaining, reset_at, retry):
            assert (allowed, limit, remaining, reset_at, retry) == fields(decision)
    with pytest.raises(AttributeError):
        decision.limit = 6  # type: ignore[misc]


def test_the_native_module_is_the_one_in_use() -> None:
    """This file compares two paths, so there must be two."""
    assert native is not None
    stores = [make_store(path) for path in ("interpreted", "native")]
    assert type(stores[0].table) is not type(stores[1].table)
    assert type(make_limiter("native", gcra(1, 1))).__name__ == "_AcceleratedLimiter"
    assert type(make_limiter("interpreted", gcra(1, 1))) is Limiter
