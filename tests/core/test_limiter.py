"""The limiter: the calls and their twins, the clock, the key's name, closing, and custom parts."""

from __future__ import annotations

import contextlib
import inspect
import random
from typing import Any

import pytest

from penstock import (
    Decision,
    Forecast,
    Limiter,
    ManualClock,
    MemoryStore,
    Outcome,
    Store,
    Strategy,
    UnsupportedError,
    fixed_window,
    gcra,
    rate_limit,
    sliding_window,
    unlimited,
)
from tests.conformance.broken_stores import AsyncOnlyStore, DictStore
from tests.support.helpers import (
    KINDS,
    NOW,
    Quota,
    awaited,
    both_paths,
    draw_strategy,
    draw_timeline,
    make_limiter,
    make_store,
    run,
)


class Closable(MemoryStore):
    """Counts how often it was closed."""

    closes = 0

    def close(self) -> None:
        self.closes += 1
        super().close()


@both_paths
@pytest.mark.parametrize("kind", [*KINDS, "custom"])
def test_the_twins_decide_the_same(path: str, kind: str) -> None:
    """Whatever is called on one limiter and awaited on another gets the same answer."""
    rng = random.Random(f"twins/{kind}")

    async def compare() -> None:
        for _ in range(20):
            strategy = Quota(9) if kind == "custom" else draw_strategy(kind, rng)
            clock = ManualClock(NOW)
            called, awaited = (make_limiter(path, strategy, clock) for _ in range(2))
            for now, cost in draw_timeline(strategy, rng, 20):
                clock.set(now)
                key = rng.choice("ab")
                assert called.check(key, cost) == await awaited.acheck(key, cost)
                assert called.peek(key) == await awaited.apeek(key)
                many = [key, "c", key]
                assert called.check_many(many, cost) == await awaited.acheck_many(many, cost)
                if kind != "custom":
                    assert called.forecast(key, cost) == await awaited.aforecast(key, cost)
                if rng.random() < 0.1:
                    called.reset(key)
                    await awaited.areset(key)

    run(compare())


@both_paths
@pytest.mark.parametrize("kind", KINDS)
def test_check_many_is_one_check_per_key_in_order(path: str, kind: str) -> None:
    """Repeated keys included; any iterable will do."""
    rng = random.Random(f"many/{kind}")
    for _ in range(50):
        strategy, clock = draw_strategy(kind, rng), ManualClock(NOW)
        one, many = (make_limiter(path, strategy, clock) for _ in range(2))
        for now, cost in draw_timeline(strategy, rng, 8):
            clock.set(now)
            keys = [rng.choice("abc") for _ in range(rng.randrange(6))]
            assert many.check_many(iter(keys), cost) == [one.check(key, cost) for key in keys]


@both_paths
def test_peek_and_forecast_write_nothing(path: str) -> None:
    """Asking any number of times leaves the store empty and the quota whole."""
    store = make_store(path)
    limiter = make_limiter(path, sliding_window(3, 1_000), ManualClock(NOW), store)
    for _ in range(10):
        assert limiter.peek("k") == Decision(True, 3, 3, NOW + 1_100, 0)
        assert limiter.forecast("k") == Forecast(3, NOW, NOW)
    assert len(store) == 0
    assert limiter.check("k", 3).allowed


@both_paths
def test_a_reset_forgets_one_key(path: str) -> None:
    """And only that one; sync and async."""
    limiter = make_limiter(path, gcra(1, 60_000), ManualClock(NOW), prefix="p")
    limiter.check_many(["a", "b", "c"])
    limiter.reset("a")
    run(awaited(limiter.areset, "b"))
    assert [d.allowed for d in limiter.check_many(["a", "b", "c"])] == [True, True, False]


@both_paths
def test_prefix_and_key_are_joined_by_a_colon(path: str) -> None:
    """Without a prefix the key stands alone; two prefixes never meet."""
    store, clock = make_store(path), ManualClock(NOW)

    def admits(prefix: str, key: str) -> bool:
        limiter = make_limiter(path, fixed_window(1, 1_000), clock, store, prefix=prefix)
        return limiter.check(key).allowed

    assert admits("a", "b:c")
    assert not admits("a:b", "c")
    assert not admits("", "a:b:c")
    assert admits("a", "c")
    assert admits("", "c")
    assert not admits("", "c")


def test_the_name_that_reaches_a_store() -> None:
    """Custom stores see `prefix:key` in every call."""
    store = DictStore()
    limiter = rate_limit("5/s", store=store, clock=ManualClock(NOW), prefix="api")
    limiter.check("k")
    limiter.check_many(["l"])
    assert sorted(store.states) == ["api:k", "api:l"]
    limiter.reset("k")
    assert sorted(store.states) == ["api:l"]


def test_a_store_is_a_class_with_one_method() -> None:
    """`apply` alone gives check, check_many, peek, forecast, reset and acquire."""
    clock = ManualClock(NOW)
    limiter = rate_limit(gcra(2, 1_000), store=DictStore(), clock=clock)
    assert limiter.check("k").remaining == 1
    assert [d.allowed for d in limiter.check_many(["k", "k", "j"])] == [True, False, True]
    assert not limiter.peek("k").allowed
    assert limiter.forecast("k").next_replenish_at == NOW + 500
    limiter.reset("k")
    assert limiter.acquire("k", 2).allowed
    with pytest.raises(UnsupportedError, match=r"DictStore has no aapply\(\); use check") as caught:
        run(awaited(limiter.acheck, "k"))
    assert caught.value.code == "not_implemented"


