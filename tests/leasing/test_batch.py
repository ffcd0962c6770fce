"""The batch that learns: more efficient, never less exact."""

from __future__ import annotations

import math
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock import ConfigInvalidError, ManualClock, fixed_window
from penstock.leasing import AdaptiveBatch, two_tier
from penstock.leasing._batch import Demand
from tests.leasing.far import NOW, FarStore
from tests.support.helpers import frantic_switching

WINDOW = 1_000
START = NOW // WINDOW * WINDOW


def settled(batch: AdaptiveBatch, served: int, every_ms: int, rounds: int = 60) -> int:
    for turn in range(rounds):
        batch.observe("k", served, NOW + turn * every_ms)
    return batch.size("k")


@pytest.mark.parametrize(("served", "every_ms"), [(1, 1_000), (100, 1_000), (40, 20), (7, 60_000)])
def test_a_steady_demand_is_met_by_the_economic_batch(served: int, every_ms: int) -> None:
    """sqrt(2 * order_cost * demand / strand_penalty), demand being credits per period."""
    batch = AdaptiveBatch(order_cost=30.0, strand_penalty=0.5)
    demand = served * 1_000 / every_ms
    wanted = int(max(1, math.sqrt(2 * 30.0 * demand / 0.5)))
    assert settled(batch, served, every_ms) in range(wanted - 1, wanted + 2)


def test_one_burst_does_not_drown_what_was_learned() -> None:
    """It is averaged in log space: a factor of 10,000 for once moves the batch by far less."""
    batch = AdaptiveBatch(most=10**6)
    before = settled(batch, 10, 1_000)
    batch.observe("k", 100_000, NOW + 60_000)
    assert batch.size("k") < before * 10_000**0.3


def test_the_batch_stays_within_its_limits_whatever_is_observed() -> None:
    """Zero, huge, clocks that stand still or go back."""
    rng, batch = random.Random(5), AdaptiveBatch(least=3, most=70)
    for _ in range(3_000):
        served = rng.choice((0, -5, 1, rng.randint(1, 50), 2**53 - 1))
        batch.observe("k", served, rng.randint(0, 10**13))
        assert 3 <= batch.size("k") <= 70


def test_what_is_learned_is_bounded_and_safe_under_threads() -> None:
    """The keys least recently leased for go first."""
    batch = AdaptiveBatch(max_keys=20)

    def observe(number: int) -> None:
        for turn in range(500):
            batch.observe(f"k{(number * 7 + turn) % 90}", turn, NOW + turn)

    with frantic_switching(), ThreadPoolExecutor(6) as pool:
        list(pool.map(observe, range(6)))
    assert "20 keys" in repr(batch)


def test_what_was_spent_is_bounded_and_safe_under_threads() -> None:
    """Threads that change places as often as they can, on more keys than are kept."""
    demand = Demand(AdaptiveBatch(), max_keys=3)

    def lease(number: int) -> None:
        for turn in range(300):
            demand.leased(f"k{(number * 7 + turn) % 11}", 5, 1, NOW)

    with frantic_switching(), ThreadPoolExecutor(8) as pool:
        list(pool.map(lease, range(8)))
    assert len(demand._spent) == 3


@pytest.mark.parametrize(
    "options",
    [
        {"order_cost": 0},
        {"strand_penalty": -1.0},
        {"smoothing": 1.5},
        {"smoothing": math.nan},
        {"least": 0},
        {"least": 10, "most": 5},
        {"period_ms": 0},
        {"max_keys": 0},
    ],
)
def test_parameters_that_could_not_work_are_refused(options: dict[str, float]) -> None:
    """At construction."""
    with pytest.raises(ConfigInvalidError):
        AdaptiveBatch(**options)  # type: ignore[arg-type]


def fleet(demand: list[int], batch: AdaptiveBatch | int, limit: int = 200) -> tuple[int, int, int]:
    """(admitted, leases, granted) of one node in windows of so many requests each."""
    clock = ManualClock(START)
    far = FarStore(clock)
    limiter = two_tier(fixed_window(limit, WINDOW), far, batch=batch, clock=clock)
    admitted = 0
    for requests in demand:
        for turn in range(requests):
            clock.set(clock.now() // WINDOW * WINDOW + turn * (WINDOW - 1) // requests)
            admitted += limiter.check("k").allowed
        clock.set((clock.now() // WINDOW + 1) * WINDOW)
    leases = sum(1 for _, role, _ in far.calls if role == "lease")
    return admitted, leases, sum(grant.capacity for _, grant in far.grants)


def test_credits_that_went_void_are_not_taken_for_demand() -> None:
    """One request per window wants a small batch, however large the first one was."""
    batch = AdaptiveBatch(least=1, order_cost=50.0)
    fleet([100] * 5 + [1] * 60, batch)
    assert batch.size("k") <= 2 + math.sqrt(2 * 50.0)


def test_it_saves_round_trips_where_there_is_demand_and_credits_where_there_is_none() -> None:
    """Against a fixed batch of 1 and one of 100, on busy and on quiet windows."""
    busy, quiet = [150] * 20, [2] * 40
    _, leases_of_one, _ = fleet(busy, 1)
    _, leases, _ = fleet(busy, AdaptiveBatch())
    assert leases < leases_of_one / 10
    _, _, granted_by_hundreds = fleet(quiet, 100)
    _, _, granted = fleet(quiet, AdaptiveBatch())
    assert granted < granted_by_hundreds / 3


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("coupled", [True, False])
def test_adversarial_demand_changes_efficiency_and_never_the_bound(
    seed: int, coupled: bool
) -> None:
    """Demand that swings to mislead it: bursts when it has learned to be small, silence when it
    has grown, on several nodes at once."""
    rng, clock = random.Random(seed), ManualClock(START)
    far, most, nodes, limit = FarStore(clock), 40, 3, 120
    batches = [AdaptiveBatch(most=most, smoothing=1.0) for _ in range(nodes)]
    fleet = [
        two_tier(fixed_window(limit, WINDOW), far, batch=b, window_coupled=coupled, clock=clock)
        for b in batches
    ]
    for _ in range(120):
        admitted = 0
        for node, batch in zip(fleet, batches, strict=True):
            small = batch.size("k") < most / 2
            for _ in range(rng.randint(50, 150) if small else rng.randint(0, 1)):
                clock.set(min(clock.now() + rng.choice((0, 0, 1)), _last_ms(clock)))
                admitted += node.check("k").allowed
        assert admitted <= (limit if coupled else limit + nodes * (most - 1))
        clock.set(_last_ms(clock) + 1)


def _last_ms(clock: ManualClock) -> int:
    return (clock.now() // WINDOW + 1) * WINDOW - 1
