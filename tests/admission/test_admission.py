"""Unified admission: slots, rate and cost behind one question."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import (
    ConfigInvalidError,
    Decision,
    Limiter,
    ManualClock,
    MemoryStore,
    Store,
    StoreUnavailableError,
    UnsupportedError,
    fixed_window,
    rate_limit,
)
from penstock.admission import AXES, Admission, AdmissionControl
from penstock.budget import token_budget
from penstock.concurrency import ConcurrencyLimiter, Gradient
from tests.support.helpers import NOW

WINDOW = 60_000
START = NOW // WINDOW * WINDOW


def control_of(
    clock: ManualClock, slots: int = 10, rate: int | None = None, budget: int | None = None
) -> AdmissionControl:
    return AdmissionControl(
        ConcurrencyLimiter(Gradient(slots, slots), clock=clock),
        None if rate is None else rate_limit(fixed_window(rate, WINDOW), clock=clock),
        None if budget is None else rate_limit(token_budget(budget, WINDOW), clock=clock),
    )


@pytest.mark.parametrize(
    ("slots", "rate", "budget", "axis"),
    [(1, 1, 1, "concurrency"), (2, 1, 1, "cost"), (2, 1, 3, "rate"), (2, 2, 3, "")],
)
def test_the_first_axis_that_denies_is_named(slots: int, rate: int, budget: int, axis: str) -> None:
    """And only it."""
    control = control_of(ManualClock(START), slots, rate, budget)
    assert control.admit("k").binding_axis == ""
    control.debit("k", 2)
    second = control.admit("k")
    assert second.binding_axis == axis
    assert bool(second) == (axis == "")
    assert set(second.axes) <= set(AXES)
    assert second.tightest()[0] in (axis, "concurrency", "rate")


def test_a_denial_gives_the_slot_back_and_learns_nothing() -> None:
    """A slot that was only tried is not in flight and no sample."""
    control = control_of(ManualClock(START), slots=5, rate=1)
    assert control.admit("k")
    before = control.concurrency.limit
    for _ in range(20):
        assert not control.admit("k")
    assert control.concurrency.in_flight == 1
    assert control.concurrency.limit == before


def test_a_denial_leaves_nothing_charged() -> None:
    """Whichever axis it is that denies."""
    control = control_of(ManualClock(START), slots=1, rate=2, budget=100)
    assert control.rate is not None
    assert control.budget is not None
    held = control.admit("k")
    assert control.admit("k").binding_axis == "concurrency"
    assert control.rate.peek("k").remaining == 1
    control.release(held.lease_id)
    control.debit("k", 100)
    assert control.admit("k").binding_axis == "cost"
    assert control.rate.peek("k").remaining == 1
    assert control.concurrency.in_flight == 0
    assert control.admit("other", cost=3).binding_axis == "rate"
    assert control.rate.peek("other").remaining == 2
    assert control.budget.peek("other").remaining == 100


def test_the_decision_combines_those_of_the_axes_asked() -> None:
    """The least of limit and remaining, the latest of reset and retry."""
    control = control_of(ManualClock(START), slots=5, rate=3, budget=100)
    admitted = control.admit("k", cost=2)
    assert admitted.decision == Decision(True, 3, 1, START + WINDOW, 0)
    assert admitted.lease_expires_at == START + 2_000
    assert admitted.tightest() == ("rate", Decision(True, 3, 1, START + WINDOW, 0))
    denied = control.admit("k", cost=2)
    assert denied == Admission(Decision(False, 3, 1, START + WINDOW, WINDOW), binding_axis="rate")
    assert denied.tightest() == ("rate", Decision(False, 3, 1, START + WINDOW, WINDOW))


def test_asking_the_budget_spends_nothing() -> None:
    """What was used is debited afterwards."""
    control = control_of(ManualClock(START), budget=100)
    assert control.admit("k", cost=100)
    assert control.admit("k", cost=100)
    assert control.debit("k", 150)
    assert control.admit("k").binding_axis == "cost"
    assert not asyncio.run(control.adebit("k", 1))


def in_one_step(clock: ManualClock, budget: int) -> AdmissionControl:
    store = MemoryStore()
    return AdmissionControl(
        ConcurrencyLimiter(Gradient(10, 10), clock=clock, store=store),
        budget=rate_limit(token_budget(budget, WINDOW), clock=clock, store=store, prefix="budget"),
    )


def in_two_steps(clock: ManualClock, budget: int) -> AdmissionControl:
    return control_of(clock, budget=budget)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("make", [in_one_step, in_two_steps])
def test_an_estimate_that_does_not_fit_the_budget_is_refused(make: Any, mode: str) -> None:
    """Although some is left; one that fits to the last token is let in."""
    clock = ManualClock(START + 1_000)
    control = make(clock, 100)

    def admit(cost: int) -> Admission:
        if mode == "sync":
            return control.admit("k", cost)
        return asyncio.run(control.aadmit("k", cost))

    control.debit("k", 60)
    refused = admit(41)
    assert refused.binding_axis == "cost"
    assert refused.axes["cost"] == Decision(False, 100, 40, START + WINDOW, WINDOW - 1_000)
    assert control.concurrency.in_flight == 0
    fitting = admit(40)
    assert fitting.axes["cost"] == Decision(True, 100, 40, START + WINDOW, 0)
    assert control.budget.peek("k").remaining == 40
    assert admit(101).binding_axis == "cost"
    clock.advance(WINDOW)
    assert admit(100)


def test_a_budget_of_any_strategy_refuses_what_does_not_fit() -> None:
    """It is asked for the cost, and spends none of it."""
    clock = ManualClock(START)
    control = AdmissionControl(
        ConcurrencyLimiter(Gradient(5, 5), clock=clock),
        budget=rate_limit(fixed_window(10, WINDOW), clock=clock),
    )
    control.debit("k", 4)
    assert control.admit("k", cost=7).axes["cost"] == Decision(False, 10, 6, START + WINDOW, WINDOW)
    assert control.admit("k", cost=6).axes["cost"] == Decision(True, 10, 6, START + WINDOW, 0)


def test_true_estimates_one_at_a_time_never_pass_the_budget() -> None:
    """Threads that debit what they estimated, while they hold the only slot: the slot and the
    budget are asked in one step, so nothing is served beyond the budget."""
    store = MemoryStore()
    control = AdmissionControl(
        ConcurrencyLimiter(Gradient(1, 1), store=store, lease_ttl_ms=60_000),
        budget=rate_limit(token_budget(1_000, 86_400_000), store=store, prefix="budget"),
    )

    def work(cost: int) -> int:
        served = 0
        while True:
            admitted = control.admit("k", cost)
            if admitted.binding_axis == "cost":
                return served
            if admitted:
                assert control.debit("k", cost)
                served += cost
                control.release(admitted.lease_id)

    with ThreadPoolExecutor(4) as crowd:
        served = sum(crowd.map(work, (7, 11, 13, 17)))
    assert 1_000 - 7 < served <= 1_000


def test_without_a_budget_there_is_nothing_to_debit() -> None:
    """The error says what is missing."""
    with pytest.raises(UnsupportedError, match="budget="):
        control_of(ManualClock(START)).debit("k", 1)


def test_release_and_heartbeat_are_those_of_the_slots() -> None:
    """Idempotent, and telling the living from the reclaimed."""
    clock = ManualClock(START)
    control = control_of(clock)
    first, second = control.admit("k"), control.admit("k")
    assert control.release(first.lease_id)
    assert not control.release(first.lease_id)
    clock.advance(2_000)
    beat = control.heartbeat([second.lease_id])
    assert beat.reclaimed_ids == [second.lease_id]


class Counting(MemoryStore):
    """Notes how many steps each call has."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    def apply_all(self, steps: Any, now: int) -> list[Any]:
        self.calls.append(len(steps))
        return super().apply_all(steps, now)


