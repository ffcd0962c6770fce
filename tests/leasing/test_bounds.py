"""What a fleet admits, for every strategy: never more than the bounds in docs/leases.md."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import accumulate

import pytest

from penstock import (
    Limiter,
    ManualClock,
    MemoryStore,
    Strategy,
    fixed_window,
    gcra,
    sliding_window,
    sliding_window_log,
    token_bucket,
)
from penstock.leasing import AdaptiveBatch, two_tier
from tests.leasing.far import NOW, FarStore

WINDOW = 1_000
LIMIT = 60
NODES = 4
BATCH = 12

STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "gcra": lambda: gcra(LIMIT, WINDOW, burst=40),
    "token_bucket": lambda: token_bucket(40, 60.0),
    "fixed_window": lambda: fixed_window(LIMIT, WINDOW),
    "fixed_window_first": lambda: fixed_window(LIMIT, WINDOW, "first"),
    "sliding_window": lambda: sliding_window(LIMIT, WINDOW),
    "sliding_window_log": lambda: sliding_window_log(LIMIT, WINDOW),
}

Units = list[tuple[int, int]]


class Run:
    """A fleet under random demand, and what it admitted and was granted, as (instant, units)."""

    def __init__(self, strategy: Strategy, seed: int, *, costs: bool, **options: object) -> None:
        self.clock = ManualClock(NOW)
        self.far = FarStore(self.clock)
        self.admitted: Units = []
        rng = random.Random(seed)
        self.nodes = [self._node(strategy, **options) for _ in range(NODES)]
        for _ in range(900):
            self._request(rng, rng.choice((1, 1, 2, 5)) if costs else 1)
        for node in self.nodes:
            node.close()
        self.granted: Units = [(grant.now, grant.capacity) for _, grant in self.far.grants]

    def _node(self, strategy: Strategy, **options: object) -> Limiter:
        return two_tier(strategy, self.far, clock=self.clock, **options)  # type: ignore[arg-type]

    def _request(self, rng: random.Random, cost: int) -> None:
        self.clock.advance(rng.choice((0, 0, 0, 1, 3, rng.randint(0, 40), rng.randint(0, 600))))
        # Now and then the whole fleet is asked at once, to spend all that it holds.
        nodes = self.nodes if rng.random() < 0.05 else [rng.choice(self.nodes)]
        for node in nodes:
            for _ in range(rng.choice((1, 1, 1, BATCH))):
                if node.check("key", cost).allowed:
                    self.admitted.append((self.clock.now(), cost))


def most_within(units: Units, span_ms: int) -> int:
    """The most in any span of so many ms, its first instant included and its last not."""
    best = total = first = 0
    for at, count in units:
        total += count
        while units[first][0] <= at - span_ms:
            total -= units[first][1]
            first += 1
        best = max(best, total)
    return best


def worst_excess(admitted: Units, granted: Units) -> int:
    """The most by which what was admitted in any span exceeds what was granted in it."""
    instants = sorted({at for at, _ in admitted + granted})
    moved = dict.fromkeys(instants, 0)
    for at, count in admitted:
        moved[at] += count
    for at, count in granted:
        moved[at] -= count
    lowest = worst = 0
    for total in accumulate(moved.values()):
        worst = max(worst, total - lowest)
        lowest = min(lowest, total)
    return worst


@pytest.mark.parametrize("low_water", [0, 4])
@pytest.mark.parametrize("coupled", [None, True, False])
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("seed", range(3))
def test_over_any_span_a_fleet_admits_what_was_granted_and_a_batch_less_one_per_node(
    seed: int, name: str, coupled: bool | None, low_water: int
) -> None:
    """The one bound from which the others follow: nodes hold at most B - 1 each."""
    done = Run(
        STRATEGIES[name](),
        seed,
        costs=True,
        batch=BATCH,
        window_coupled=coupled,
        low_water=low_water,
    )
    assert worst_excess(done.admitted, done.granted) <= NODES * (BATCH - 1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("coupled", [True, False])
@pytest.mark.parametrize("batch", [BATCH, "adaptive"])
def test_a_fixed_window_keeps_its_limit_or_the_stated_bound(
    seed: int, coupled: bool, batch: int | str
) -> None:
    """By the clock of the store, window by window."""
    chosen = AdaptiveBatch(most=BATCH) if batch == "adaptive" else BATCH
    strategy = fixed_window(LIMIT, WINDOW)
    done = Run(strategy, seed, costs=False, batch=chosen, window_coupled=coupled)
    windows: dict[int, int] = {}
    for at, count in done.admitted:
        windows[at // WINDOW] = windows.get(at // WINDOW, 0) + count
    bound = LIMIT if coupled else LIMIT + NODES * (BATCH - 1)
    assert max(windows.values()) <= bound
    assert max(windows.values()) >= LIMIT


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["gcra", "token_bucket"])
def test_a_pace_is_exceeded_by_what_nodes_hold(seed: int, name: str) -> None:
    """In any span of t ms: burst + rate * t + N * (B - 1)."""
    done = Run(STRATEGIES[name](), seed, costs=True, batch=BATCH)
    for span_ms in (1, 10, 100, 500, 1_000, 5_000):
        allowed = 40 + span_ms * LIMIT / WINDOW + NODES * (BATCH - 1)
        assert most_within(done.admitted, span_ms) <= allowed


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("coupled", [True, False])
def test_a_sliding_log_is_exceeded_by_what_nodes_hold(seed: int, coupled: bool) -> None:
    """In any window: limit + N * (B - 1); coupled, also never twice the limit."""
    strategy = sliding_window_log(LIMIT, WINDOW)
    done = Run(strategy, seed, costs=True, batch=BATCH, window_coupled=coupled)
    most = most_within(done.admitted, WINDOW)
    assert most <= LIMIT + NODES * (BATCH - 1)
    assert not coupled or most <= 2 * LIMIT


def test_twice_the_limit_bounds_a_coupled_sliding_log_however_many_nodes() -> None:
    """What they hold was granted within one window, so it is at most the limit."""
    clock = ManualClock(NOW)
    far, strategy = FarStore(clock), sliding_window_log(LIMIT, WINDOW)
    nodes = [two_tier(strategy, far, batch=BATCH, clock=clock) for _ in range(40)]
    admitted: Units = []
    for at_ms in (0, WINDOW - 1, WINDOW, 2 * WINDOW - 1, 2 * WINDOW):
        clock.set(NOW + at_ms)
        for node in nodes:
            while node.check("key").allowed:
                admitted.append((clock.now(), 1))
                if at_ms == 0:
                    break
    assert LIMIT < most_within(admitted, WINDOW) <= 2 * LIMIT


@pytest.mark.parametrize("slow_ms", [0, 1, 500, 999])
def test_where_nodes_bring_the_clock_a_slow_one_adds_what_it_holds(slow_ms: int) -> None:
    """A store without a clock of its own: coupled credits are then bounded as carried ones."""
    strategy, store = fixed_window(LIMIT, WINDOW), MemoryStore()
    start = NOW // WINDOW * WINDOW
    right, slow = ManualClock(start + WINDOW - 1), ManualClock(start + WINDOW - 1 - slow_ms)
    ahead = two_tier(strategy, store, batch=BATCH, clock=right)
    behind = two_tier(strategy, store, batch=BATCH, clock=slow)
    behind.check("key")
    right.advance(1)
    slow.advance(1)
    admitted = sum(node.check("key").allowed for node in (ahead, behind) for _ in range(2 * LIMIT))
    assert admitted == LIMIT + (BATCH - 1 if slow_ms else 0)
