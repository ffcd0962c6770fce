"""The blocks of charges: what comes out of them, and what is kept renewed in them."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    Limit,
    Limits,
    ManualClock,
    RateLimitExceededError,
    StoreUnavailableError,
    fixed_window,
    gcra,
    rate_limit,
    slots,
)
from tests.support.helpers import GoneStore, run


class OwnError(Exception):
    """Of the caller."""


def test_the_exception_of_a_block_comes_out_though_the_store_is_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A refund that is lost is logged; what the caller waits for is its own exception."""
    store = GoneStore()
    limiter = rate_limit(gcra(10, 1_000), store=store)

    def fail() -> None:
        store.is_gone = True
        raise OwnError

    with pytest.raises(OwnError), limiter.reserve("k"):
        fail()

    async def awaited() -> None:
        store.is_gone = False
        async with await limiter.areserve("k"):
            fail()

    with pytest.raises(OwnError):
        run(awaited())
    assert caplog.text.count("a charge could not be refunded: gone") == 2


def test_a_task_that_is_cancelled_in_a_block_is_cancelled_though_the_store_is_away() -> None:
    store = GoneStore()
    limiter = rate_limit(slots(1), store=store)

    async def main() -> None:
        async def work() -> None:
            async with await limiter.areserve("k"):
                store.is_gone = True
                await asyncio.sleep(60)

        task = asyncio.ensure_future(work())
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()

    run(main())


def test_a_block_that_ends_well_says_that_the_store_is_away() -> None:
    """What it spent was not settled, and nothing else tells of it."""
    store = GoneStore()
    limiter = rate_limit(slots(1), store=store)
    with pytest.raises(StoreUnavailableError), limiter.reserve("k"):
        store.is_gone = True


def test_a_denied_charge_is_kept_renewed_without_effect() -> None:
    """So that one line serves both: `with pool.reserve(key).keep_renewed() as charge`."""
    pool = rate_limit(slots(1), clock=ManualClock())
    lost: list[Any] = []
    with pool.reserve("k").keep_renewed(lost.append) as charge:
        assert charge
        with pool.reserve("k").keep_renewed(lost.append) as other:
            assert not other
            assert not other.holds
    assert pool.peek("k").remaining == 1

    async def awaited() -> None:
        async with (await pool.areserve("k")).akeep_renewed(lost.append) as charge:
            assert charge.holds
            assert not (await pool.areserve("k")).akeep_renewed(lost.append)

    run(awaited())
    assert lost == []


def test_an_allowed_charge_without_slots_cannot_be_kept_renewed() -> None:
    limits = Limits({"rate": "10/second", "flight": Limit(slots(1), optional=True)})
    charge = limits.reserve({"rate": "k"})
    with pytest.raises(ConfigInvalidError, match="this one holds none"):
        charge.keep_renewed()


def test_the_charge_of_one_limit_is_settled_by_a_number() -> None:
    charge = rate_limit("10/second").reserve("k", 5)
    with pytest.raises(ConfigInvalidError, match="one limit, so actual must be a number"):
        charge.settle({"k": 3})
    assert charge.is_open
    assert charge.settle({})


def test_who_waited_in_vain_learns_which_limit_denied() -> None:
    limits = Limits(
        {"user": fixed_window(5, 60_000), "tenant": fixed_window(1, 60_000)}, clock=ManualClock(1)
    )
    keys = {"user": "a", "tenant": "b"}
    limits.acquire(keys)
    with pytest.raises(
        RateLimitExceededError, match="not admitted by 'tenant' within 0 ms"
    ) as told:
        limits.acquire(keys, timeout=0)
    error = pickle.loads(pickle.dumps(told.value))
    assert error.verdict.violated == ("tenant",)
    assert error.decision == error.verdict.decision
    single = rate_limit(fixed_window(1, 60_000), clock=ManualClock(1))
    single.acquire("k")
    with pytest.raises(RateLimitExceededError) as alone:
        single.acquire("k", timeout=0)
    assert alone.value.verdict is None


def test_a_keyless_limit_is_paused_and_reset_by_none() -> None:
    limits = Limits({"all": Limit("5/minute", keyless=True)}, clock=ManualClock(1))
    for call in (lambda keys: limits.pause(keys, 5_000), limits.reset):
        with pytest.raises(ConfigInvalidError, match=r"write \{'all': None\}"):
            call({"all": "k"})
        call({"all": None})
