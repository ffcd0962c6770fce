"""Figures that change, and what any limit may admit at most, stated without its code."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from math import floor
from typing import Any

from penstock import (
    Store,
    Strategy,
    calendar_quota,
    fixed_window,
    gcra,
    sliding_window,
    sliding_window_log,
    token_bucket,
)
from penstock.core._transform import checking, trying
from tests.stores.redis.live import new_key

NOW = 1_700_000_000_000
SPAN_MS = 10_000
HOUR_MS = 3_600_000

Figures = tuple[int, int]
"""The units that may come at once, and those that come back per `SPAN_MS`; only the first counts
for strategies that have a window."""

MAKERS: dict[str, Callable[[int, int], Strategy]] = {
    "gcra": lambda burst, rate: gcra(rate, SPAN_MS, burst),
    "token_bucket": lambda burst, rate: token_bucket(burst, rate * 1000 / SPAN_MS),
    "fixed_window": lambda limit, _: fixed_window(limit, SPAN_MS),
    "fixed_window from the first": lambda limit, _: fixed_window(limit, SPAN_MS, "first"),
    "sliding_window": lambda limit, _: sliding_window(limit, SPAN_MS, 7),
    "sliding_window of one bucket": lambda limit, _: sliding_window(limit, SPAN_MS, 1),
    "sliding_window_log": lambda limit, _: sliding_window_log(limit, SPAN_MS),
    "calendar_quota": lambda limit, _: calendar_quota(limit, "hour"),
}
PACED = ("gcra", "token_bucket")


def draw_figures(rng: random.Random) -> Figures:
    return rng.choice((1, 2, 3, 10, 37, 400)), rng.choice((1, 3, 7, 10, 100, 999))


def draw_pair(rng: random.Random) -> tuple[Figures, Figures]:
    """Smaller ones and larger ones: none of the first is larger."""
    one, other = draw_figures(rng), draw_figures(rng)
    low = min(one[0], other[0]), min(one[1], other[1])
    return low, (max(one[0], other[0]), max(one[1], other[1]))


class ChangingKey:
    """A key of a store that is asked with figures that change from call to call."""

    def __init__(self, store: Store, kind: str) -> None:
        self.store = store
        self.kind = kind
        self.name = new_key()
        self.now = NOW + random.Random(self.name).randrange(SPAN_MS)
        self._strategies: dict[Figures, Strategy] = {}

    def strategy(self, figures: Figures) -> Strategy:
        if figures not in self._strategies:
            self._strategies[figures] = MAKERS[self.kind](*figures).keeping_figures()
        return self._strategies[figures]

    def check(self, figures: Figures, cost: int = 1) -> Any:
        return self.apply(checking(self.strategy(figures)), cost)

    def apply(self, transform: Any, cost: int = 1) -> Any:
        return self.store.apply(self.name, transform, self.now, cost)

    def would_admit(self, figures: Figures, cost: int, at: int) -> bool:
        trial = trying(checking(self.strategy(figures)))
        return bool(self.store.apply(self.name, trial, at, cost).allowed)

    def admitted_at(self, figures: Figures, cost: int) -> int:
        """The instant from which a request is admitted: it asks again whenever it is told to."""
        at, trial = self.now, trying(checking(self.strategy(figures)))
        while retry := self.store.apply(self.name, trial, at, cost).retry_after_ms:
            at += retry
        return at

    def admitted_at_once(self, figures: Figures, rng: random.Random) -> int:
        """How much is admitted at one instant, in portions."""
        units, cost = 0, rng.choice((1, 1, 3, figures[0]))
        while cost:
            if self.check(figures, cost).allowed:
                units += cost
            else:
                cost //= 2
        return units


def assert_never_more_than(
    kind: str, figures: Figures, admitted: list[tuple[int, int]], extra: float = 0
) -> None:
    """`admitted` has instants and units. What the limit of these figures may admit at most is taken
    from its definition."""
    burst, rate = figures
    for first, (start, _) in enumerate(admitted):
        total = 0
        for at, units in admitted[first:]:
            total += units
            if kind in PACED:
                # One unit every T, rounded down to 1/2048 ms in gcra.
                steps = SPAN_MS * 2048 // rate
                pace = Fraction(2048, steps) if kind == "gcra" else Fraction(rate, SPAN_MS)
                most = burst + floor((at - start) * pace + Fraction(1, 1000))
            elif kind in ("fixed_window", "calendar_quota"):
                window = HOUR_MS if kind == "calendar_quota" else SPAN_MS
                most = burst * (at // window - start // window + 1)
            elif kind.startswith("sliding_window of"):
                most = burst * (at // SPAN_MS - start // SPAN_MS + 1)
            elif kind == "sliding_window":
                ticks = at * 7 // SPAN_MS - start * 7 // SPAN_MS + 1
                most = burst * -(-ticks // 7)
            elif kind == "sliding_window_log":
                most = burst * ((at - start) // SPAN_MS + 1)
            else:
                most = burst * (-(-(at - start) // SPAN_MS) + 1)
            assert total <= most + extra, (start, at, total, most)
