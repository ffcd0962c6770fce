"""Charges and slots belong to the process that made them: no copy of them gives anything back."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    Charge,
    Limits,
    ManualClock,
    UnsupportedError,
    fixed_window,
    rate_limit,
    slots,
)
from penstock.client import ServiceLimiter
from penstock.concurrency import Aimd, ConcurrencyLimiter
from penstock.leasing import two_tier
from tests.support.helpers import NOW

COPIES: dict[str, Callable[[Any], Any]] = {
    "pickle": pickle.dumps,
    "old pickle": lambda thing: pickle.dumps(thing, 0),
    "copy": copy.copy,
    "deep copy": copy.deepcopy,
    "copy of a container": lambda thing: copy.deepcopy([thing]),
}

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
ignores_threads = pytest.mark.filterwarnings(
    "ignore:.*multi-threaded, use of fork:DeprecationWarning"
)


def in_child(work: Callable[[], None]) -> int:
    """The exit code of a forked child that does this: 0 unless it raised."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def one_limit() -> Charge:
    return rate_limit(fixed_window(10, 60_000), clock=ManualClock(NOW)).reserve("k", 4)


def several_limits() -> Charge:
    limits = Limits({"user": fixed_window(10, 60_000), "calls": slots(2)}, clock=ManualClock(NOW))
    return limits.reserve({"user": "u", "calls": "c"}, {"user": 4})


def denied() -> Charge:
    return rate_limit(fixed_window(10, 60_000), clock=ManualClock(NOW)).reserve("k", 11)


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("make", [one_limit, several_limits, denied])
def test_a_copy_of_a_charge_is_refused_and_the_original_still_settles(
    make: Callable[[], Charge], how: str
) -> None:
    charge = make()
    with pytest.raises(UnsupportedError, match="cannot be pickled or copied"):
        COPIES[how](charge)
    assert charge.cancel() is charge.allowed
    assert not charge.cancel()


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_of_a_slot_is_refused(how: str) -> None:
    limiter = ConcurrencyLimiter(Aimd(max_limit=1, min_limit=1))
    with limiter.slot() as slot:
        with pytest.raises(UnsupportedError, match="cannot be pickled or copied"):
            COPIES[how](slot)
        assert limiter.in_flight == 1
    assert limiter.in_flight == 0


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_of_a_slot_at_a_service_is_refused(how: str) -> None:
    with ServiceLimiter("http://127.0.0.1:1", "calls") as limiter:
        with pytest.raises(UnsupportedError, match="cannot be pickled or copied"):
            COPIES[how](limiter.admit("k"))
        with pytest.raises(UnsupportedError, match="cannot be pickled or copied"):
            COPIES[how](limiter.reserve("k"))


@pytest.mark.parametrize("how", ["pickle", "copy", "deep copy"])
def test_a_copy_of_a_two_tier_limiter_has_no_credits(how: str, tmp_path: Path) -> None:
    """It is made anew, and leases a batch of its own."""
    from penstock.stores import open_store

    store = open_store(f"sqlite:///{tmp_path}/l2.db")
    limiter = two_tier(fixed_window(100, 10**12), store, "leased", 10)
    limiter.check("k")
    made = COPIES[how](limiter)
    other = pickle.loads(made) if how == "pickle" else made
    other.check("k")
    left = rate_limit(fixed_window(100, 10**12), store=store).peek("k").remaining
    assert left == 80
    store.close()


@forks
@ignores_threads
@pytest.mark.parametrize("way", ["settle", "cancel", "renew", "keep_renewed", "with"])
def test_a_forked_child_cannot_use_the_charge_of_its_parent(way: str, tmp_path: Path) -> None:
    with Limits(
        {"user": fixed_window(10, 10**12), "calls": slots(2)}, store=f"sqlite:///{tmp_path}/c.db"
    ) as limits:
        keys = {"user": "u", "calls": "c"}
        charge = limits.reserve(keys, {"user": 4})

        calls: dict[str, Callable[[], Any]] = {
            "settle": lambda: charge.settle(1),
            "with": charge.__enter__,
        }

        def use() -> None:
            with pytest.raises(UnsupportedError, match="belongs to the process that forked"):
                calls.get(way, getattr(charge, way, None))()  # type: ignore[misc]

        assert in_child(use) == 0
        assert limits.peek(keys).limits["user"].remaining == 6
        assert charge.cancel()
        assert limits.peek(keys).limits["user"].remaining == 10


@forks
@ignores_threads
@pytest.mark.parametrize("way", ["asettle", "acancel", "arenew"])
def test_a_forked_child_cannot_await_the_charge_of_its_parent(way: str, tmp_path: Path) -> None:
    with rate_limit(fixed_window(10, 10**12), store=f"sqlite:///{tmp_path}/c.db") as limiter:
        charge = limiter.reserve("k", 4)
        calls: dict[str, Callable[[], Any]] = {
            "asettle": lambda: charge.asettle(1),
            "acancel": charge.acancel,
            "arenew": charge.arenew,
        }

        def use() -> None:
            async def main() -> None:
                with pytest.raises(UnsupportedError, match="belongs to the process that forked"):
                    await calls[way]()

            asyncio.run(main())

        assert in_child(use) == 0
        assert limiter.peek("k").remaining == 6
        assert charge.settle(1)
        assert limiter.peek("k").remaining == 9
