"""Limiters that would count in each other's keys are refused when they are made."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    Decision,
    Limit,
    Limits,
    MemoryStore,
    Outcome,
    Strategy,
    fixed_window,
    gcra,
    rate_limit,
    sliding_window,
    token_bucket,
    unlimited,
)
from penstock.budget import token_budget
from penstock.core._limiter import Limiter
from penstock.leasing import two_tier
from penstock.service import build_service
from penstock.stores.sqlite import SqliteStore
from tests.service.worlds import policies
from tests.support.helpers import Quota


@pytest.fixture(autouse=True, scope="module")
def _what_was_there_before_is_no_garbage() -> Iterator[None]:
    """A clash collects garbage before it is told; all that a whole test run has loaded would be
    looked at each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


CLASHES = [
    ("5/second", "6/second"),
    (gcra(5, 1_000), gcra(5, 1_000, burst=4)),
    (fixed_window(5, 1_000), fixed_window(5, 2_000)),
    (fixed_window(5, 1_000), fixed_window(5, 1_000, "first")),
    (fixed_window(5, 1_000), token_budget(5, 1_000)),
    (token_bucket(5, 1), sliding_window(5, 1_000)),
    (Quota(5), Quota(6)),
    (Quota(5), "5/second"),
    (fixed_window(5, 1_000), unlimited()),
]


@pytest.mark.parametrize(("one", "other"), CLASHES)
def test_another_meaning_under_the_same_prefix_is_refused(one: Any, other: Any) -> None:
    """By an error that names both, and the fix; which works."""
    for prefix in ("", "api"):
        store = MemoryStore()
        kept = rate_limit(one, store=store, prefix=prefix)
        with pytest.raises(ConfigInvalidError, match="count in the same keys") as refused:
            rate_limit(other, store=store, prefix=prefix)
        text = str(refused.value)
        assert repr(kept.strategy) in text
        assert ("prefix 'api'" if prefix else "without a prefix") in text
        assert "prefix=" in text
        if prefix:
            assert rate_limit(other, store=store, prefix=f"{prefix}2").check("k")
        assert kept.check("k")


@pytest.mark.parametrize("strategy", [one for one, _ in CLASHES[1:]])
def test_the_same_meaning_twice_is_how_limits_are_shared(strategy: Strategy) -> None:
    """Made anew, as by another part of the program."""
    store = MemoryStore()
    same = eval(repr(strategy), {**globals()}) if "<" not in repr(strategy) else Quota(5)
    one, two = (rate_limit(made, store=store) for made in (strategy, same))
    one.check("k")
    assert two.check("k").remaining == strategy.limit - 2


def on(store: Any, lead: str) -> Any:
    """A limiter: `prefix`, `prefix>name` for a limit of several, `prefix>name!` without a key."""
    prefix, _, name = lead.partition(">")
    if not name:
        return rate_limit("5/second", store=store, prefix=prefix)
    limit = Limit("5/second", keyless=name.endswith("!"))
    return Limits({name.rstrip("!"): limit}, store=store, prefix=prefix)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("q", "q:user"),
        ("q", "q>user"),
        ("q", "q>user!"),
        ("q:user", "q:user:eu"),
        ("q:user", "q:user>eu"),
        ("q:user", "q:user>eu!"),
        ("a", "a:b:c"),
        ("", "q"),
        ("", "q>user"),
        ("", ">user"),
        ("", ">all!"),
        ("all", "all>all!"),
    ],
)
def test_prefixes_that_continue_each_other_are_refused(one: str, other: str) -> None:
    """In both orders, with the same strategy: they would share single keys."""
    for first, second in ((one, other), (other, one)):
        store = MemoryStore()
        kept = on(store, first)
        with pytest.raises(ConfigInvalidError, match="would share keys of this MemoryStore, such"):
            on(store, second)
        kept.close()
        on(store, second)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("q", "q"),
        ("q", "qu"),
        ("q", "r:q"),
        ("q:user", "q:tenant"),
        ("q:user", "q>user"),
        ("q>user", "q>tenant"),
        ("q>user", "q:user"),
        ("q:user", "q>user!"),
        (">user", "q"),
        (">user", ">user"),
        ("", ""),
    ],
)
def test_prefixes_whose_keys_are_apart_or_the_same_share_a_store(one: str, other: str) -> None:
    """Equal leads with equal strategies are one limit; keys of the others cannot meet."""
    for first, second in ((one, other), (other, one)):
        store = MemoryStore()
        assert on(store, first)
        kept = on(store, first)
        assert on(store, second) is not kept


def test_the_check_of_a_prefix_does_not_depend_on_how_many_there_are() -> None:
    """A store may have a limiter per tenant."""
    store = MemoryStore()
    kept = [rate_limit("5/second", store=store, prefix=f"t:{n}:x") for n in range(5_000)]
    began = time.perf_counter()
    kept += [rate_limit("5/second", store=store, prefix=f"u:{n}:x") for n in range(500)]
    assert time.perf_counter() - began < 2.0
    with pytest.raises(ConfigInvalidError, match=r"'t:[0-9]+:x'"):
        rate_limit("5/second", store=store, prefix="t")
    kept.clear()
    gc.collect()
    assert len(store._claims) == 0
    rate_limit("5/second", store=store, prefix="t")


