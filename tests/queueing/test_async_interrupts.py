"""An interrupt at every line of the waiting code in the thread of an event loop.

There it ends whatever task or callback is running, one of asyncio's included. So less is promised
than to threads: nobody waits for ever, what was charged is what was told, and the next caller is
served, in the same loop, in another one and in a thread.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    Decision,
    Limiter,
    ManualClock,
    StoreUnavailableError,
    fixed_window,
    gcra,
    rate_limit,
)
from penstock.leasing import two_tier
from penstock.stores.postgres import PostgresStore
from penstock.stores.sqlite import SqliteStore
from tests.leasing.far import FarStore
from tests.stores.cas.backend import DictCasStore
from tests.stores.postgres.live import new_table, url_of
from tests.support.helpers import NOW
from tests.support.interrupts import Interrupt, Striker, apart

# What was begun and cut off is found by the collector, which complains.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]

PLENTY = 10**6
SOON_S = 5.0
TIMEOUT_MS = 700
"""By then, whoever was not told must have found out."""
SPAN_MS = 10**9


class Told:
    """What the callers of one scenario were told."""

    def __init__(self) -> None:
        self.admitted = 0
        self.in_doubt = 0
        self.interrupted = 0

    async def note(self, call: Callable[[], Awaitable[Decision]]) -> None:
        try:
            assert (await call()).allowed
            self.admitted += 1
        except StoreUnavailableError as error:
            self.in_doubt += "may have been charged" in str(error)
        except Interrupt:
            self.interrupted += 1


async def crowd(told: Told, call: Callable[[], Awaitable[Decision]]) -> None:
    """Three at once, two of them after a moment."""
    first = asyncio.create_task(told.note(call))
    await asyncio.sleep(0)
    others = [asyncio.create_task(told.note(call)) for _ in range(2)]
    _, pending = await asyncio.wait([first, *others], timeout=SOON_S)
    assert not pending, "somebody was left waiting"


class Loop:
    """One event loop, in which interrupts leave behind what they leave behind."""

    def __init__(self, call: Callable[[str], Awaitable[Decision]]) -> None:
        self._call = call
        self._names = map("k{}".format, itertools.count())
        self._loop = asyncio.new_event_loop()
        # Interrupted callbacks are told to the loop, which would log them.
        self._loop.set_exception_handler(lambda _loop, _context: None)

    def strike(
        self, parts: tuple[str, ...], verify: Callable[[str, Told], None], *, least: int
    ) -> None:
        """Run a crowd for each line, with an interrupt there; `verify` looks at what is left."""
        struck = apart(lambda: self._strike(parts, verify))
        assert struck >= least

    def _strike(self, parts: tuple[str, ...], verify: Callable[[str, Told], None]) -> int:
        seen: dict[Any, None] = {}
        for _ in range(3):
            watcher = Striker(parts)
            self._play(watcher, verify)
            seen.update(watcher.seen)
        struck = 0
        for place in seen:
            striker = Striker(parts, place)
            try:
                self._play(striker, verify)
            except BaseException as failure:
                raise AssertionError(f"interrupted at {place}") from failure
            struck += striker.has_struck
        return struck

    def _play(self, striker: Striker, verify: Callable[[str, Told], None]) -> None:
        key, told, after = next(self._names), Told(), Told()
        try:
            striker.run(lambda: self._loop.run_until_complete(self._crowd(key, told)))
        except Interrupt:
            told.interrupted += 1
        verify(key, told)
        self._loop.run_until_complete(self._crowd(key, after))
        assert after.admitted == 3

    def _crowd(self, key: str, told: Told) -> Coroutine[Any, Any, None]:
        return crowd(told, lambda: self._call(key))

    def close(self, *last: Coroutine[Any, Any, Any]) -> None:
        """Another loop is served as well."""
        told = Told()
        asyncio.run(crowd(told, lambda: self._call("another loop")))
        assert told.admitted == 3
        for one in last:
            self._loop.run_until_complete(one)
        self._loop.close()


def verified(limiter: Limiter) -> Callable[[str, Told], None]:
    """A thread is served as well, and the accounts are right."""

    def verify(key: str, told: Told) -> None:
        spent = PLENTY - limiter.peek(key).remaining
        assert told.admitted <= spent <= told.admitted + told.in_doubt + told.interrupted

    return verify


def test_tasks_on_sqlite_outlive_an_interrupt_anywhere(tmp_path: Path) -> None:
    """Their calls are served by a thread, which is not interrupted."""
    store = SqliteStore(tmp_path / "limits.db", synchronous="off", timeout_ms=TIMEOUT_MS)
    limiter = rate_limit(fixed_window(PLENTY, SPAN_MS), store=store, clock=ManualClock(NOW))
    loop = Loop(limiter.acheck)
    loop.strike(("_queueing", "stores/sqlite"), verified(limiter), least=40)
    loop.close()
    store.close()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_tasks_on_postgres_outlive_an_interrupt_anywhere(driver: str) -> None:
    """Batches are led by a task of the pump, whose end is noticed."""
    table = new_table()
    store: Any = PostgresStore.from_url(url_of(table, timeout_ms=2_000, driver=driver))
    limiter = rate_limit(fixed_window(PLENTY, SPAN_MS), store=store, clock=ManualClock(NOW))
    other: Any = PostgresStore.from_url(url_of(table, timeout_ms=20_000))
    sync = rate_limit(fixed_window(PLENTY, SPAN_MS), store=other, clock=ManualClock(NOW))
    loop = Loop(limiter.acheck)
    parts = ("_queueing", "stores/postgres/_async", "stores/postgres/_commits")
    loop.strike(parts, verified(sync), least=100)
    loop.close(store.aclose())
    other.close()


def test_tasks_on_compare_and_swap_outlive_an_interrupt_anywhere() -> None:
    """A key that a task led is led by the next."""
    store = DictCasStore(timeout_ms=TIMEOUT_MS)
    limiter = rate_limit(fixed_window(PLENTY, SPAN_MS), store=store, clock=ManualClock(NOW))

    def verify(key: str, told: Told) -> None:
        # A request that was cut off is not under way any more.
        store.busy.clear()
        verified(limiter)(key, told)

    loop = Loop(limiter.acheck)
    loop.strike(("_queueing", "stores/cas/_callers"), verify, least=100)
    loop.close()


def test_tasks_that_acquire_outlive_an_interrupt_anywhere() -> None:
    """On real time: one every 2 ms."""
    limiter = rate_limit(gcra(1, 2))

    def verify(key: str, told: Told) -> None:
        assert limiter.acquire(key, timeout=SOON_S).allowed

    loop = Loop(limiter.aacquire)
    parts = ("_queueing", "core/_waiting", "core/_limiter", "core/_flow")
    loop.strike(parts, verify, least=80)
    loop.close()


def test_tasks_that_lease_outlive_an_interrupt_anywhere() -> None:
    """No credit is spent that was not granted."""
    far = FarStore()
    limiter: Any = two_tier(fixed_window(PLENTY, SPAN_MS), far, batch=2, clock=far.clock)

    def verify(key: str, told: Told) -> None:
        assert limiter.check(key).allowed
        granted = sum(grant.capacity for name, grant in far.grants if name == key)
        assert told.admitted + 1 + limiter._near.held(key) <= granted
        far.grants.clear()

    loop = Loop(limiter.acheck)
    loop.strike(("_queueing", "leasing/_refilling", "leasing/_near"), verify, least=80)
    loop.close()
    limiter.close()