@pytest.mark.parametrize(("slots", "rate", "axis"), [(1, 9, "concurrency"), (9, 1, "rate")])
def test_axes_on_one_store_are_one_step(slots: int, rate: int, axis: str) -> None:
    """Admitted or denied, in one call, and a denial leaves nothing charged."""
    store, clock = Counting(), ManualClock(START)
    control = AdmissionControl(
        ConcurrencyLimiter(Gradient(slots, slots), clock=clock, store=store),
        rate_limit(fixed_window(rate, WINDOW), clock=clock, store=store, prefix="rate"),
        rate_limit(token_budget(100, WINDOW), clock=clock, store=store, prefix="budget"),
    )
    assert control.concurrency.sweep() == 0
    store.calls.clear()
    admitted = control.admit("k")
    assert admitted
    denied = control.admit("k")
    assert denied.binding_axis == axis
    assert store.calls == [3, 3]
    assert control.concurrency.in_flight == 1
    assert control.rate is not None
    assert control.rate.peek("k").remaining == rate - 1
    assert control.release(admitted.lease_id)
    assert asyncio.run(control.aadmit("other")).axes.keys() == {"concurrency", "cost", "rate"}


def test_axes_by_different_clocks_are_asked_one_after_the_other() -> None:
    """Each at its own instant."""
    store, later = Counting(), START + 60_000
    control = AdmissionControl(
        ConcurrencyLimiter(Gradient(1, 1), clock=ManualClock(START), store=store),
        rate_limit(fixed_window(1, WINDOW), clock=ManualClock(later), store=store, prefix="rate"),
    )
    first = control.admit("k")
    assert first.axes["rate"].reset_at == later // WINDOW * WINDOW + WINDOW
    assert first.lease_expires_at == START + 2_000


