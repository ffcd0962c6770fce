"""A store that answers but has no room: an outage of its own kind, told as such everywhere."""

from __future__ import annotations

import asyncio
import copy
import pickle
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Limiter, Store, StoreUnavailableError, fixed_window, gcra, rate_limit
from penstock.config import parse_policies
from penstock.core._errors import outage_reason
from penstock.leasing import two_tier
from penstock.service import Service, build_service
from penstock.stores.postgres import PostgresStore
from penstock.stores.redis import RedisStore
from penstock.stores.sqlite import SqliteStore
from tests.servers import Redis8, RedisServer, Valkey, require
from tests.stores.postgres.live import PATIENT_MS, new_table, running
from tests.support.helpers import Quota

LONG_MS = 864_000_000

both_ways = pytest.mark.parametrize("way", ["sync", "async"])


def ask(way: str, limiter: Limiter, call: str, *arguments: Any) -> Any:
    """The call, sync or async, from one plain test."""
    if way == "sync":
        return getattr(limiter, call)(*arguments)

    async def once() -> Any:
        try:
            return await getattr(limiter, f"a{call}")(*arguments)
        finally:
            await limiter.store.aclose()

    return asyncio.run(once())


def told_full(asked: Callable[[], Any]) -> str:
    """The text of the outage; it must say that it is one for want of room, uncharged."""
    with pytest.raises(StoreUnavailableError) as caught:
        asked()
    assert (caught.value.code, caught.value.reason) == ("store_unavailable", "full")
    return str(caught.value)


@pytest.fixture(params=[Valkey, Redis8])
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A server of the test's own, with little memory that it may not make room in."""
    require(request.param.name)
    with request.param(args=["--maxmemory-policy", "noeviction"]) as server:
        yield server


def fill(server: RedisServer) -> None:
    """Let it have less memory than it uses."""
    server.call("CONFIG", "SET", "maxmemory", "1")


def make_room(server: RedisServer) -> None:
    server.call("CONFIG", "SET", "maxmemory", "0")


@both_ways
def test_redis_without_memory_is_full(server: RedisServer, way: str) -> None:
    """By script, batch and transaction; what needs no room is decided, and room is noticed."""
    store = RedisStore.from_url(server.url, timeout_ms=PATIENT_MS)
    one = rate_limit(fixed_window(1, LONG_MS), store=store, prefix="one")
    own = rate_limit(Quota(5), store=store, prefix="own")
    assert ask(way, one, "check", "spent")
    fill(server)
    for asked in (
        lambda: ask(way, one, "check", "new"),
        lambda: ask(way, one, "check_many", ["new", "newer"]),
        lambda: ask(way, own, "check", "new"),
    ):
        assert "charged" in told_full(asked)
    assert not ask(way, one, "check", "spent")
    assert ask(way, one, "peek", "new")
    make_room(server)
    assert ask(way, one, "check", "new")
    assert ask(way, own, "check", "new").remaining == 4
    store.close()


def test_a_lease_that_waited_for_another_is_told_the_same(server: RedisServer) -> None:
    """Whoever shares a failure shares its reason."""
    store = RedisStore.from_url(server.url, timeout_ms=PATIENT_MS)
    limiter = two_tier(fixed_window(100, LONG_MS), store, batch=10)
    fill(server)

    async def main() -> list[Any]:
        checks = [limiter.acheck("k") for _ in range(5)]
        try:
            return await asyncio.gather(*checks, return_exceptions=True)
        finally:
            await limiter.aclose()
            await store.aclose()

    assert [error.reason for error in asyncio.run(main())] == ["full"] * 5


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@pytest.mark.parametrize("state", ["53100", "53200"])
def test_postgresql_without_disk_or_memory_is_full(driver: str, state: str) -> None:
    """The server refuses the write itself, with the state that it has for this."""
    import psycopg

    table = new_table()
    store = PostgresStore.from_url(running().url, table=table, driver=driver, timeout_ms=PATIENT_MS)
    limiter = rate_limit(gcra(5, LONG_MS), store=store)
    way = "async" if driver == "asyncpg" else "sync"
    with psycopg.connect(running().url, autocommit=True) as admin:
        admin.execute(
            f"CREATE FUNCTION refuse_{table}() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION 'no room' USING ERRCODE = '{state}'; END $$"
        )
        admin.execute(
            f"CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON {table} "
            f"FOR EACH ROW EXECUTE FUNCTION refuse_{table}()"
        )
        assert state in told_full(lambda: ask(way, limiter, "check", "k"))
        assert "not" in told_full(lambda: ask(way, limiter, "check_many", ["k", "l"]))
        admin.execute(f"DROP TRIGGER refuse ON {table}")
    assert ask(way, limiter, "check", "k").remaining == 4
    store.close()