def test_stores_that_are_other_objects_do_not_matter() -> None:
    """Each has its own keys, as far as can be seen."""
    limiters = [rate_limit(f"{limit}/second", store=MemoryStore()) for limit in range(1, 5)]
    assert all(limiter.check("k") for limiter in limiters)


def test_a_limiter_that_is_gone_does_not_count() -> None:
    """Not even when the garbage collector has yet to find it."""
    store = MemoryStore()
    limiter: Limiter | None = rate_limit("5/second", store=store)
    del limiter
    cycle: list[Any] = [rate_limit("6/second", store=store)]
    cycle.append(cycle)
    gc.disable()
    try:
        del cycle
        rate_limit("7/second", store=store)
    finally:
        gc.enable()


def test_a_limiter_that_was_closed_does_not_count() -> None:
    """So a limit can be changed: close the old one, make the new one."""
    store = MemoryStore()
    old = rate_limit("5/second", store=store)
    old.close()
    new = rate_limit("6/second", store=store)
    asyncio.run(new.aclose())
    with rate_limit("7/second", store=store) as third:
        assert third.check("k")
        with pytest.raises(ConfigInvalidError):
            rate_limit("8/second", store=store)
    rate_limit("8/second", store=store)


def test_of_limiters_that_share_a_meaning_the_last_one_counts() -> None:
    """Whichever of them was first."""
    store = MemoryStore()
    one, two = (rate_limit("5/second", store=store) for _ in range(2))
    one.close()
    with pytest.raises(ConfigInvalidError):
        rate_limit("6/second", store=store)
    two.close()
    rate_limit("6/second", store=store)


def test_nothing_is_remembered_of_prefixes_that_nobody_uses() -> None:
    """A store may see millions of them."""
    store = MemoryStore()
    for number in range(1_000):
        rate_limit("5/second", store=store, prefix=str(number))
    assert store._claims is not None
    assert len(store._claims) <= 1


def test_threads_that_clash_are_not_both_served() -> None:
    """However close together they come."""
    for _ in range(50):
        store, gate = MemoryStore(), threading.Barrier(8)

        def make(limit: int, store: Any = store, gate: Any = gate) -> Limiter | None:
            gate.wait(20)
            try:
                return rate_limit(f"{limit}/second", store=store)
            except ConfigInvalidError:
                return None

        with ThreadPoolExecutor(8) as crowd:
            made = [limiter for limiter in crowd.map(make, [1, 2] * 4) if limiter is not None]
        assert len(made) == 4
        assert len({repr(limiter.strategy) for limiter in made}) == 1


@pytest.mark.parametrize("mode", ["strict", "cached-deny", "leased"])
def test_leases_claim_as_limiters_do(mode: str, tmp_path: Any) -> None:
    """On the shared store; a plain limiter of the same meaning counts along."""
    store = SqliteStore(tmp_path / "limits.db")
    leased = two_tier(fixed_window(10, 60_000), store, mode, batch=2)
    plain = rate_limit(fixed_window(10, 60_000), store=store)
    assert leased.check("k")
    assert plain.peek("k").remaining < 10
    with pytest.raises(ConfigInvalidError, match="same keys"):
        two_tier(fixed_window(9, 60_000), store, mode, batch=2)
    plain.close()
    leased.close()
    two_tier(fixed_window(9, 60_000), store, mode, batch=2).close()
    store.close()


def test_a_service_never_clashes_with_itself() -> None:
    """Named, inline, reloaded with other parameters while requests hold the old ones."""
    store = MemoryStore()
    service = build_service(policies(), store=store)

    async def main() -> None:
        held = []
        for limit in (3, 4, 5, 3):
            text = f"version: 1\nlimiters:\n  api: {{strategy: gcra, limit: {limit}, period: 1m}}\n"
            service.apply(policies(text))
            held.append(service.inline(limit, 60_000).decide)
            assert await service.check("api", f"k{limit}")
            assert await service.check_inline("k", limit, 60_000)
        assert all(decide("other", 1) for decide in held[:2])
        await service.aclose()

    asyncio.run(main())


class Nameless(Strategy):
    """One that says nothing of its parameters."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def check(self, state: Any, now: int, cost: int) -> Outcome[Decision]:
        return Outcome(1, Decision(True, self.limit, 0, now, 0), 1, True)


def test_a_strategy_without_a_telling_repr_is_known_by_its_class_and_limit() -> None:
    """Two that were made alike are not refused for being two objects."""
    store = MemoryStore()
    kept = [rate_limit(Nameless(5), store=store), rate_limit(Nameless(5), store=store)]
    with pytest.raises(ConfigInvalidError):
        rate_limit(Nameless(6), store=store)
    assert kept[0].check("k")
