"""Sessions that are ended, or kept waiting, in the middle of anything: what everybody is told."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock import (
    Decision,
    ManualClock,
    StoreUnavailableError,
    fixed_window,
    gcra,
    rate_limit,
)
from penstock.stores import open_store
from penstock.stores.postgres import PostgresStore, _flows
from tests.stores.postgres.ending import EndingProxy
from tests.stores.postgres.live import new_table, running, url_of

NOW = 1_700_000_000_000
LIMIT = 10**6

each_way = pytest.mark.parametrize("way", ["guess", "lock"])
each_driver = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])


def _outage(
    proxy: EndingProxy, message: int, says_why: bool, check: Callable[[], Decision]
) -> str | None:
    """What a check is told whose reply ends there; None if it does not come so far."""
    proxy.arm(message, says_why=says_why)
    try:
        check()
    except StoreUnavailableError as error:
        assert proxy.has_ended.is_set()
        return str(error)
    return None


@each_way
@pytest.mark.parametrize("says_why", [True, False])
def test_a_reply_that_ends_anywhere_is_an_outage(
    monkeypatch: pytest.MonkeyPatch, way: str, says_why: bool
) -> None:
    """At each message of the server in turn: never an answer, never another exception, and the
    word on the charge is true."""
    if way == "lock":
        monkeypatch.setattr(_flows, "_GUESSES", 0)
    table = new_table()
    witness = rate_limit(gcra(LIMIT, 864_000_000), store=open_store(url_of(table)))
    with EndingProxy(running().port) as proxy:
        store = open_store(proxy.url_of(url_of(table, timeout_ms=5_000)))
        limiter = rate_limit(gcra(LIMIT, 864_000_000), store=store, clock=ManualClock(NOW))
        limiter.check("k")
        told = 1
        messages = 0
        while (word := _outage(proxy, messages, says_why, lambda: limiter.check("k"))) is not None:
            spent = LIMIT - witness.peek("k").remaining
            assert spent - told <= ("may have been charged" in word)
            limiter.check("k")
            told = spent + 1
            messages += 1
        assert messages >= 4
        store.close()
    witness.store.close()


def test_a_reply_that_ends_anywhere_is_an_outage_for_a_task_too() -> None:
    """With both drivers; asyncpg has its own words for it."""
    table = new_table()

    async def main(driver: str) -> None:
        with EndingProxy(running().port) as proxy:
            url = proxy.url_of(url_of(table, timeout_ms=5_000, driver=driver))
            store = open_store(url)
            limiter = rate_limit(fixed_window(LIMIT, 10**9), store=store, clock=ManualClock(NOW))
            for _ in range(3):
                await limiter.acheck("k")
            outages = 0
            for message in range(20):
                before = (await limiter.apeek("k")).remaining
                proxy.arm(message, says_why=bool(message % 2))
                [answer] = await asyncio.gather(limiter.acheck("k"), return_exceptions=True)
                proxy.arm(None)
                if isinstance(answer, BaseException):
                    assert isinstance(answer, StoreUnavailableError)
                    outages += 1
                    spent = before - (await limiter.apeek("k")).remaining
                    assert spent <= ("may have been charged" in str(answer))
            assert outages >= 3
            await store.aclose()

    for driver in ("psycopg", "asyncpg"):
        asyncio.run(main(driver))


class Load:
    """Callers of one key, and what they were told."""

    def __init__(self) -> None:
        self._told: list[str] = []
        self.others: list[BaseException] = []

    admitted = property(lambda self: self._told.count("admitted"))
    in_doubt = property(lambda self: self._told.count("in doubt"))
    refused = property(lambda self: self._told.count("refused"))

    def _note(self, error: BaseException) -> None:
        if not isinstance(error, StoreUnavailableError):
            self.others.append(error)
        else:
            in_doubt = "may have been charged" in str(error)
            self._told.append("in doubt" if in_doubt else "refused")

    def call(self, check: Callable[[], Decision], until: float) -> None:
        while time.monotonic() < until:
            try:
                assert check().allowed
                self._told.append("admitted")
            except Exception as error:  # noqa: PERF203
                self._note(error)

    async def acall(self, check: Callable[[], Awaitable[Decision]], until: float) -> None:
        while time.monotonic() < until:
            try:
                assert (await check()).allowed
                self._told.append("admitted")
            except Exception as error:  # noqa: PERF203
                self._note(error)


def _terminate(until: float) -> int:
    """End the session of everybody else, over and over; returns how many that were."""
    psycopg = pytest.importorskip("psycopg")
    ended = 0
    with psycopg.connect(running().url, autocommit=True) as operator:
        while time.monotonic() < until:
            rows = operator.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND application_name = 'victim'"
            ).fetchall()
            ended += len(rows)
            time.sleep(0.004)
    return ended


@each_way
def test_sessions_that_are_terminated_under_load_are_outages(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Threads share batches; each of them is told, and truly."""
    if way == "lock":
        monkeypatch.setattr(_flows, "_GUESSES", 0)
    table, load = new_table(), Load()
    store = open_store(url_of(table, timeout_ms=5_000, application_name="victim"))
    limiter = rate_limit(fixed_window(LIMIT, 10**9), store=store, clock=ManualClock(NOW))
    until = time.monotonic() + 2.5
    check = lambda: limiter.check("k")  # noqa: E731
    threads = [threading.Thread(target=load.call, args=(check, until)) for _ in range(6)]
    for thread in threads:
        thread.start()
    ended = _terminate(until)
    for thread in threads:
        thread.join(30)
    assert load.others == []
    assert ended > 10
    assert load.in_doubt + load.refused > 0
    spent = LIMIT - limiter.peek("k").remaining
    assert load.admitted <= spent <= load.admitted + load.in_doubt
    store.close()


