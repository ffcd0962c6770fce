"""The three modes, on clocks moved by hand."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    Decision,
    ManualClock,
    MemoryStore,
    Strategy,
    fixed_window,
    gcra,
    rate_limit,
    sliding_window,
    sliding_window_log,
    token_bucket,
    unlimited,
)
from penstock.leasing import AdaptiveBatch, TwoTierLimiter, two_tier
from tests.leasing.far import FarStore
from tests.support.helpers import KINDS, CountingClock, draw_strategy, draw_timeline, run

from .tiers import START, WINDOW, leased

# Either mode, as a plain call.
CALLS: dict[str, Callable[..., Any]] = {
    "sync": lambda limiter, verb, *args: getattr(limiter, verb)(*args),
    "async": lambda limiter, verb, *args: run(getattr(limiter, f"a{verb}")(*args)),
}
each_mode = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@each_mode
def test_a_batch_costs_one_round_trip(call: Any, far: FarStore) -> None:
    """30 requests, 3 leases; each decision reads as one of the limit's."""
    limiter = leased(far)
    decisions = [call(limiter, "check", "alice") for _ in range(30)]
    assert far.calls == [("alice", "lease", 10)] * 3
    assert all(decision.allowed for decision in decisions)
    assert [decision.remaining for decision in decisions] == [*range(9, -1, -1)] * 3
    assert decisions[0] == Decision(True, 100, 9, START + WINDOW, 0)


@each_mode
def test_the_limit_is_the_limit(call: Any, far: FarStore) -> None:
    """25 with batches of 10: the last lease takes the 5 that are left, then it is denied."""
    limiter = leased(far, limit=25)
    allowed = [call(limiter, "check", "alice").allowed for _ in range(40)]
    assert allowed == [True] * 25 + [False] * 15
    # 10, 10, 10 refused, 5 taken; then one refusal, which is remembered.
    assert [cost for _, _, cost in far.calls] == [10, 10, 10, 10]
    assert [grant.capacity for _, grant in far.grants] == [10, 10, 5, 0]


def test_what_is_left_is_taken_by_whoever_needs_it(far: FarStore) -> None:
    """No budget is stranded at the end of a window: two nodes share the last units."""
    one, two = leased(far, limit=13), leased(far, limit=13)
    served = [one.check("k").allowed for _ in range(10)] + [two.check("k").allowed for _ in "12345"]
    assert served == [True] * 13 + [False] * 2


def test_a_cost_above_the_batch_leases_that_much(far: FarStore) -> None:
    """One lease of max(batch, cost)."""
    limiter = leased(far, limit=50)
    assert limiter.check("k", 30) == Decision(True, 50, 0, START + WINDOW, 0)
    assert limiter.check("k", 15).allowed
    assert not limiter.check("k", 6).allowed
    assert limiter.check("k", 5).allowed
    assert [grant.capacity for _, grant in far.grants] == [30, 15, 0, 5]


def test_a_cost_above_the_limit_is_denied_once_per_window(
    far: FarStore, clock: ManualClock
) -> None:
    """And leaves smaller requests alone."""
    limiter = leased(far, limit=5)
    assert [limiter.check("k", 6).allowed for _ in range(5)] == [False] * 5
    assert far.leases == 1
    assert limiter.check("k", 5).allowed
    clock.advance(WINDOW)
    assert not limiter.check("k", 6).allowed
    assert far.leases == 3


@each_mode
def test_a_denial_is_remembered_while_it_holds(
    call: Any, far: FarStore, clock: ManualClock
) -> None:
    """A flood of denied requests is no load on the store; its wait counts down."""
    limiter = leased(far, limit=10, max_stale_ms=WINDOW)
    for _ in range(10):
        call(limiter, "check", "k")
    assert call(limiter, "check", "k").retry_after_ms == WINDOW
    asked = far.leases
    clock.advance(WINDOW - 1)
    assert call(limiter, "check", "k") == Decision(False, 10, 0, START + WINDOW, 1)
    assert far.leases == asked
    clock.advance(1)
    assert call(limiter, "check", "k").allowed


def test_credits_that_nobody_spends_are_dropped(far: FarStore, clock: ManualClock) -> None:
    """`return_idle_after_ms` counts from the last spend."""
    limiter = leased(far, return_idle_after_ms=500)
    limiter.check("k")
    clock.advance(499)
    assert limiter.check("k").remaining == 8
    clock.advance(499)
    assert limiter.check("k").remaining == 7
    clock.advance(500)
    assert limiter.check("k").remaining == 9
    assert far.leases == 2


