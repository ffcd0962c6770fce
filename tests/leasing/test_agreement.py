"""The calls of one two-tier limiter agree, and what a node remembers is dropped in time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    ManualClock,
    MemoryStore,
    Strategy,
    UnsupportedError,
    fixed_window,
    gcra,
    rate_limit,
    sliding_window_log,
    token_bucket,
)
from penstock.leasing import two_tier
from penstock.service import build_service
from tests.leasing.far import FarStore
from tests.support.helpers import run

from .test_two_tier import each_mode
from .tiers import START, WINDOW, leased

STALE = 1_000
both_modes = pytest.mark.parametrize("mode", ["cached-deny", "leased"])


def node(store: Any, clock: ManualClock, mode: str, strategy: Strategy, **options: Any) -> Any:
    options = {"batch": 10, **options}
    return two_tier(strategy, store, mode, clock=clock, **options)


def exhausted(call: Any, limiter: Any, limit: int) -> None:
    while call(limiter, "check", "k").allowed:
        limit -= 1
    assert limit == 0


@both_modes
@each_mode
def test_a_refund_of_another_node_is_seen_within_max_stale_ms(
    call: Any, mode: str, clock: ManualClock
) -> None:
    """The wait in a remembered denial is the store's; only how long it is used is bounded."""
    store = MemoryStore()
    one = node(store, clock, mode, fixed_window(10, 40 * WINDOW))
    other = node(store, clock, mode, fixed_window(10, 40 * WINDOW))
    charge = call(other, "reserve", "k", 4)
    exhausted(call, one, 6)
    wait = call(one, "check", "k").retry_after_ms
    assert wait > 10 * WINDOW
    assert call(charge, "cancel")
    clock.advance(STALE - 1)
    assert call(one, "check", "k").retry_after_ms == wait - STALE + 1
    clock.advance(1)
    assert call(one, "check", "k").allowed


@both_modes
@each_mode
@pytest.mark.parametrize("change", ["cancel", "settle", "reset", "pause and reset"])
def test_a_change_of_this_node_is_seen_at_once(
    call: Any, mode: str, change: str, clock: ManualClock
) -> None:
    """At the same instant, in either mode."""
    limiter = node(MemoryStore(), clock, mode, fixed_window(10, WINDOW))
    charge = call(limiter, "reserve", "k", 4)
    exhausted(call, limiter, 6)
    if change == "settle":
        call(charge, "settle", 1)
    elif change == "cancel":
        call(charge, "cancel")
    else:
        if change != "reset":
            call(limiter, "pause", "k", START + WINDOW)
            assert not call(limiter, "check", "k").allowed
        call(limiter, "reset", "k")
    assert call(limiter, "check", "k").allowed


@pytest.mark.parametrize("mode", ["strict", "cached-deny", "leased"])
@each_mode
def test_a_pause_holds_on_the_node_that_pauses(call: Any, mode: str, clock: ManualClock) -> None:
    """Its credits are dropped; those of another node are less than a batch."""
    store = MemoryStore()
    one = node(store, clock, mode, gcra(100, WINDOW))
    other = node(store, clock, mode, gcra(100, WINDOW))
    assert call(one, "check", "k").allowed
    assert call(other, "check", "k").allowed
    call(one, "pause", "k", START + 10_000)
    denial = call(one, "check", "k")
    assert not denial.allowed
    assert denial.retry_after_ms == 10_000
    assert not call(one, "peek", "k").allowed
    assert call(one, "forecast", "k").spendable_now == 0
    assert not call(one, "reserve", "k").allowed
    spent = sum(call(other, "check", "k").allowed for _ in range(50))
    assert spent == (9 if mode == "leased" else 0)
    clock.advance(10_000)
    assert call(one, "check", "k").allowed


