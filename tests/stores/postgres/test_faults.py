"""What a PostgresStore does when the server, the network or the operator fails it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import ConfigInvalidError, Limiter, StoreUnavailableError, gcra, rate_limit
from penstock.stores import open_store
from penstock.stores.postgres import PostgresStore, _flows
from tests.servers import FaultProxy, NotReady, Postgres, eventually, require
from tests.stores.crash import Spender
from tests.stores.postgres.live import new_table, running, url_of

each_driver = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])


@pytest.fixture
def server() -> Iterator[Postgres]:
    """One that may be killed."""
    require("postgres")
    with Postgres() as server:
        PostgresStore.from_url(server.url).init()
        yield server


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    with FaultProxy(running().port) as proxy:
        yield proxy


def connected(limiter: Limiter) -> None:
    """However long that takes on a busy machine: the deadline of a test that waits for it to pass
    is short. Nothing is charged."""

    def ask() -> None:
        try:
            limiter.peek("k")
        except StoreUnavailableError as error:
            raise NotReady(str(error)) from error

    eventually(ask, within=20, what="a connection")


async def aconnected(limiter: Limiter) -> None:
    """The same, async."""
    until = time.monotonic() + 20
    while not await _answers(limiter):
        assert time.monotonic() < until


async def _answers(limiter: Limiter) -> bool:
    try:
        await limiter.apeek("k")
    except StoreUnavailableError:
        return False
    return True


def test_no_decision_is_lost_when_the_server_is_killed(server: Postgres) -> None:
    """kill -9 twice in the middle of a load: no over-admission, and recovery by itself."""
    limit = 1_500
    url = f"{server.url}?timeout_ms=1000"
    with Spender(url, "k", limit) as one, Spender(url, "k", limit) as other:
        for _ in range(2):
            one.read(200)
            other.read(200)
            server.kill()
            server.restart()
        one.read_until_denied()
        other.read_until_denied()
        one.kill()
        other.kill()
    told = one.admitted + other.admitted
    doubtful = one.doubtful + other.doubtful
    assert one.outages + other.outages >= 2
    assert told <= limit <= told + doubtful
    assert doubtful <= 4, "each process can have one request under way per crash"


@each_driver
def test_a_store_outlives_a_restart_of_its_server(server: Postgres, driver: str) -> None:
    """An idle connection that was lost meanwhile is noticed before it is used."""

    async def main() -> None:
        store = open_store(f"{server.url}?driver={driver}&timeout_ms=5000")
        limiter = rate_limit(gcra(5, 864_000_000), store=store)
        await limiter.acheck("k")
        server.kill()
        await asyncio.sleep(0.05)
        with pytest.raises(StoreUnavailableError, match=r"cannot connect.*nothing was charged"):
            await limiter.acheck("k")
        server.restart()
        assert (await limiter.acheck("k")).remaining == 3
        await store.aclose()

    asyncio.run(main())


def test_a_sync_store_outlives_a_restart_of_its_server(server: Postgres) -> None:
    """The same, on threads."""
    store = open_store(f"{server.url}?timeout_ms=5000")
    limiter = rate_limit(gcra(5, 864_000_000), store=store)
    limiter.check("k")
    server.restart()
    assert limiter.check("k").remaining == 3
    server.kill()
    with pytest.raises(StoreUnavailableError, match=r"cannot connect.*nothing was charged"):
        limiter.check("k")
    store.close()


def test_a_sync_pool_outlives_a_restart_of_its_server(server: Postgres) -> None:
    """Every connection of the pool was lost, and no call meets one of them."""
    from psycopg_pool import ConnectionPool

    with ConnectionPool(server.url, min_size=4, max_size=4, open=True) as pool:
        pool.wait()
        store = PostgresStore(pool, timeout_ms=5_000)
        limiter = rate_limit(gcra(9, 864_000_000), store=store)
        limiter.check("k")
        server.restart()
        assert [limiter.check("k").remaining for _ in range(6)] == [7, 6, 5, 4, 3, 2]
        server.kill()
        with pytest.raises(StoreUnavailableError, match=r"no connection.*nothing was charged"):
            rate_limit(gcra(9, 1), store=PostgresStore(pool, timeout_ms=200)).check("k")


def test_an_async_pool_outlives_a_restart_of_its_server(server: Postgres) -> None:
    """The same, on an event loop."""

    async def main() -> None:
        from psycopg_pool import AsyncConnectionPool

        async with AsyncConnectionPool(server.url, min_size=4, max_size=4, open=False) as pool:
            await pool.wait()
            limiter = rate_limit(gcra(9, 864_000_000), store=PostgresStore(pool, timeout_ms=5_000))
            await limiter.acheck("k")
            await asyncio.to_thread(server.restart)
            left = [(await limiter.acheck("k")).remaining for _ in range(6)]
            assert left == [7, 6, 5, 4, 3, 2]
            server.kill()
            hasty = rate_limit(gcra(9, 1), store=PostgresStore(pool, timeout_ms=200))
            with pytest.raises(StoreUnavailableError, match=r"no answer|no connection"):
                await hasty.acheck("k")

    asyncio.run(main())


def test_a_paused_server_costs_no_more_than_the_deadline(server: Postgres) -> None:
    """In the middle of a session: a typed error in time, which says that there is a doubt."""
    store = open_store(f"{server.url}?timeout_ms=150")
    limiter = rate_limit(gcra(5, 864_000_000), store=store)
    connected(limiter)
    server.pause()
    started = time.monotonic()
    with pytest.raises(StoreUnavailableError, match=r"no reply .* may have been charged"):
        limiter.check("k")
    with pytest.raises(StoreUnavailableError, match="nothing was charged"):
        limiter.peek("k")
    assert 0.25 < time.monotonic() - started < 5
    server.resume()
    connected(limiter)
    store.close()


@each_driver
def test_a_paused_server_does_not_block_the_loop(server: Postgres, driver: str) -> None:
    """50 tasks fail at their deadlines while the loop ticks on; afterwards all is well."""

    async def main() -> None:
        store = open_store(f"{server.url}?driver={driver}&timeout_ms=200")
        limiter = rate_limit(gcra(1_000, 864_000_000), store=store)
        await aconnected(limiter)
        server.pause()
        started = time.monotonic()
        waiting = asyncio.gather(*(limiter.acheck("k") for _ in range(50)), return_exceptions=True)
        ticks = 0
        while not waiting.done():
            await asyncio.sleep(0.005)
            ticks += 1
        assert ticks > 10
        assert time.monotonic() - started < 5
        assert {type(error) for error in await waiting} == {StoreUnavailableError}
        server.resume()
        await aconnected(limiter)
        await store.aclose()

    asyncio.run(main())


@each_driver
def test_connecting_is_part_of_the_deadline(proxy: FaultProxy, driver: str) -> None:
    """A network that swallows everything is given up on in time, from the first call on."""
    proxy.swallow()

    async def main() -> None:
        store = open_store(f"{proxy.url_of(running())}?driver={driver}&timeout_ms=150")
        limiter = rate_limit(gcra(5, 60_000), store=store)
        started = time.monotonic()
        with pytest.raises(StoreUnavailableError, match=r"in time|no answer"):
            await limiter.acheck("k")
        assert time.monotonic() - started < 1.5
        await store.aclose()

    asyncio.run(main())


def test_connecting_is_part_of_the_deadline_on_threads(proxy: FaultProxy) -> None:
    """The same, for sync callers; nothing was charged."""
    proxy.swallow()
    store = open_store(f"{proxy.url_of(running())}?timeout_ms=150")
    started = time.monotonic()
    with pytest.raises(StoreUnavailableError, match=r"no connection .* nothing was charged"):
        rate_limit(gcra(5, 60_000), store=store).check("k")
    assert time.monotonic() - started < 1.5
    store.close()


def test_a_reply_that_never_comes_leaves_a_doubt_and_is_not_repeated(proxy: FaultProxy) -> None:
    """The server has acted, the connection ends: charged once, and said to be doubtful."""
    table = new_table()
    store = open_store(f"{proxy.url_of(running())}?table={table}&timeout_ms=2000")
    limiter = rate_limit(gcra(5, 864_000_000), store=store)
    limiter.check("k")
    proxy.cut_after_request(times=1)
    with pytest.raises(StoreUnavailableError, match="may have been charged"):
        limiter.check("k")
    assert limiter.check("k").remaining == 2
    store.close()


def test_a_locked_table_is_refused_in_time() -> None:
    """An operator's lock: the server says so before the deadline, and nothing was charged."""
    psycopg = pytest.importorskip("psycopg")
    table = new_table()
    store = open_store(url_of(table, timeout_ms=200))
    limiter = rate_limit(gcra(5, 864_000_000), store=store)
    connected(limiter)
    limiter.check("k")
    with psycopg.connect(running().url) as operator:
        operator.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        started = time.monotonic()
        with pytest.raises(StoreUnavailableError, match=r"(55P03|57014).*nothing was charged"):
            limiter.check("k")
        assert time.monotonic() - started < 1.5
    assert limiter.check("k").remaining == 3
    store.close()


