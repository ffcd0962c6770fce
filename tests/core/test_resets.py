"""A charge from before a reset refunds nothing: later units of the key are not its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    Limits,
    ManualClock,
    MemoryStore,
    Store,
    Strategy,
    calendar_quota,
    fixed_window,
    gcra,
    rate_limit,
    sliding_window,
    sliding_window_log,
    token_bucket,
)
from penstock.core import _resets
from penstock.stores import open_store
from tests.stores.postgres.live import new_table, url_of
from tests.stores.redis.live import open_empty
from tests.support.helpers import NOW

STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "gcra": lambda: gcra(10, 60_000),
    "token_bucket": lambda: token_bucket(10, 0.1),
    "fixed_window": lambda: fixed_window(10, 60_000, "first"),
    "sliding_window": lambda: sliding_window(10, 60_000),
    "sliding_window_log": lambda: sliding_window_log(10, 60_000),
    "calendar_quota": lambda: calendar_quota(10, "day"),
}
STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda _: MemoryStore(),
    "sqlite": lambda folder: open_store(f"sqlite:///{folder}/limits.db"),
    "postgres": lambda _: _initialized(open_store(url_of(new_table()), timeout_ms=20_000)),
    "valkey": lambda _: open_empty("valkey"),
}


def _initialized(store: Any) -> Store:
    store.init()
    opened: Store = store
    return opened


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened = STORES[request.param](tmp_path)
    yield opened
    opened.close()


def clock_of(store: Store) -> ManualClock | None:
    """Stores that read a clock of their own take none."""
    return None if store.reads_own_clock else ManualClock(NOW)


@pytest.mark.parametrize("name", STRATEGIES)
def test_cancel_after_a_reset_refunds_nothing(store: Store, name: str) -> None:
    limiter = rate_limit(STRATEGIES[name](), store=store, clock=clock_of(store), prefix=name)
    old = limiter.reserve("k", 10)
    limiter.reset("k")
    assert limiter.check("k", 10)
    assert old.cancel()
    assert not limiter.check("k")


@pytest.mark.parametrize("name", STRATEGIES)
def test_settle_after_a_reset_refunds_nothing_of_several_limits(store: Store, name: str) -> None:
    limits = Limits(
        {"one": STRATEGIES[name](), "two": STRATEGIES[name]()}, store=store, clock=clock_of(store)
    )
    keys = {"one": "a", "two": "b"}
    old = limits.reserve(keys, 5)
    limits.reset({"one": "a"})
    assert limits.check(keys, 5)
    assert old.settle({"one": 2, "two": 4})
    left = {each: decision.remaining for each, decision in limits.peek(keys).limits.items()}
    assert left == {"one": 5, "two": 1}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_charge_from_before_a_reset_does_not_end_a_later_pause(store: Store, name: str) -> None:
    limiter = rate_limit(STRATEGIES[name](), store=store, clock=clock_of(store), prefix=name)
    old = limiter.reserve("k", 10)
    limiter.reset("k")
    now = limiter.peek("k").reset_at if store.reads_own_clock else NOW
    limiter.pause("k", now + 600_000)
    old.settle(0)
    assert not limiter.peek("k").allowed


def test_a_charge_from_after_a_reset_is_refunded(store: Store) -> None:
    """Also in the same millisecond."""
    limiter = rate_limit(fixed_window(10, 60_000, "first"), store=store, clock=clock_of(store))
    limiter.check("k", 10)
    limiter.reset("k")
    new = limiter.reserve("k", 10)
    assert not limiter.check("k")
    new.cancel()
    assert limiter.check("k", 10)


def test_a_reset_by_another_limiter_of_the_store_counts() -> None:
    """With awaited calls, and other figures."""

    async def scenario() -> None:
        store, clock = MemoryStore(), ManualClock(NOW)
        first = rate_limit(fixed_window(10, 60_000), store=store, clock=clock, prefix="p")
        second = rate_limit(fixed_window(10, 60_000), store=store, clock=clock, prefix="p")
        old = await first.areserve("k", 10)
        await second.areset("k")
        assert await first.acheck("k", 10)
        assert await old.acancel()
        assert not await first.acheck("k")

    asyncio.run(scenario())


def test_more_resets_than_are_remembered_void_older_charges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of every key: a refund that is lost admits nothing."""
    monkeypatch.setattr(_resets, "_MOST", 3)
    limiter = rate_limit(fixed_window(10, 60_000), clock=ManualClock(NOW))
    old = limiter.reserve("k", 10)
    limiter.reset("k")
    assert limiter.check("k", 10)
    for number in range(5):
        limiter.reset(f"other-{number}")
    old.cancel()
    assert not limiter.check("k")
    new = limiter.reserve("another", 10)
    new.cancel()
    assert limiter.check("another", 10)