def test_what_a_node_remembers_is_bounded(far: FarStore) -> None:
    """Credits and denials of more keys than fit are forgotten: stranded, never over-spent."""
    limiter = leased(far, limit=10, max_keys=50)
    assert isinstance(limiter, TwoTierLimiter)
    for number in range(500):
        limiter.check(f"k{number}", 11)
        limiter.check(f"k{number}")
    near = limiter._near
    assert len(limiter.near_store) <= 50
    assert len(near.denials) <= 50
    assert len(near.queues) == 0


def test_reset_forgets_both_tiers(far: FarStore) -> None:
    """The key starts afresh; so does its denial."""
    limiter = leased(far, limit=10)
    for _ in range(11):
        limiter.check("k")
    limiter.reset("k")
    assert limiter.check("k").remaining == 9
    run(limiter.areset("k"))
    assert limiter.check("k").remaining == 9
    with pytest.raises(ConfigInvalidError):
        limiter.reset("")


def test_peek_and_forecast_spend_nothing(far: FarStore) -> None:
    """Local credits first, else how the store stands; a forecast counts both."""
    limiter = leased(far, limit=30)
    assert limiter.peek("k").remaining == 30
    limiter.check("k")
    assert limiter.peek("k") == run(limiter.apeek("k")) == Decision(True, 30, 9, START + WINDOW, 0)
    assert limiter.forecast("k").spendable_now == 29
    assert run(limiter.aforecast("k", 2)).spendable_now == 10 + 4
    assert limiter.check("k").remaining == 8


@each_mode
def test_check_many_is_one_check_per_key(call: Any, far: FarStore) -> None:
    """In order, duplicates included; a bad key refuses the call before anything is charged."""
    limiter = leased(far, limit=3, batch=2)
    decisions = call(limiter, "check_many", ["a", "b", "a", "a", "a"])
    assert [decision.allowed for decision in decisions] == [True, True, True, True, False]
    before = far.leases
    with pytest.raises(ConfigInvalidError):
        call(limiter, "check_many", ["c", ""])
    with pytest.raises(ConfigInvalidError):
        call(limiter, "check_many", ["c"], 0)
    assert far.leases == before


def test_keys_are_prefixed_in_the_store(far: FarStore) -> None:
    """As everywhere: one place joins them."""
    leased(far, prefix="api").check("k")
    assert far.calls == [("api:k", "lease", 10)]


def test_what_a_caller_gets_wrong_is_refused_before_the_store_is_asked(far: FarStore) -> None:
    """Keys and costs, sync and async."""
    limiter = leased(far)
    for key, cost in (("", 1), (7, 1), ("k", 0), ("k", 1.0), ("k", True), ("k", 2**53)):
        with pytest.raises(ConfigInvalidError):
            limiter.check(key, cost)  # type: ignore[arg-type]
        with pytest.raises(ConfigInvalidError):
            run(limiter.acheck(key, cost))  # type: ignore[arg-type]
    assert far.leases == 0


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"mode": "loose"}, "mode"),
        ({"batch": 0}, "batch"),
        ({"batch": 2.0}, "batch"),
        ({"batch": 10, "low_water": 10}, "low_water"),
        ({"batch": AdaptiveBatch(most=50), "low_water": 50}, "low_water"),
        ({"low_water": -1}, "low_water"),
        ({"return_idle_after_ms": 0}, "return_idle_after_ms"),
        ({"max_stale_ms": 0}, "max_stale_ms"),
        ({"max_stale_ms": True}, "max_stale_ms"),
        ({"max_stale_ms": 0.5}, "max_stale_ms"),
        ({"window_coupled": "yes"}, "window_coupled"),
        ({"max_keys": 0}, "max_keys"),
    ],
)
@pytest.mark.parametrize("mode", ["strict", "cached-deny", "leased"])
def test_options_that_could_not_work_are_refused(options: Any, named: str, mode: str) -> None:
    """By name, with what would be right, in every mode: it is one word away from another."""
    with pytest.raises(ConfigInvalidError, match=named):
        two_tier(gcra(5, 1_000), MemoryStore(), **{"mode": mode, **options})


@pytest.mark.parametrize(
    ("strategy", "coupled"),
    [
        (fixed_window(5, 1_000), True),
        (sliding_window(5, 1_000), True),
        (sliding_window_log(5, 1_000), True),
        (gcra(5, 1_000), False),
        (token_bucket(5, 1), False),
        (unlimited(), False),
    ],
    ids=repr,
)
def test_coupling_follows_the_strategy_unless_told(strategy: Strategy, coupled: bool) -> None:
    """Where there is a window, credits are coupled to it."""
    default = two_tier(strategy, MemoryStore())
    assert isinstance(default, TwoTierLimiter)
    assert default.window_coupled is coupled
    told = two_tier(strategy, MemoryStore(), window_coupled=not coupled)
    assert isinstance(told, TwoTierLimiter)
    assert told.window_coupled is not coupled
    assert told.check("k").allowed


