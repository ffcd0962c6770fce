"""PostgresStore on a real server: exact, durable, in few round trips."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from functools import partial
from typing import Any

import pytest

from bench.turns import TurnCounter
from penstock import (
    ConfigInvalidError,
    ManualClock,
    SystemClock,
    fixed_window,
    gcra,
    rate_limit,
    token_bucket,
)
from penstock.core._transform import checking
from penstock.stores import open_store
from penstock.stores.postgres import PostgresStore, _flows, _libpq
from penstock.stores.postgres._async_connections import AsyncConnection, AsyncpgConnection
from penstock.stores.postgres._requests import Query
from penstock.testkit import run_store_conformance
from tests.stores.exactness import (
    assert_exact_from_processes,
    assert_exact_from_tasks,
    assert_exact_from_threads,
)
from tests.stores.postgres.live import PATIENT_MS, new_table, open_empty, running, url_of
from tests.stores.replay import assert_vectors_hold, assert_vectors_hold_async

NOW = 1_700_000_000_000

each_driver = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])


def _opener(driver: str = "psycopg") -> Any:
    return partial(open_store, url_of(new_table(), driver=driver, timeout_ms=PATIENT_MS))


def test_threads_are_admitted_exactly() -> None:
    """200 threads at 50 on one store."""
    assert_exact_from_threads(_opener())


@each_driver
def test_tasks_are_admitted_exactly(driver: str) -> None:
    """200 tasks at 50 on one store."""
    assert_exact_from_tasks(_opener(driver))


@pytest.mark.parametrize(
    ("driver", "mode"), [("psycopg", "sync"), ("psycopg", "async"), ("asyncpg", "async")]
)
def test_processes_are_admitted_exactly(driver: str, mode: str) -> None:
    """200 callers at 50 in four processes."""
    assert_exact_from_processes(_opener(driver), mode)


@pytest.mark.parametrize(
    ("driver", "pipelines"), [("psycopg", 140_000), ("psycopg", 10**9), ("asyncpg", 140_000)]
)
def test_callers_that_wait_for_the_lock_are_admitted_exactly(
    monkeypatch: pytest.MonkeyPatch, driver: str, pipelines: int
) -> None:
    """The way of those whose guesses keep failing, taken from the first round on; with a libpq
    that cannot send several statements at once, too."""
    monkeypatch.setattr(_flows, "_GUESSES", 0)
    monkeypatch.setattr(_libpq, "_PIPELINES", pipelines)
    if driver == "psycopg":
        run_store_conformance(open_empty)
    table = new_table()
    url = url_of(table, driver=driver, timeout_ms=PATIENT_MS)
    stores = [open_store(url) for _ in range(4)]
    limiters = [rate_limit(gcra(50, 864_000_000), store=store) for store in stores]

    async def main() -> int:
        checks = [limiters[number % 4].acheck("k") for number in range(200)]
        admitted = sum(decision.allowed for decision in await asyncio.gather(*checks))
        for store in stores:
            await store.aclose()
        return admitted

    assert asyncio.run(main()) == 50


def test_the_golden_vectors_hold() -> None:
    """Decision by decision, on threads."""
    store = open_empty()
    assert_vectors_hold(store)
    store.close()


@each_driver
def test_the_golden_vectors_hold_for_tasks(driver: str) -> None:
    """Decision by decision, on an event loop."""

    async def main() -> None:
        store = open_empty(driver)
        await assert_vectors_hold_async(store)
        await store.aclose()

    asyncio.run(main())


def test_a_check_takes_one_round_trip_and_at_most_two() -> None:
    """One on a key that is new, or ours alone; two when someone else has been there."""
    table = new_table()
    with TurnCounter(running().port) as counter:
        url = counter.url_of(url_of(table, timeout_ms=PATIENT_MS))
        ours, theirs = open_store(url), open_store(url_of(table))
        limiter = rate_limit(gcra(5, 60_000), store=ours, clock=ManualClock(NOW))
        other = rate_limit(gcra(5, 60_000), store=theirs, clock=ManualClock(NOW))

        def turns(ask: Any) -> int:
            before = counter.turns
            ask()
            return counter.turns - before

        limiter.check("warm")
        limiter.peek("warm")
        assert turns(lambda: limiter.check("new")) == 1
        assert turns(lambda: limiter.check("new", 4)) == 1
        assert turns(lambda: limiter.check("new")) == 1, "a denial"
        assert turns(lambda: limiter.peek("new")) == 1
        assert turns(lambda: limiter.forecast("new")) == 1
        assert turns(lambda: limiter.check_many([f"k{n}" for n in range(100)])) == 1
        for number in range(0, 100, 2):
            other.check(f"k{number}")
        assert turns(lambda: limiter.check_many([f"k{n}" for n in range(100)])) == 2
        other.check("new2")
        assert turns(lambda: limiter.check("new2")) == 2
        assert turns(lambda: limiter.reset("new2")) == 1
        for store in (ours, theirs):
            store.close()


@pytest.mark.parametrize(("driver", "most", "locked"), [("psycopg", 4, 2), ("asyncpg", 7, 5)])
def test_a_race_is_lost_twice_at_most(
    monkeypatch: pytest.MonkeyPatch, driver: str, most: int, locked: int
) -> None:
    """Then the key is locked; and at once, the next time, until nobody else has been there."""
    table = new_table()
    interferes = True
    other = rate_limit(gcra(10**6, 3_600_000), store=open_store(url_of(table)))
    kind = AsyncConnection if driver == "psycopg" else AsyncpgConnection
    execute = kind.execute

    async def interfering(connection: Any, request: Any, deadline: float) -> Any:
        if interferes and isinstance(request, Query) and request.statement.name.endswith("_swap"):
            other.check_many(["k", "warm"])
        return await execute(connection, request, deadline)

    async def main() -> None:
        nonlocal interferes
        with TurnCounter(running().port) as counter:
            url = url_of(table, driver=driver, timeout_ms=PATIENT_MS)
            store = open_store(counter.url_of(url))
            limiter = rate_limit(gcra(10**6, 3_600_000), store=store)

            async def turns(ask: Any) -> int:
                before = counter.turns
                await ask("k")
                return counter.turns - before

            for _ in range(3):
                await limiter.acheck("warm")
            assert await turns(limiter.acheck) == most
            other.check("k")
            assert await turns(limiter.acheck) == locked
            assert await turns(limiter.apeek) == 1, "who only looks does not lock"
            interferes = False
            assert [await turns(limiter.acheck) for _ in range(2)] == [locked, 1]
            await store.aclose()

    monkeypatch.setattr(kind, "execute", interfering)
    asyncio.run(main())
    other.store.close()


def test_a_denial_never_rests_on_a_guess() -> None:
    """What this process remembers of a key may be out of date, and then does not count."""
    table = new_table()
    one, two = open_store(url_of(table)), open_store(url_of(table))
    clock = ManualClock(NOW)
    ours, theirs = (rate_limit(gcra(2, 60_000), store=store, clock=clock) for store in (one, two))
    assert ours.check("k", 2)
    assert not ours.check("k")
    theirs.reset("k")
    assert ours.check("k")
    theirs.close()
    with rate_limit(token_bucket(5, 1), store=two, clock=clock) as other:
        other.reset("k")
        other.check("k")
    with pytest.raises(ConfigInvalidError, match="holds the state of something else"):
        ours.check("k")
    theirs.reset("k")
    assert ours.check("k").remaining == 1
    for store in (one, two):
        store.close()


def test_a_foreign_key_among_others_says_whether_those_were_charged() -> None:
    """They were, if the key was not known to be foreign; from then on, nothing is."""
    table = new_table()
    one, two = open_store(url_of(table)), open_store(url_of(table))
    rate_limit(token_bucket(5, 1), store=two).check("foreign")
    limiter = rate_limit(gcra(5, 864_000_000), store=one, clock=ManualClock(NOW))
    keys = ["a", "foreign", "b"]
    with pytest.raises(ConfigInvalidError, match=r"other keys of this call have been charged$"):
        limiter.check_many(keys)
    assert [limiter.peek(key).remaining for key in "ab"] == [4, 4]
    with pytest.raises(ConfigInvalidError, match="something else") as caught:
        limiter.check_many(keys)
    assert "other keys" not in str(caught.value)
    assert [limiter.peek(key).remaining for key in "ab"] == [4, 4]
    for store in (one, two):
        store.close()


def test_keys_too_long_for_an_index_are_kept_apart() -> None:
    """Random keys do not compress, and differ in their last byte."""
    store = open_empty()
    limiter = rate_limit(gcra(5, 60_000), store=store, clock=ManualClock(NOW))
    key = secrets.token_hex(2_047)
    for number in range(5):
        assert limiter.check(f"{key}{number}").remaining == 4
        assert limiter.check(f"{key}{number}").remaining == 3
    store.close()


def test_the_clock_of_the_server_decides_on_request() -> None:
    """Two round trips for a check, one for a peek, and the clock of the caller does not matter."""
    table = new_table()
    with TurnCounter(running().port) as counter:
        url = counter.url_of(url_of(table, use_server_time="true", timeout_ms=PATIENT_MS))
        store = open_store(url)
        assert store.reads_own_clock
        with pytest.raises(ConfigInvalidError, match="uses the clock of its server"):
            rate_limit(gcra(5, 60_000), store=store, clock=ManualClock(NOW))
        limiter = rate_limit(gcra(5, 60_000), store=store)
        limiter.check("warm")
        before = counter.turns
        decision = limiter.check("k")
        assert counter.turns - before == 2
        assert abs(decision.reset_at - 12_000 - SystemClock().now()) < 5_000
        assert limiter.peek("k").remaining == 4
        assert counter.turns - before == 3
        assert store.apply("other", checking(gcra(5, 60_000)), 0, 1).reset_at >= decision.reset_at
        assert [d.remaining for d in limiter.check_many(["k", "k", "new"])] == [3, 2, 4]
        store.close()


@each_driver
def test_a_sweep_drops_what_no_clock_can_need(driver: str) -> None:
    """Expired is not enough: a record outlasts its state by as much again, a minute at least."""

    async def main() -> None:
        store = open_empty(driver)
        window = fixed_window(5, 1_000, "first")
        short = rate_limit(window, store=store, clock=ManualClock(NOW), prefix="short")
        window = fixed_window(5, 100_000, "first")
        long = rate_limit(window, store=store, clock=ManualClock(NOW), prefix="long")
        await short.acheck_many([f"short-{number}" for number in range(2_500)])
        await long.acheck("long")
        assert await store.asweep(NOW + 60_999) == 0
        assert await store.asweep(NOW + 61_000) == 2_500
        assert await store.asweep(NOW + 200_000) == 1
        await short.acheck("again")
        assert await store.asweep() == 1
        await store.aclose()

    asyncio.run(main())


def test_a_sweep_passes_over_rows_that_are_held() -> None:
    """It waits for nobody, and gets them the next time."""
    psycopg = pytest.importorskip("psycopg")
    table = new_table()
    store = PostgresStore.from_url(url_of(table))
    limiter = rate_limit(fixed_window(5, 1_000, "first"), store=store, clock=ManualClock(NOW))
    limiter.check_many(["a", "b", "c"])
    with psycopg.connect(running().url) as holder:
        holder.execute(f"SELECT * FROM {table} WHERE key = 'b' FOR UPDATE")
        assert store.sweep() == 2
    assert store.sweep() == 1
    store.close()


def test_a_sweep_can_go_by_the_clock_of_the_server() -> None:
    """When that clock decides, it also says what is past."""
    store = open_empty(use_server_time=True)
    rate_limit(gcra(5, 60_000), store=store).check("k")
    assert store.sweep() == 0
    assert store.sweep(SystemClock().now() + 600_000) == 1
    store.close()


def test_one_store_serves_threads_tasks_and_loops_after_each_other() -> None:
    """sync and async see one limit, and a closed store opens again."""
    store = open_empty()
    limiter = rate_limit(fixed_window(9, 60_000), store=store, clock=ManualClock(NOW))
    remaining = [limiter.check("k").remaining]

    async def main() -> None:
        remaining.append((await limiter.acheck("k")).remaining)
        await store.aclose()
        remaining.append((await limiter.acheck("k")).remaining)
        await store.aclose()

    for _ in range(2):
        asyncio.run(main())
    remaining.append(limiter.check("k").remaining)
    store.close()
    remaining.append(limiter.check("k").remaining)
    store.close()
    assert remaining == [8, 7, 6, 5, 4, 3, 2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_opens_connections_of_its_own() -> None:
    """Parent and child share the limit, not the socket."""
    store = open_empty()
    limiter = rate_limit(gcra(1_000, 864_000_000), store=store, clock=ManualClock(NOW))
    limiter.check("k")
    children = []
    for _ in range(3):
        if (pid := os.fork()) == 0:
            code = 1
            try:
                for _ in range(50):
                    limiter.check("k")
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
        for _ in range(20):
            limiter.check("k")
    for pid in children:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert limiter.peek("k").remaining == 1_000 - 1 - 150 - 60
    store.close()


def test_a_single_caller_is_quick() -> None:
    """A check is a matter of a round trip: a thousand take seconds at the very worst."""
    store = open_empty()
    limiter = rate_limit(gcra(10**4, 1_000), store=store)
    started = time.monotonic()
    for number in range(1_000):
        limiter.check(f"k{number % 50}")
    assert time.monotonic() - started < 10
    store.close()
