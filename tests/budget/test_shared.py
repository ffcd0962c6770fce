"""Budgets on a server: Lua says what the oracle says, and a fleet shares one budget."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from penstock import (
    ManualClock,
    MemoryStore,
    fixed_window,
    gcra,
    rate_limit,
    sliding_window,
    sliding_window_log,
    token_bucket,
    unlimited,
)
from penstock.budget import token_budget
from penstock.core._steps import Step
from penstock.core._transform import asking, checking
from penstock.core._validation import MAX_SAFE
from penstock.stores.redis import RedisStore
from tests.servers import Valkey, require
from tests.support.helpers import NOW


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server of our own."""
    require("valkey")
    with Valkey() as server:
        yield server.url


@pytest.mark.parametrize("seed", range(8))
def test_lua_agrees_with_the_oracle_on_random_timelines(url: str, seed: int) -> None:
    """Every field of every decision, clock jumps and huge debits included; reads too."""
    rng = random.Random(seed)
    strategy = token_budget(
        rng.choice((1, 7, 100, MAX_SAFE)), rng.choice((1, 7, 1_000, 86_400_000))
    )
    clock = ManualClock(NOW)
    store = RedisStore.from_url(url, use_server_time=False, timeout_ms=5_000)
    there = rate_limit(strategy, store=store, clock=clock, prefix=f"lua{seed}")
    here = rate_limit(strategy, clock=clock)
    window = strategy.window_ms
    for _ in range(300):
        move = rng.choice((0, 1, window, rng.randint(-2 * window, 3 * window)))
        clock.set(max(1, clock.now() + move))
        tokens = rng.choice((1, 2, rng.randint(1, 50), MAX_SAFE))
        assert there.check("k", tokens) == here.check("k", tokens)
        assert there.peek("k") == here.peek("k")
        assert there.forecast("k", tokens) == here.forecast("k", tokens)
    store.close()


@pytest.mark.parametrize("seed", range(4))
def test_lua_agrees_with_the_oracle_on_estimates(url: str, seed: int) -> None:
    """Whether one fits, asked beside the debit of another key, in one step."""
    rng = random.Random(seed)
    strategy = token_budget(rng.choice((1, 100, 5_000, MAX_SAFE)), rng.choice((7, 1_000)))
    store = RedisStore.from_url(url, use_server_time=False, timeout_ms=5_000)
    here, now = MemoryStore(), NOW
    debit, look = checking(strategy), asking(strategy)
    for _ in range(300):
        now = max(1, now + rng.choice((0, 1, strategy.window_ms, rng.randint(-2_000, 2_000))))
        cost = rng.choice((1, rng.randint(1, 120), strategy.limit, MAX_SAFE))
        steps = [Step(f"e{seed}", look, cost), Step(f"e{seed}:other", debit, rng.randint(1, 9))]
        if rng.random() < 0.5:
            steps.append(Step(f"e{seed}", debit, rng.randint(1, 40)))
        assert store.apply_all(steps, now) == here.apply_all(steps, now)
        assert store.apply(f"e{seed}", look, now, cost) == here.apply(f"e{seed}", look, now, cost)
    store.close()


@pytest.mark.parametrize("seed", range(4))
def test_lua_agrees_with_the_oracle_on_looks_at_any_cost(url: str, seed: int) -> None:
    """Of strategies that leave a look to their check."""
    rng = random.Random(seed)
    strategies = [gcra(7, 1_000), token_bucket(9, 3.7), fixed_window(5, 900), unlimited()]
    strategies += [sliding_window(11, 1_000, 4), sliding_window_log(6, 700)]
    store = RedisStore.from_url(url, use_server_time=False, timeout_ms=5_000)
    here, now = MemoryStore(), NOW
    for _ in range(150):
        now = max(1, now + rng.choice((0, 1, 100, rng.randint(-1_500, 1_500))))
        place = rng.randrange(len(strategies))
        strategy, key = strategies[place], f"look{seed}:{place}"
        steps = [Step(key, asking(strategy), rng.randint(1, 12))]
        steps.append(Step(key, checking(strategy), rng.randint(1, 4)))
        assert store.apply_all(steps, now) == here.apply_all(steps, now)
    store.close()


def test_a_fleet_shares_one_budget(url: str) -> None:
    """Two stores, many debits at once: one budget, one crossing debit."""
    strategy = token_budget(100, 3_600_000)

    async def main() -> int:
        stores = [RedisStore.from_url(url, timeout_ms=10_000) for _ in range(2)]
        nodes = [rate_limit(strategy, store=store, prefix="fleet") for store in stores]
        debits = [nodes[n % 2].acheck("k", 7) for n in range(200)]
        decisions = await asyncio.gather(*debits)
        for store in stores:
            await store.aclose()
        return sum(decision.allowed for decision in decisions)

    assert asyncio.run(main()) == 15  # 14 make 98, one more crosses