def test_an_async_store_is_a_class_with_one_method_too() -> None:
    """`aapply` alone gives the awaitable calls; the others name the remedy."""

    async def use() -> None:
        limiter = rate_limit(gcra(2, 1_000), store=AsyncOnlyStore(), clock=ManualClock(NOW))
        assert (await limiter.acheck("k")).remaining == 1
        decisions = await limiter.acheck_many(["k", "k", "j"])
        assert [d.allowed for d in decisions] == [True, False, True]
        assert not (await limiter.apeek("k")).allowed
        assert (await limiter.aforecast("k")).next_replenish_at == NOW + 500
        await limiter.areset("k")
        assert (await limiter.aacquire("k", 2)).allowed
        for call in (limiter.check, limiter.peek, limiter.acquire):
            with pytest.raises(UnsupportedError, match=r"has no apply\(\); use acheck"):
                call("k")

    run(use())


class EveryOther(Strategy):
    """A strategy as a user might write it: one small pure method."""

    limit = 1

    def check(self, state: Any, now: int, cost: int) -> Outcome[Decision]:
        if state == "on":
            return Outcome(state, Decision(False, 1, 0, now + 10, 10), 0, False)
        return Outcome("on", Decision(True, 1, 0, now + 10, 0), 10, True)


@both_paths
def test_a_strategy_is_a_class_with_one_method(path: str) -> None:
    """check, peek, acquire and the twins work; forecast says what is missing."""
    clock = ManualClock(NOW)
    limiter = make_limiter(path, EveryOther(), clock)
    assert limiter.peek("k") == Decision(True, 1, 1, NOW + 10, 0)
    assert limiter.check("k").allowed
    assert not limiter.check("k").allowed
    assert not run(awaited(limiter.acheck, "k")).allowed
    clock.advance(10)
    assert limiter.acquire("k").allowed
    with pytest.raises(UnsupportedError, match="'EveryOther' has no forecast"):
        limiter.forecast("k")
    assert EveryOther.name == "EveryOther"


@both_paths
def test_unlimited_never_denies_and_never_stores(path: str) -> None:
    """The kill switch: swap it in and the calling code stays as it is."""
    store = make_store(path)
    limiter = make_limiter(path, unlimited(), ManualClock(NOW), store)
    assert all(limiter.check("k", 2**53 - 1).allowed for _ in range(10))
    assert limiter.acquire("k").allowed
    assert len(store) == 0


def test_close_closes_only_what_the_limiter_made() -> None:
    """A store that was passed in belongs to its owner."""
    lent, own = Closable(), Closable()
    with rate_limit("5/s", store=lent):
        pass
    assert lent.closes == 0
    with Limiter(gcra(5, 1_000), own, owns_store=True) as limiter:
        assert limiter.check("k").allowed
    assert own.closes == 1
    limiter.close()


def test_close_in_the_other_mode() -> None:
    """`async with` and `aclose` keep the same rule."""

    class AsyncClosable(Closable):
        async def aclose(self) -> None:
            self.close()

    async def use() -> None:
        lent, own = AsyncClosable(), AsyncClosable()
        async with rate_limit("5/s", store=lent) as limiter:
            assert (await limiter.acheck("k")).allowed
        assert lent.closes == 0
        async with Limiter(gcra(5, 1_000), own, owns_store=True):
            pass
        assert own.closes == 1

    run(use())


def test_a_limiter_closes_when_its_block_fails() -> None:
    """And lets the error through."""
    store = Closable()
    with (
        pytest.raises(KeyError),
        Limiter(gcra(5, 1_000), store, owns_store=True),
    ):
        raise KeyError("inside")
    assert store.closes == 1


def test_a_limiter_shows_what_it_is() -> None:
    """Its repr names strategy, store and prefix."""
    shown = repr(rate_limit("5/s", prefix="api"))
    assert "gcra(limit=5, period_ms=1000, burst=5)" in shown
    assert "MemoryStore" in shown
    assert "'api'" in shown


def test_stores_without_either_method_say_so() -> None:
    """The base class by itself is no store."""
    with pytest.raises(UnsupportedError, match="Store has no apply"):
        rate_limit("5/s", store=Store()).check("k")


@both_paths
def test_the_signatures_can_be_inspected(path: str) -> None:
    """Frameworks look at them."""
    limiter = make_limiter(path, gcra(5, 1_000), ManualClock(NOW))
    for method in (limiter.check, limiter.acheck, limiter.check_many):
        assert list(inspect.signature(method).parameters)[-1] == "cost"


@pytest.mark.parametrize("wrong", [1.5, 2**70, "1", None])
@pytest.mark.parametrize("place", [1, 2, 3, 4])
def test_a_decision_holds_whole_numbers(place: int, wrong: Any) -> None:
    """A strategy of the user's that returns anything else hears of it, on either path."""
    fields: list[Any] = [True, 1, 1, 1, 0]
    fields[place] = wrong
    with pytest.raises(TypeError, match="must be a whole number"):
        Decision(*fields)


def test_a_decision_cannot_be_made_again() -> None:
    """It is frozen, its constructor included."""
    decision = Decision(True, 5, 4, NOW, 0)
    with contextlib.suppress(AttributeError, TypeError):
        decision.__init__(False, 1, 1, 1, 1)  # type: ignore[misc, call-arg]
    assert decision == Decision(True, 5, 4, NOW, 0)


@both_paths
def test_a_forecast_on_a_cold_key_says_what_check_would(path: str) -> None:
    """Also where doubles are coarser at the end of an interval than at its start."""
    clock = ManualClock(1)
    strategy = gcra(3, 1_000, 1)
    for now in (1, 1_714, 1_715, 2_047, 2_048, 2**41 - 1):
        clock.set(now)
        limiter = make_limiter(path, strategy, clock)
        assert bool(limiter.forecast("k").spendable_now) == limiter.check("k").allowed