@pytest.mark.parametrize("text", ["100/minute", "5/second"])
def test_a_rate_may_be_written_as_text(text: str) -> None:
    """As for rate_limit."""
    for mode in ("strict", "cached-deny", "leased"):
        assert two_tier(text, MemoryStore(), mode).check("k").allowed


def test_strict_is_a_plain_limiter() -> None:
    """Every check goes to the store."""
    clock, store = ManualClock(START), MemoryStore()
    strict = two_tier(fixed_window(5, WINDOW), store, "strict", clock=clock)
    plain = rate_limit(fixed_window(5, WINDOW), store=store, clock=clock)
    assert strict.check("k").remaining == 4
    assert plain.check("k").remaining == 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(8))
def test_cached_deny_decides_as_strict_does(kind: str, seed: int) -> None:
    """Two nodes on one store: what is allowed is the same, request by request."""
    rng = random.Random(f"{kind}{seed}")
    strategy = draw_strategy(kind, rng)
    clock = ManualClock(0)
    oracle = rate_limit(strategy, store=MemoryStore(), clock=clock)
    shared = MemoryStore()
    nodes = [two_tier(strategy, shared, "cached-deny", clock=clock) for _ in range(2)]
    for now, cost in draw_timeline(strategy, rng, 200, back=False):
        clock.set(now)
        node, wanted = rng.choice(nodes), oracle.check("k", cost)
        got = node.check_many(["k"], cost)[0] if rng.random() < 0.2 else node.check("k", cost)
        assert (got.allowed, got.limit) == (wanted.allowed, wanted.limit)
        assert (got.retry_after_ms == 0) is got.allowed


@each_mode
def test_cached_deny_asks_no_more_while_a_denial_holds(
    call: Any, far: FarStore, clock: ManualClock
) -> None:
    """A smaller request is still asked for; a reset forgets; many at once ask once."""
    limiter = two_tier(fixed_window(5, WINDOW), far, "cached-deny", clock=clock)
    assert call(limiter, "check", "k", 3).allowed
    assert [call(limiter, "check", "k", 3).allowed for _ in range(9)] == [False] * 9
    assert far.leases == 2
    assert call(limiter, "check", "k", 2).allowed
    assert not call(limiter, "check", "k").allowed
    assert far.leases == 4
    many = call(limiter, "check_many", ["k", "other", "k", "other"])
    assert [decision.allowed for decision in many] == [False, True, False, True]
    assert far.leases == 6
    call(limiter, "reset", "k")
    assert call(limiter, "check", "k").allowed


def test_an_adaptive_batch_is_taken_in_place_of_a_number(far: FarStore) -> None:
    """It starts small and grows with demand."""
    limiter = leased(far, limit=10_000, batch=AdaptiveBatch(least=2))
    for _ in range(3_000):
        limiter.check("k")
    sizes = [cost for _, _, cost in far.calls]
    assert sizes[0] == 2
    assert sizes[-1] > 50


def test_many_keys_with_credits_are_decided_at_one_instant() -> None:
    """The clock is read once for all of them."""
    clock = CountingClock(START)
    far = FarStore()
    limiter = two_tier(fixed_window(100, WINDOW), far, batch=10, clock=clock)
    limiter.check_many(["a", "b", "c"])
    before, asked = clock.reads, far.leases
    assert [d.remaining for d in limiter.check_many(["a", "b", "c", "a"])] == [8, 8, 8, 7]
    assert (clock.reads - before, far.leases) == (1, asked)


@each_mode
@pytest.mark.parametrize("low_water", [0, 9])
@pytest.mark.parametrize("mode", ["strict", "cached-deny", "leased"])
def test_many_keys_cost_one_reading_of_the_clock(mode: str, low_water: int, call: Any) -> None:
    """Cold, denied for the first time, and denied from memory."""
    clock = CountingClock(START)
    limiter = two_tier(fixed_window(1, WINDOW), MemoryStore(), mode, 10, low_water, clock=clock)
    for allowed in (True, False, False):
        clock.reads = 0
        decisions = call(limiter, "check_many", [f"k{number}" for number in range(20)])
        assert [decision.allowed for decision in decisions] == [allowed] * 20
        assert clock.reads == 1
        limiter.close()