@both_ways
def test_sqlite_on_a_full_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """SQLite says so itself: its file is given a largest size, as a disk has one."""
    connect = sqlite3.connect

    def with_bound(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*args, **options)
        connection.execute("PRAGMA max_page_count = 12")
        return connection

    monkeypatch.setattr(sqlite3, "connect", with_bound)
    store = SqliteStore(tmp_path / "limits.db", timeout_ms=PATIENT_MS)
    limiter = rate_limit(gcra(1, LONG_MS), store=store)

    def fill_up() -> None:
        for number in range(2_000):
            ask(way, limiter, "check", f"{number}" * 100)

    assert "database or disk is full" in told_full(fill_up)
    assert not ask(way, limiter, "check", "0" * 100)
    store.close()


def test_the_reason_is_kept_by_copies_and_pickles() -> None:
    """Errors are shared between callers, and cross processes."""
    full = StoreUnavailableError("no room", reason="full")
    for error in (copy.copy(full), pickle.loads(pickle.dumps(full))):
        assert (str(error), error.code, error.reason) == ("no room", "store_unavailable", "full")
    assert StoreUnavailableError("gone").reason == "away"
    assert outage_reason(MemoryError()) == "full"
    assert outage_reason(OSError()) == "away"


POLICIES = parse_policies(
    """
version: 1
limiters:
  open: {strategy: fixedWindow, limit: 5, window: 1h, fail: open}
  closed: {strategy: fixedWindow, limit: 5, window: 1h, fail: closed}
"""
)


def in_a_service(store: Store, work: Callable[[Service], Awaitable[None]]) -> None:
    async def main() -> None:
        service = build_service(POLICIES, store=store)
        try:
            await work(service)
        finally:
            await service.aclose()

    asyncio.run(main())


def test_a_service_tells_a_full_store_from_one_that_is_away(server: RedisServer) -> None:
    """In its counts and in its readiness, which finds out by writing once it has a reason to; and
    it finds out that there is room again, though nobody asks anything else meanwhile."""

    async def work(service: Service) -> None:
        assert (await service.ready()).ok
        assert server.call("DBSIZE") == 0
        fill(server)
        assert await service.check("open", "k")
        assert not await service.check("closed", "k")
        ready = await service.ready()
        assert (ready.ok, ready.store_ok) == (True, False)
        assert (ready.store_reachable, ready.store_full) == (True, True)
        assert "OOM" in ready.store_error
        assert (await service.ready()).store_full
        counts = service.snapshot().policies
        assert (counts["open"]["store_away"], counts["open"]["store_full"]) == (0, 1)
        make_room(server)
        ready = await service.ready()
        assert (ready.store_ok, ready.store_full, ready.store_error) == (True, False, "")
        server.kill()
        assert await service.check("open", "k")
        ready = await service.ready()
        assert (ready.ok, ready.store_ok) == (True, False)
        assert (ready.store_reachable, ready.store_full) == (False, False)
        counts = service.snapshot().policies
        assert (counts["open"]["store_away"], counts["open"]["store_full"]) == (1, 1)

    in_a_service(RedisStore.from_url(server.url, timeout_ms=1_000), work)
