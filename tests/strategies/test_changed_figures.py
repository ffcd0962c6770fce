"""A limit that is raised or lowered goes on with the counts it finds, on every path.

A policy file may change figures at any time, and plans give different ones to requests on the same
key. So a state that was written under one has to be read under the other as the oracle reads it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import (
    Decision,
    MemoryStore,
    Store,
    Strategy,
    calendar_quota,
    fixed_window,
    gcra,
    sliding_window,
    sliding_window_log,
    token_bucket,
)
from penstock.core._transform import checking
from tests.stores.redis.live import new_key, open_empty
from tests.support.helpers import NOW

SPAN_MS = 10_000
MAKERS: dict[str, Callable[[int], Strategy]] = {
    "gcra": lambda limit: gcra(limit, SPAN_MS),
    "gcra with a burst": lambda limit: gcra(7, SPAN_MS, limit),
    "token_bucket": lambda limit: token_bucket(limit, limit / 10),
    "fixed_window": lambda limit: fixed_window(limit, SPAN_MS),
    "fixed_window from the first": lambda limit: fixed_window(limit, SPAN_MS, "first"),
    "sliding_window": lambda limit: sliding_window(limit, SPAN_MS, 7),
    "sliding_window_log": lambda limit: sliding_window_log(limit, SPAN_MS),
    "calendar_quota": lambda limit: calendar_quota(limit, "hour"),
}


class Oracle:
    """One key, by the pure functions alone."""

    def __init__(self) -> None:
        self._state: Any = None
        self._until = 0

    def check(self, strategy: Strategy, now: int, cost: int) -> Decision:
        outcome = strategy.check(self._state if now < self._until else None, now, cost)
        if outcome.persist:
            self._state, self._until = outcome.state, now + outcome.ttl_ms
        return outcome.result


@pytest.fixture(scope="module", params=["memory", "valkey"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    made = MemoryStore() if request.param == "memory" else open_empty("valkey")
    yield made
    made.close()


@pytest.mark.parametrize("name", MAKERS)
def test_every_path_reads_counts_under_other_figures_as_the_oracle_does(
    store: Store, name: str
) -> None:
    """Figures that change from request to request, far up and far down."""
    rng = random.Random(name)
    strategies = [MAKERS[name](limit) for limit in (1, 3, 10, 400)]
    assert len({strategy.state_form for strategy in strategies}) == 1
    transforms = [checking(strategy) for strategy in strategies]
    for _ in range(12):
        key, oracle, now = new_key(), Oracle(), NOW + rng.randrange(SPAN_MS)
        for _ in range(40):
            which, cost = rng.randrange(4), rng.choice((1, 1, 2, 30))
            wanted = oracle.check(strategies[which], now, cost)
            assert store.apply(key, transforms[which], now, cost) == wanted
            now += rng.choice((0, 1, 200, 3_000, 11_000))


@pytest.mark.parametrize("name", MAKERS)
def test_raising_a_limit_forgets_nothing(name: str) -> None:
    """What was spent is spent: as much fits on top as the new limit has more, and for strategies
    with a pace, which remember a part of the whole, no more than that."""
    before, after = MAKERS[name](10), MAKERS[name](20)
    state = None
    for _ in range(10):
        outcome = before.check(state, NOW, 1)
        assert outcome.result.allowed
        state = outcome.state
    assert after.peek(state, NOW).remaining <= 10
