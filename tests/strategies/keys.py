"""Keys of a store, driven by hand, and the strategies whose laws are tried on them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st

from penstock import (
    Strategy,
    calendar_quota,
    fixed_window,
    gcra,
    sliding_window,
    sliding_window_log,
    token_bucket,
)
from tests.support.helpers import Reference

NOW = 1_700_000_000_000

STRATEGIES: list[Strategy] = [
    gcra(7, 1_000),
    gcra(10, 60_000, burst=3),
    token_bucket(5, 3.3),
    token_bucket(10, 0.01),
    fixed_window(4, 1_000),
    fixed_window(4, 1_000, anchor="first"),
    calendar_quota(4, "hour"),
    calendar_quota(4, "month", "Europe/Berlin", starts_on=31),
    sliding_window(6, 1_000, buckets=1),
    sliding_window(6, 1_000),
    sliding_window_log(5, 1_000),
]
PACED = [strategy for strategy in STRATEGIES if strategy.window_kind is None]
each = pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
paced = pytest.mark.parametrize("strategy", PACED, ids=repr)

costs = st.integers(1, 4)
gaps = st.lists(st.tuples(st.integers(0, 700), costs), max_size=12)


class Key(Reference):
    """The same, asked for any operation."""

    def run(self, name: str, now: int, *arguments: int) -> Any:
        outcome = getattr(self.strategy, name)(self.at(now), now, *arguments)
        if outcome.persist:
            self.state, self.expires = outcome.state, now + outcome.ttl_ms
        return outcome.result


def aged(strategy: Strategy, timeline: list[tuple[int, int]]) -> tuple[Key, int]:
    key, now = Key(strategy), NOW
    for gap, cost in timeline:
        now += gap
        key.run("check", now, cost)
    return key, now


def future(key: Key, now: int) -> list[Any]:
    """Everything that the state says about the times to come."""
    later = [now + step for step in (0, 1, 40, 130, 333, 700, 999, 1_400, 5_000, 60_000)]
    return [(key.strategy.peek(key.at(at), at).allowed, left_of(key, at)) for at in later]


def left_of(key: Key, now: int) -> int:
    return key.strategy.forecast(key.at(now), now, 1).spendable_now
