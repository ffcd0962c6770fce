"""Credits and the windows they belong to, on clocks that differ."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Decision, ManualClock, fixed_window, rate_limit, sliding_window_log
from penstock.core._transform import leasing
from penstock.leasing import TwoTierLimiter, two_tier
from penstock.leasing._credits import term_of
from penstock.leasing._near import NearTier
from tests.leasing.far import FarStore, ServerClock

from .tiers import START, WINDOW, leased


def test_credits_are_void_when_their_window_ends(far: FarStore, clock: ManualClock) -> None:
    """To the millisecond, and the next request leases from the new window."""
    limiter = leased(far)
    limiter.check("k")
    clock.advance(WINDOW - 1)
    assert limiter.check("k") == Decision(True, 100, 8, START + WINDOW, 0)
    clock.advance(1)
    assert limiter.check("k") == Decision(True, 100, 9, START + 2 * WINDOW, 0)
    assert far.leases == 2


def test_carried_credits_are_spent_in_the_next_window(far: FarStore, clock: ManualClock) -> None:
    """That is the bound's N * (B - 1): here 9 + 100 in the second window."""
    limiter = leased(far, window_coupled=False)
    limiter.check("k")
    clock.advance(WINDOW)
    admitted = sum(limiter.check("k").allowed for _ in range(200))
    assert admitted == 100 + (10 - 1)


@pytest.mark.parametrize("offset_ms", [-5_000, -1, 0, 1, 5_000, 10**9])
def test_the_time_of_day_of_a_node_does_not_matter(offset_ms: int) -> None:
    """The store says how long its window lasts; the node only counts milliseconds."""
    node = ManualClock(START)
    far = FarStore(ServerClock(node, offset_ms))  # type: ignore[arg-type]
    limiter = two_tier(fixed_window(100, WINDOW), far, batch=10, clock=node)
    end = (far.clock.now() // WINDOW + 1) * WINDOW
    assert limiter.check("k").reset_at == end
    node.advance(end - far.clock.now() - 1)
    assert limiter.check("k").remaining == 8
    node.advance(1)
    assert limiter.check("k").reset_at == end + WINDOW
    assert far.leases == 2


def test_a_wall_clock_that_is_set_back_does_not_stretch_a_window(clock: ManualClock) -> None:
    """Spans are measured by a steady clock, unless a test moves time by hand."""

    class Wall:
        def now(self) -> int:
            return readings.pop()

    readings = [0]
    limiter = two_tier(fixed_window(9, WINDOW), FarStore(clock), batch=5, clock=Wall())
    limiter.check("k")
    assert readings == [0]


@pytest.mark.parametrize("low_water", [10, 25, 50, 75, 98])
def test_a_low_water_mark_costs_a_trip_per_credits_above_it(far: FarStore, low_water: int) -> None:
    """`batch - 1 - low_water` requests each, as documented."""
    limiter = leased(far, limit=10_000, batch=100, low_water=low_water)
    assert isinstance(limiter, TwoTierLimiter)
    for _ in range(1_000):
        assert limiter.check("k").allowed
        limiter.close()
    assert far.leases == pytest.approx(1_000 / (99 - low_water), abs=1)


@pytest.mark.parametrize("span_ms", [1_000, 60_000, 86_400_000])
@pytest.mark.parametrize("ppm", [-500, 500])
def test_clocks_that_run_apart_do_not_stretch_a_window(span_ms: int, ppm: int) -> None:
    """Each slewed by as much as systems do, in opposite directions; the loss is small."""
    far = FarStore(ManualClock(START // span_ms * span_ms))
    clock = ManualClock(START)
    near = NearTier(
        limit=100,
        batch=10,
        term=term_of(fixed_window(100, span_ms), None),
        idle_ms=None,
        max_keys=10,
        clock=clock,
        foreign_clock=True,
    )
    request = near.ask("k", 1)
    lease = leasing(fixed_window(100, span_ms), 1)
    near.receive(request, 1, far.apply("k", lease, 0, request.want))
    # How far this node's clock gets while the store's measures the window.
    seen_ms = span_ms * (1_000_000 + ppm) // (1_000_000 - ppm)
    clock.set(START + min(seen_ms, span_ms * 998 // 1_000 - 2))
    assert near.held("k") == 9
    clock.set(START + seen_ms)
    assert near.held("k") == 0


@pytest.mark.parametrize("slow_ms", [0, 400, WINDOW - 1, WINDOW, 3 * WINDOW])
def test_a_slow_answer_shortens_the_credits_and_never_lengthens_them(slow_ms: int) -> None:
    """They are reckoned from the moment of asking. The request itself was admitted by the store."""
    clock = ManualClock(START)

    class Slow(FarStore):
        def _answer(self, key: str, transform: Any, cost: int) -> Any:
            result = super()._answer(key, transform, cost)
            clock.advance(slow_ms)
            return result

    limiter = two_tier(fixed_window(100, WINDOW), Slow(clock), batch=10, clock=clock)
    decision = limiter.check("k")
    assert decision.allowed
    assert decision.reset_at == START + WINDOW
    assert decision.remaining == (9 if slow_ms < WINDOW else 0)


def test_credits_of_a_sliding_window_last_as_long_as_they_count(clock: ManualClock) -> None:
    """Not until the oldest request of others leaves the window, which may be at once."""
    far = FarStore(clock)
    rate_limit(sliding_window_log(50, 1_000), store=far.inner, clock=clock).check("k")
    clock.advance(999)
    limiter = two_tier(sliding_window_log(50, 1_000), far, batch=10, clock=clock)
    limiter.check("k")
    clock.advance(999)
    assert limiter.check("k").remaining == 8
    clock.advance(1)
    assert limiter.check("k").remaining == 9