def test_credits_of_a_lease_in_flight_are_void_after_a_pause() -> None:
    """The pause cannot wait for the lease, because both are on one event loop."""

    async def story() -> None:
        far = FarStore()
        limiter = leased(far)
        far.agate = asyncio.Event()
        first = asyncio.create_task(limiter.acheck("k"))
        await asyncio.sleep(0.01)
        limiter.pause("k", far.clock.now() + 10)
        far.agate.set()
        await first
        assert limiter.peek("k").allowed is False
        assert not (await limiter.acheck("k")).allowed

    run(story())


@pytest.mark.parametrize("verb", ["reset", "pause"])
def test_a_denial_in_flight_is_not_remembered_after_a_change(verb: str) -> None:
    """The store decided it before the change, and the answer arrived after it."""

    async def story() -> None:
        far = FarStore()
        limiter = two_tier(fixed_window(10, WINDOW), far, "cached-deny", clock=far.clock)
        assert limiter.check("k", 10)
        answered = asyncio.Event()

        async def slow(key: str, transform: Any, now: int, cost: int) -> Any:
            decision = far.inner.apply(key, transform, far.clock.now(), cost)
            await answered.wait()
            return decision

        limiter._aapply = slow  # the reply of the store is late
        late = asyncio.create_task(limiter.acheck("k"))
        await asyncio.sleep(0.01)
        if verb == "pause":
            limiter.pause("k", 0)
        limiter.reset("k")
        answered.set()
        assert not (await late).allowed
        assert limiter.check("k").allowed

    run(story())


@each_mode
@both_modes
def test_a_wait_belongs_to_its_cost(call: Any, mode: str, clock: ManualClock) -> None:
    """In both orders: gcra replenishes one unit in 600 ms and ten in 6 s."""
    for costs in ((1, 10), (10, 1)):
        clock.set(START)
        limiter = node(MemoryStore(), clock, mode, gcra(100, WINDOW), batch=1)
        assert call(limiter, "check", "k", 100).allowed
        for elapsed in (0, 100):
            clock.set(START + elapsed)
            for cost in costs:
                assert call(limiter, "check", "k", cost).retry_after_ms == 600 * cost - elapsed


STRATEGIES = [
    fixed_window(12, WINDOW),
    gcra(12, WINDOW),
    token_bucket(12, 0.2),
    sliding_window_log(12, WINDOW),
]


@each_mode
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_reserve_takes_credits_where_the_store_has_nothing_left(
    call: Any, strategy: Strategy, clock: ManualClock
) -> None:
    """And a cancelled charge gives them back to the node."""
    store = MemoryStore()
    limiter = node(store, clock, "leased", strategy)
    assert call(limiter, "check", "k").remaining == 9
    assert rate_limit(strategy, store=store, clock=clock).check("k", 2).allowed
    assert call(limiter, "peek", "k").remaining == 9
    assert call(limiter, "forecast", "k").spendable_now == 9
    charges = [call(limiter, "reserve", "k", 4) for _ in range(3)]
    assert [charge.allowed for charge in charges] == [True, True, False]
    assert call(limiter, "peek", "k").remaining == 1
    assert call(charges[0], "cancel")
    assert not call(charges[0], "cancel")
    assert call(limiter, "peek", "k").remaining == 5
    assert call(charges[1], "settle", 1)
    assert [call(limiter, "check", "k").allowed for _ in range(9)] == [True] * 8 + [False]


@each_mode
def test_a_settlement_above_the_reserved_credits_is_charged_to_the_store(
    call: Any, clock: ManualClock
) -> None:
    """What was used has been used, by whatever tier."""
    store = MemoryStore()
    strategy = gcra(12, WINDOW)
    limiter, plain = (
        node(store, clock, "leased", strategy),
        rate_limit(strategy, store=store, clock=clock),
    )
    assert call(limiter, "check", "k").remaining == 9
    assert plain.check("k", 2).allowed
    before = plain.peek("k").retry_after_ms
    charge = call(limiter, "reserve", "k", 4)
    assert call(charge, "settle", 5)
    assert plain.peek("k").retry_after_ms == before + 5_000