@each_driver
def test_sessions_of_tasks_that_are_terminated_under_load_are_outages(driver: str) -> None:
    """Nothing is logged about them, and nobody else is blamed."""
    table, load = new_table(), Load()
    url = url_of(table, timeout_ms=5_000, driver=driver, application_name="victim")
    complaints: list[Any] = []

    async def main() -> int:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
        store = open_store(url)
        limiter = rate_limit(fixed_window(LIMIT, 10**9), store=store, clock=ManualClock(NOW))
        until = time.monotonic() + 2.5
        killer = asyncio.create_task(asyncio.to_thread(_terminate, until))
        await asyncio.gather(*(load.acall(lambda: limiter.acheck("k"), until) for _ in range(20)))
        ended = await killer
        await asyncio.sleep(0.05)
        spent = LIMIT - (await limiter.apeek("k")).remaining
        await store.aclose()
        assert ended > 10
        return spent

    spent = asyncio.run(main())
    assert load.others == []
    assert [told for told in complaints if "penstock" in str(told)] == []
    assert load.admitted <= spent <= load.admitted + load.in_doubt


@pytest.mark.parametrize("kind", ["threads", "tasks", "pool"])
def test_a_locked_table_leaves_nobody_in_doubt(kind: str) -> None:
    """Callers that came at any time wait together for an operator's lock, and the server gives up
    before the first of them does: so nothing was charged, and that is what they are told."""
    psycopg = pytest.importorskip("psycopg")
    table, load = new_table(), Load()
    rng = random.Random(7)
    with contextlib.ExitStack() as cleanup:
        if kind == "pool":
            pool = cleanup.enter_context(_pool())
            store: Any = PostgresStore(pool, table=table, timeout_ms=1_200)
        else:
            store = open_store(url_of(table, timeout_ms=1_200))
            cleanup.callback(store.close)
        limiter = rate_limit(fixed_window(LIMIT, 10**9), store=store, clock=ManualClock(NOW))
        until = time.monotonic() + 3.5

        def check() -> Decision:
            time.sleep(rng.random() * 0.6)
            return limiter.check("k")

        async def acheck() -> Decision:
            await asyncio.sleep(rng.random() * 0.6)
            return await limiter.acheck("k")

        async def tasks() -> None:
            await asyncio.gather(*(load.acall(acheck, until) for _ in range(20)))
            await store.aclose()

        if kind == "tasks":
            threads = [threading.Thread(target=lambda: asyncio.run(tasks()))]
        else:
            threads = [threading.Thread(target=load.call, args=(check, until)) for _ in range(20)]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        with psycopg.connect(running().url) as operator:
            operator.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
            time.sleep(2.5)
        for thread in threads:
            thread.join(30)
        assert load.others == []
        assert load.refused > 20
        # A machine that is busy enough may keep a reply from being read in time.
        assert load.in_doubt <= load.refused // 10
        spent = LIMIT - limiter.peek("k").remaining
        assert load.admitted <= spent <= load.admitted + load.in_doubt


def _pool() -> Any:
    from psycopg_pool import ConnectionPool

    pool = ConnectionPool(running().url, min_size=2, max_size=2, open=True)
    pool.wait()
    return pool


def test_who_only_looks_is_never_in_doubt() -> None:
    """Nor is who was denied: only a call that would have been written can have been charged."""
    table = new_table()
    with EndingProxy(running().port) as proxy:
        store = open_store(proxy.url_of(url_of(table, timeout_ms=5_000)))
        limiter = rate_limit(fixed_window(2, 10**9), store=store, clock=ManualClock(NOW))
        limiter.check("k", 2)
        for ask in (lambda: limiter.check("k"), lambda: limiter.peek("k")):
            assert "nothing was charged" in (_outage(proxy, 1, True, ask) or "")
            assert not limiter.check("k")
        store.close()
