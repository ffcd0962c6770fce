"""Charges: reserved, settled once, cancelled, booked ahead."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import (
    Charge,
    ConfigInvalidError,
    Limit,
    Limits,
    ManualClock,
    MemoryStore,
    Store,
    UnsupportedError,
    calendar_quota,
    fixed_window,
    gcra,
    limited,
    rate_limit,
    sliding_window,
    sliding_window_log,
    slots,
    token_bucket,
    unlimited,
)
from tests.conformance.broken_stores import DictStore

START = 1_700_000_000_000
STRATEGIES = [
    gcra(10, 1_000),
    token_bucket(10, 7),
    fixed_window(10, 1_000),
    fixed_window(10, 1_000, anchor="first"),
    sliding_window(10, 1_000),
    sliding_window_log(10, 1_000),
]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture(params=["memory", "in order"])
def store(request: pytest.FixtureRequest) -> Store:
    return MemoryStore() if request.param == "memory" else DictStore()


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_what_was_too_much_comes_back(strategy: Any, clock: ManualClock, store: Store) -> None:
    limiter = rate_limit(strategy, store=store, clock=clock)
    charge = limiter.reserve("k", 8)
    assert charge
    assert charge.starts_at == START
    assert limiter.peek("k").remaining == 2
    assert charge.settle(3)
    assert limiter.peek("k").remaining == 7


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_a_settlement_reports_what_it_could_not_charge(
    strategy: Any, clock: ManualClock, store: Store
) -> None:
    """A key owes at most one whole limit, so that no number locks it for long."""
    limiter = rate_limit(strategy, store=store, clock=clock)
    charge = limiter.reserve("k", 2)
    assert not charge.uncharged
    assert charge.settle(2**53 - 1)
    # A log counts no more than the limit at one instant.
    charged = 12 if strategy.name == "sliding_window_log" else 20
    assert charge.uncharged == {"": 2**53 - 1 - charged}
    assert not charge.settle(5)
    clock.advance(3_200)
    assert limiter.check("k", 10)


def test_a_settlement_of_several_limits_reports_by_name(clock: ManualClock, store: Store) -> None:
    limits = Limits({"calls": fixed_window(5, 1_000), "tokens": gcra(10, 1_000)}, store=store)
    charge = limits.reserve({"calls": "k", "tokens": "k"})
    charge.settle({"tokens": 1_000})
    assert charge.uncharged == {"tokens": 980}


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_what_was_too_little_is_taken_whatever_is_left(
    strategy: Any, clock: ManualClock, store: Store
) -> None:
    limiter = rate_limit(strategy, store=store, clock=clock)
    charge = limiter.reserve("k", 2)
    charge.settle(25)
    assert limiter.peek("k").remaining == 0
    assert not limiter.check("k")


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@given(reserved=st.integers(1, 10), used=st.integers(0, 10))
def test_a_settled_charge_is_one_of_what_was_used(strategy: Any, reserved: int, used: int) -> None:
    clock = ManualClock(START)
    limiter = rate_limit(strategy, clock=clock)
    limiter.reserve("k", reserved).settle(used)
    assert limiter.forecast("k").spendable_now == 10 - used


def test_a_charge_settles_once(clock: ManualClock, store: Store) -> None:
    limiter = rate_limit(fixed_window(10, 1_000), store=store, clock=clock)
    charge = limiter.reserve("k", 8)
    assert charge.is_open
    assert charge.settle(3)
    assert not charge.is_open
    assert not charge.settle(1)
    assert not charge.cancel()
    assert not asyncio.run(charge.asettle(0)) if store.answers_at_once else True
    assert limiter.peek("k").remaining == 7


def test_many_threads_settle_a_charge_once() -> None:
    limiter = rate_limit(gcra(1_000, 10**9))
    for _ in range(30):
        assert sum(_cancelled_by_many(limiter.reserve("k", 20))) == 1
    assert limiter.peek("k").remaining == 1_000


def _cancelled_by_many(charge: Charge) -> list[bool]:
    done: list[bool] = []
    threads = [threading.Thread(target=lambda: done.append(charge.cancel())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return done


def test_a_denied_charge_holds_nothing(clock: ManualClock, store: Store) -> None:
    limiter = rate_limit(fixed_window(5, 1_000), store=store, clock=clock)
    limiter.check("k", 4)
    charge = limiter.reserve("k", 2)
    assert not charge
    assert charge.decision.retry_after_ms > 0
    assert not charge.cancel()
    with pytest.raises(ConfigInvalidError, match="was denied"):
        charge.settle(1)
    assert limiter.peek("k").remaining == 1


def test_an_exception_cancels(clock: ManualClock, store: Store) -> None:
    limiter = rate_limit(fixed_window(5, 1_000), store=store, clock=clock)
    with pytest.raises(ZeroDivisionError), limiter.reserve("k", 3):
        raise ZeroDivisionError
    assert limiter.peek("k").remaining == 5
    with limiter.reserve("k", 3) as charge:
        charge.settle(1)
    assert limiter.peek("k").remaining == 4
    with limiter.reserve("k", 3) as charge:
        pass
    assert not charge.is_open
    assert limiter.peek("k").remaining == 1
    with limiter.reserve("k", 3) as charge:
        assert not charge


def test_the_async_twins_do_the_same() -> None:
    async def main() -> None:
        limiter = rate_limit(fixed_window(9, 1_000), clock=ManualClock(START))
        charge = await limiter.areserve("k", 5)
        assert await charge.asettle(2)
        with pytest.raises(ZeroDivisionError):
            async with await limiter.areserve("k", 5):
                raise ZeroDivisionError
        assert (await limiter.apeek("k")).remaining == 7
        await limiter.apause("k", START + 500)
        assert not await limiter.acheck("k")

    asyncio.run(main())


def test_several_limits_settle_together(clock: ManualClock, store: Store) -> None:
    limits = Limits(
        {
            "requests": fixed_window(10, 60_000),
            "tokens": token_bucket(1_000, 1),
            "trial": Limit(fixed_window(1, 60_000), shadow=True),
        },
        store=store,
        clock=clock,
    )
    keys = {"requests": "k", "tokens": "k", "trial": "k"}
    first = limits.reserve(keys, {"tokens": 600})
    second = limits.reserve(keys, {"tokens": 300})
    assert second.verdict is not None
    assert second.verdict.shadowed == ("trial",)
    assert dict(second.cost) == {"requests": 1, "tokens": 300}
    assert first.settle({"tokens": 250})
    assert second.settle({"tokens": 400, "trial": 1})
    left = {name: said.remaining for name, said in limits.peek(keys).limits.items()}
    assert left == {"requests": 8, "tokens": 350, "trial": 0}
    assert not limits.reserve(keys, {"tokens": 351})
    assert limits.peek(keys).limits["requests"].remaining == 8
    assert limits.reserve(keys, {"tokens": 350}).cancel()
    assert limits.peek(keys).limits["tokens"].remaining == 350


def test_what_was_estimated_at_nothing_is_charged_by_what_was_used(
    clock: ManualClock, store: Store
) -> None:
    """Where it is named: a number alone is for the limits that were charged. Slots that were not
    asked for are not given back."""
    limits = Limits(
        {"user": fixed_window(10, 60_000), "tokens": fixed_window(100, 60_000), "flight": slots(2)},
        store=store,
        clock=clock,
    )
    keys = dict.fromkeys(limits.limits, "k")
    holder = limits.reserve(keys, {"tokens": 0})
    charge = limits.reserve(keys, {"tokens": 0, "flight": 0})
    assert charge.settle({"tokens": 70, "flight": 0})
    assert limits.reserve(keys, {"tokens": 0, "flight": 0}).settle(3)
    left = limits.peek(keys).limits
    assert [decision.remaining for decision in left.values()] == [5, 30, 1]
    assert holder.settle({})


def test_a_charge_that_shadows_alone_would_deny_need_not_wait(clock: ManualClock) -> None:
    """Its decision is that of `unlimited()`, as a verdict has it."""
    limits = Limits({"trial": Limit(fixed_window(1, 60_000), shadow=True)}, clock=clock)
    charges = [limits.reserve({"trial": "k"}) for _ in range(2)]
    assert [(charge.allowed, charge.retry_after_ms) for charge in charges] == [(True, 0)] * 2
    assert charges[1].decision == unlimited().check(None, clock.now(), 1).result
    assert charges[1].verdict is not None
    assert charges[1].verdict.shadowed == ("trial",)


def test_what_was_not_charged_cannot_be_settled(clock: ManualClock) -> None:
    limits = Limits({"a": "9/second", "b": Limit("9/second", optional=True)}, clock=clock)
    charge = limits.reserve({"a": "k"})
    for actual, said in [
        ({"b": 1}, "'b', which was not charged"),
        ({"a": -1}, "actual cost of 'a'"),
        (1.5, "actual must be"),
        (-1, "actual must be"),
    ]:
        with pytest.raises(ConfigInvalidError, match=said):
            charge.settle(actual)  # type: ignore[arg-type]
    assert charge.settle({"a": 0})


def test_bookings_are_told_their_turn(clock: ManualClock, store: Store) -> None:
    limiter = rate_limit(gcra(10, 1_000, burst=1), store=store, clock=clock)
    charges = [limiter.reserve("k", max_wait_ms=400) for _ in range(6)]
    starts = [charge.starts_at - START for charge in charges if charge]
    assert starts == [0, 100, 200, 300, 400]
    assert not charges[5]
    assert charges[5].decision.retry_after_ms == 500
    assert not limiter.check("k")
    assert charges[4].cancel()
    assert limiter.reserve("k", max_wait_ms=400).starts_at == START + 400


def test_several_limits_book_what_has_a_pace(clock: ManualClock, store: Store) -> None:
    limits = Limits(
        {"slow": gcra(10, 1_000, burst=1), "fast": gcra(50, 1_000, burst=1), "day": "1000/day"},
        store=store,
        clock=clock,
    )
    keys = {"slow": "k", "fast": "k", "day": "k"}
    starts = [limits.reserve(keys, max_wait_ms=1_000).starts_at - START for _ in range(4)]
    assert starts == [0, 100, 200, 300]
    windowed = Limits(
        {"slow": gcra(10, 1_000, burst=1), "window": fixed_window(2, 60_000)},
        store=store,
        clock=clock,
        prefix="w",
    )
    keys = {"slow": "k", "window": "k"}
    booked = [windowed.reserve(keys, max_wait_ms=1_000) for _ in range(3)]
    assert [bool(charge) for charge in booked] == [True, True, False]
    assert windowed.reserve({"slow": "k", "window": "other"}, max_wait_ms=1_000).starts_at == (
        START + 200
    )


def test_limits_without_a_pace_cannot_be_booked(clock: ManualClock) -> None:
    """An answer that ignored the wait would look like a denial."""
    limits = Limits({"a": fixed_window(1, 1_000), "b": fixed_window(2, 1_000)}, clock=clock)
    keys = {"a": "k", "b": "k"}
    with pytest.raises(UnsupportedError, match="gcra"):
        limits.reserve(keys, max_wait_ms=5)
    with pytest.raises(UnsupportedError, match="gcra"):
        asyncio.run(limits.areserve(keys, max_wait_ms=5))
    assert limits.reserve(keys, max_wait_ms=0)


def test_windows_have_no_pace(clock: ManualClock) -> None:
    limiter = rate_limit(fixed_window(5, 1_000), clock=clock)
    with pytest.raises(UnsupportedError, match="gcra"):
        limiter.reserve("k", max_wait_ms=5)
    for wait in (-1, 1.5, "1s", True):
        with pytest.raises(ConfigInvalidError, match="max_wait_ms"):
            limiter.reserve("k", max_wait_ms=wait)  # type: ignore[arg-type]
    assert limiter.peek("k").remaining == 5


def test_a_pause_is_lifted_by_a_reset(clock: ManualClock, store: Store) -> None:
    limiter = rate_limit("10/second", store=store, clock=clock)
    limiter.pause("k", START + 60_000)
    assert limiter.check("k").retry_after_ms == 60_000
    assert limiter.check("other")
    limiter.reset("k")
    assert limiter.check("k")
    with pytest.raises(ConfigInvalidError, match="until_ms"):
        limiter.pause("k", -5)
    with pytest.raises(UnsupportedError, match="no limit"):
        rate_limit(unlimited(), clock=clock).pause("k", START)


@pytest.mark.parametrize("strategy", [*STRATEGIES, calendar_quota(10, "hour")], ids=repr)
def test_what_comes_back_during_a_pause_does_not_end_it(
    strategy: Any, clock: ManualClock, store: Store
) -> None:
    """Nothing is admitted before its end, and all that was charged may be charged again after."""
    limiter = rate_limit(strategy, store=store, clock=clock)
    charges = [limiter.reserve("k", cost) for cost in (3, 7)]
    limiter.pause("k", START + 2_000)
    for charge in charges:
        assert charge.cancel()
    for step in (0, 1_000, 999):
        clock.advance(step)
        assert not limiter.check("k")
    clock.advance(10 * limiter.strategy.ttl_ms)
    assert limiter.check("k", 10)


@pytest.mark.parametrize("strategy", [*STRATEGIES, calendar_quota(10, "hour")], ids=repr)
@pytest.mark.parametrize("back_ms", [1, 150, 5_000, 7_200_000])
def test_a_charge_comes_back_that_was_made_while_the_clock_was_back(
    strategy: Any, back_ms: int, clock: ManualClock, store: Store
) -> None:
    """Also where it was counted in a window that lies ahead of the clock."""
    limiter = rate_limit(strategy, store=store, clock=clock)
    limiter.check("k", 2)
    clock.set(START - back_ms)
    charge = limiter.reserve("k", 3)
    if charge:
        before = limiter.peek("k").remaining
        assert charge.cancel()
        assert limiter.peek("k").remaining == before + 3
    else:
        assert strategy.window_kind is None


def test_a_charge_says_what_it_is(clock: ManualClock) -> None:
    limiter = rate_limit("10/second", clock=clock)
    charge = limiter.reserve("k")
    assert isinstance(charge, Charge)
    assert "open" in repr(charge)
    charge.cancel()
    assert "settled" in repr(charge)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("how", ["with", "limited"])
def test_a_child_that_leaves_the_block_of_its_parent_gives_nothing_back(
    tmp_path: Path, how: str
) -> None:
    """The parent is still in there, and counts on its slot."""
    child = -1
    with rate_limit(slots(1), store=f"sqlite:///{tmp_path}/slots.db") as limiter:
        try:
            with limiter.reserve("k") if how == "with" else limited(limiter).on("k"):
                child = os.fork()
                if child:
                    os.waitpid(child, 0)
                    assert limiter.peek("k").remaining == 0
        finally:
            if not child:
                os._exit(0)
        assert limiter.peek("k").remaining == 1


class Late(MemoryStore):
    """Begins what is awaited only after a while."""

    async def aapply(self, key: str, transform: Any, now: int, cost: int) -> Any:
        await asyncio.sleep(0.05)
        return self.apply(key, transform, now, cost)


@pytest.mark.parametrize("way", ["asettle", "acancel"])
def test_a_task_that_is_cancelled_while_it_gives_a_slot_back_keeps_none(way: str) -> None:
    limiter = rate_limit(slots(1), store=Late())

    async def leaving() -> None:
        charge = await limiter.areserve("k")
        giving = charge.acancel() if way == "acancel" else charge.asettle({})
        task = asyncio.ensure_future(giving)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leaving())
    assert limiter.peek("k").remaining == 1