@pytest.mark.parametrize("then", ["reset", "pause", "lease"])
@each_mode
def test_reserved_credits_do_not_come_back_after_a_change(
    call: Any, then: str, clock: ManualClock
) -> None:
    """A reset or a pause has voided them; with those of a new lease the node would hold more than a
    batch."""
    store = MemoryStore()
    limiter = node(store, clock, "leased", gcra(12, WINDOW))
    assert call(limiter, "check", "k").remaining == 9
    assert rate_limit(gcra(12, WINDOW), store=store, clock=clock).check("k", 2).allowed
    charge = call(limiter, "reserve", "k", 9)
    if then == "lease":
        clock.advance(WINDOW)
        assert call(limiter, "check", "k").remaining == 9
    elif then == "reset":
        call(limiter, "reset", "k")
    else:
        call(limiter, "pause", "k", clock.now() + 1)
    assert call(charge, "cancel")
    assert limiter._near.held("k") == (9 if then == "lease" else 0)


@each_mode
def test_reserve_serves_credits_while_the_store_is_away(call: Any, far: FarStore) -> None:
    """As `check` does."""
    limiter = leased(far)
    assert call(limiter, "check", "k").allowed
    far.broken = True
    charge = call(limiter, "reserve", "k", 9)
    assert charge.allowed
    assert call(charge, "cancel")
    assert call(limiter, "check", "k", 9).allowed


@pytest.mark.parametrize("is_async", [False, True])
def test_a_booking_prefers_credits_that_are_there(is_async: bool, clock: ManualClock) -> None:
    """Units now are better than units later."""
    store = MemoryStore()
    limiter = node(store, clock, "leased", gcra(12, WINDOW))
    assert limiter.check("k").remaining == 9
    assert rate_limit(gcra(12, WINDOW), store=store, clock=clock).check("k", 2).allowed

    def reserve(cost: int) -> Any:
        if is_async:
            return run(limiter.areserve("k", cost, max_wait_ms=WINDOW))
        return limiter.reserve("k", cost, max_wait_ms=WINDOW)

    assert reserve(9).starts_at == START
    assert reserve(1).starts_at == START + 5_000


def test_a_charge_of_a_service_invalidates_remembered_denials() -> None:
    """On the node that cancels it, at once; by its pauses and resets too."""

    async def story() -> None:
        from penstock.config import parse_policies

        text = (
            "version: 1\nlimiters:\n  api: {strategy: fixedWindow, limit: 10, window: 1d, "
            "twoTier: {mode: cached-deny}}\n"
        )
        clock = ManualClock(START)
        service = build_service(parse_policies(text, "p.yaml"), store=MemoryStore(), clock=clock)
        held = await service.reserve("api", "k", cost=10)
        assert not (await service.check("api", "k")).allowed
        assert await service.cancel(held.charge_id)
        assert (await service.check("api", "k")).allowed
        await service.check("api", "k", 9)
        assert not (await service.check("api", "k")).allowed
        await service.reset("api", "k")
        assert (await service.check("api", "k")).allowed
        await service.pause("api", START + 5_000, "k")
        assert not (await service.check("api", "k")).allowed
        await service.aclose()

    run(story())


def test_what_is_no_store_or_strategy_is_refused() -> None:
    """With the type that is needed."""
    with pytest.raises(ConfigInvalidError, match="store must be"):
        two_tier("5/minute", None)  # type: ignore[arg-type]
    with pytest.raises(ConfigInvalidError, match="strategy must be"):
        two_tier(None, MemoryStore())  # type: ignore[arg-type]


def test_a_leased_limiter_of_a_service_says_what_it_lacks() -> None:
    """Its credits stay."""
    from penstock.leasing import LeasedLimiter

    limiter = LeasedLimiter("127.0.0.1:1", "api")
    for verb in ("reserve", "pause", "reset"):
        with pytest.raises(UnsupportedError, match="ServiceLimiter"):
            getattr(limiter, verb)("k")
        with pytest.raises(UnsupportedError, match="ServiceLimiter"):
            run(getattr(limiter, f"a{verb}")("k"))
    limiter.close()