@each_driver
def test_a_key_that_cannot_be_locked_is_refused_in_time(
    monkeypatch: pytest.MonkeyPatch, driver: str
) -> None:
    """On the way of those who lost their guesses: nothing was charged, the connection goes on."""
    monkeypatch.setattr(_flows, "_GUESSES", 0)
    psycopg = pytest.importorskip("psycopg")
    table = new_table()

    async def main() -> None:
        store = open_store(url_of(table, driver=driver, timeout_ms=300))
        limiter = rate_limit(gcra(5, 864_000_000), store=store)
        await aconnected(limiter)
        await limiter.acheck("k")
        with psycopg.connect(running().url) as operator:
            operator.execute(f"SELECT * FROM {table} FOR UPDATE")
            with pytest.raises(StoreUnavailableError, match=r"(55P03|57014).*nothing was charged"):
                await limiter.acheck("k")
        assert (await limiter.acheck("k")).remaining == 3
        await store.aclose()

    asyncio.run(main())


def test_only_a_lost_commit_leaves_a_doubt(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a transaction: the connection ends after the lock was asked for, or after the commit."""
    monkeypatch.setattr(_flows, "_GUESSES", 0)
    store = open_store(f"{proxy.url_of(running())}?table={new_table()}&timeout_ms=2000")
    limiter = rate_limit(gcra(5, 864_000_000), store=store)
    limiter.check("k")
    proxy.cut_after_request(times=1)
    with pytest.raises(StoreUnavailableError, match="nothing was charged"):
        limiter.check("k")
    assert limiter.check("k").remaining == 3

    def cut_the_commit(sheet: Any, known: Any) -> Any:
        proxy.cut_after_request(times=1)
        return doubtful(sheet, known)

    doubtful = _flows._doubtful
    monkeypatch.setattr(_flows, "_doubtful", cut_the_commit)
    with pytest.raises(StoreUnavailableError, match="may have been charged"):
        limiter.check("k")
    monkeypatch.setattr(_flows, "_doubtful", doubtful)
    assert limiter.check("k").remaining == 1
    store.close()


def _as_role(role: str, grants: str = "") -> str:
    running().query(f"CREATE ROLE {role} LOGIN PASSWORD 'unused'; {grants}")
    return url_of(new_table()).replace("postgres@", f"{role}@")


def test_missing_rights_are_a_typed_error_that_names_them() -> None:
    """A user who may not use the table is told what to grant."""
    store = open_store(_as_role("outsider"))
    with pytest.raises(StoreUnavailableError, match=r"42501.*grant this user"):
        rate_limit(gcra(5, 60_000), store=store).check("k")
    store.close()


def test_a_read_only_server_is_a_typed_error() -> None:
    """As a standby would answer; peeking still works."""
    url = url_of(new_table(), options="-c%20default_transaction_read_only%3Don")
    limiter = rate_limit(gcra(5, 60_000), store=open_store(url))
    assert limiter.peek("k").remaining == 5
    with pytest.raises(StoreUnavailableError, match=r"25006.*primary.*nothing was charged"):
        limiter.check("k")
    limiter.store.close()


@each_driver
@pytest.mark.parametrize("where", ["database", "role", "port"])
def test_a_server_that_turns_us_away_is_a_typed_error(driver: str, where: str) -> None:
    """A database or a role that does not exist, a port where nobody listens."""
    url = running().url
    url = {
        "database": url.replace("/postgres", "/nowhere"),
        "role": url.replace("postgres@", "nobody@"),
        "port": url.replace(str(running().port), "1"),
    }[where]

    async def main() -> None:
        store = open_store(f"{url}?driver={driver}")
        with pytest.raises(StoreUnavailableError, match="cannot connect to PostgreSQL at"):
            await rate_limit(gcra(5, 60_000), store=store).acheck("k")
        await store.aclose()

    asyncio.run(main())


@each_driver
def test_a_password_is_never_shown(driver: str) -> None:
    """Neither in the repr of anything, nor in an error."""
    url = running().url.replace("postgres@", "postgres:s3%40cret@")
    store = open_store(f"{url}?driver={driver}&table={new_table()}")
    broken = open_store(f"{url.replace(str(running().port), '1')}?driver={driver}")

    async def error_of(store: Any) -> str:
        try:
            await rate_limit(gcra(5, 60_000), store=store).acheck("k")
        except StoreUnavailableError as error:
            return f"{error!r} {error.__cause__!r} {error.__context__!r}"
        finally:
            await store.aclose()
        return ""

    shown = [repr(store), repr(vars(store)), asyncio.run(error_of(store))]
    shown += [repr(broken), asyncio.run(error_of(broken))]
    assert shown[-1]
    for text in shown:
        assert "s3" not in text


def test_a_missing_table_names_the_command() -> None:
    """Before init, and when someone dropped it under way; service resumes after the next init."""
    store = PostgresStore.from_url(running().url, table="nobody_made_this")
    limiter = rate_limit(gcra(5, 60_000), store=store)
    with pytest.raises(ConfigInvalidError, match=r'"public"."nobody_made_this".*store init URL'):
        limiter.check("k")
    store.init()
    assert limiter.check("k")
    running().query('DROP TABLE "nobody_made_this"')
    with pytest.raises(ConfigInvalidError, match=r"missing.*penstock store init URL"):
        limiter.check("k")
    store.init()
    assert limiter.check("k")
    store.close()