class Broken(Store):
    """A store that is away."""

    def apply(self, *_: Any) -> Any:
        raise StoreUnavailableError("away")

    async def aapply(self, *_: Any) -> Any:
        raise StoreUnavailableError("away")


class Hanging(Store):
    """A store that does not answer."""

    async def aapply(self, *_: Any) -> Any:
        await asyncio.sleep(3_600)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_store_that_fails_gives_the_slot_back(mode: str) -> None:
    """The error reaches the caller, and nothing stays in flight."""
    slots = ConcurrencyLimiter(clock=ManualClock(START))
    control = AdmissionControl(slots, Limiter(fixed_window(1, WINDOW), Broken()))
    with pytest.raises(StoreUnavailableError):
        control.admit("k") if mode == "sync" else asyncio.run(control.aadmit("k"))
    assert slots.in_flight == 0


def test_a_cancelled_admission_gives_the_slot_back() -> None:
    """A caller who left while a store was asked holds nothing."""
    slots = ConcurrencyLimiter(clock=ManualClock(START))
    control = AdmissionControl(slots, Limiter(fixed_window(1, WINDOW), Hanging()))

    async def main() -> None:
        task = asyncio.create_task(control.aadmit("k"))
        await asyncio.sleep(0)
        assert slots.in_flight == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    assert slots.in_flight == 0


@pytest.mark.parametrize("options", [{"key": ""}, {"cost": 0}, {"cost": True}])
def test_bad_input_is_refused_before_anything_is_taken(options: dict[str, Any]) -> None:
    """No slot, no unit, no token."""
    control = control_of(ManualClock(START), rate=5)
    with pytest.raises(ConfigInvalidError):
        control.admit(**{"key": "k", **options})
    assert control.concurrency.in_flight == 0


requests = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 30), st.booleans()), max_size=40)


@given(st.integers(1, 6), st.integers(1, 12), st.integers(1, 60), requests)
def test_sync_and_async_calls_admit_the_same(
    slots: int, rate: int, budget: int, plan: list[Any]
) -> None:
    """One flow, two shells: every answer but for the lease's name is equal."""

    def told(admission: Admission) -> tuple[Any, ...]:
        return admission.decision, admission.lease_expires_at, admission.binding_axis

    async def main() -> None:
        one = control_of(ManualClock(START), slots, rate, budget)
        two = control_of(ManualClock(START), slots, rate, budget)
        for cost, tokens, leaves in plan:
            here = one.admit("k", cost)
            there = await two.aadmit("k", cost)
            assert told(here) == told(there)
            assert bool(here) == bool(here.lease_id) == (here.binding_axis == "")
            if here and tokens:
                assert one.debit("k", tokens) == await two.adebit("k", tokens)
            if here and leaves:
                one.release(here.lease_id)
                two.release(there.lease_id)
            assert one.concurrency.in_flight == two.concurrency.in_flight

    asyncio.run(main())
