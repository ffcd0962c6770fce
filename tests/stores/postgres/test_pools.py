"""PostgresStore on connections that belong to somebody else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import ConfigInvalidError, ManualClock, UnsupportedError, gcra, rate_limit
from penstock.stores import open_store
from penstock.stores.postgres import PostgresStore
from penstock.testkit import arun_store_conformance, run_store_conformance
from tests.stores.postgres.live import PATIENT_MS, new_table, running

NOW = 1_700_000_000_000


def test_a_pool_of_psycopg_serves_threads() -> None:
    """The kit passes, with connections that are not in autocommit, and they stay usable."""
    from psycopg_pool import ConnectionPool

    with ConnectionPool(running().url, min_size=1, max_size=3, open=True) as pool:
        run_store_conformance(lambda: PostgresStore(pool, table=new_table(), timeout_ms=PATIENT_MS))
        with pool.connection() as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_an_async_pool_of_psycopg_serves_tasks() -> None:
    """The kit passes, and the pool stays its owner's."""

    async def main() -> None:
        from psycopg_pool import AsyncConnectionPool

        async with AsyncConnectionPool(running().url, min_size=1, max_size=3, open=False) as pool:
            await arun_store_conformance(
                lambda: PostgresStore(pool, table=new_table(), timeout_ms=PATIENT_MS)
            )
            async with pool.connection() as connection:
                cursor = await connection.execute("SELECT 1")
                assert await cursor.fetchone() == (1,)

    asyncio.run(main())


def test_a_pool_of_asyncpg_serves_tasks() -> None:
    """The kit passes, and the pool stays its owner's."""

    async def main() -> None:
        import asyncpg

        async with asyncpg.create_pool(running().url, min_size=1, max_size=3) as pool:
            await arun_store_conformance(
                lambda: PostgresStore(pool, table=new_table(), timeout_ms=PATIENT_MS)
            )
            assert await pool.fetchval("SELECT 1") == 1

    asyncio.run(main())


def test_init_and_sweep_work_through_pools() -> None:
    """Every kind of pool can set up its table."""

    async def main() -> None:
        import asyncpg
        from psycopg_pool import AsyncConnectionPool, ConnectionPool

        with ConnectionPool(running().url, min_size=1, open=True) as pool:
            store = PostgresStore(pool, table="by_pool")
            store.init()
            rate_limit(gcra(5, 1_000), store=store, clock=ManualClock(NOW)).check("k")
            assert store.sweep() == 1
        async with AsyncConnectionPool(running().url, min_size=1, open=False) as apool:
            await _init_and_sweep(PostgresStore(apool, table="by_async_pool"))
        async with asyncpg.create_pool(running().url, min_size=1) as gpool:
            await _init_and_sweep(PostgresStore(gpool, table="by_asyncpg_pool"))

    asyncio.run(main())


async def _init_and_sweep(store: PostgresStore) -> None:
    await store.ainit()
    await rate_limit(gcra(5, 1_000), store=store, clock=ManualClock(NOW)).acheck("k")
    assert await store.asweep() == 1
    await store.aclose()


def test_calls_that_a_store_lacks_name_the_fix() -> None:
    """An async driver cannot serve threads, a sync pool no tasks."""
    from psycopg_pool import ConnectionPool

    store = open_store(f"{running().url}?driver=asyncpg")
    with pytest.raises(UnsupportedError, match=r"async only.*from_url"):
        rate_limit(gcra(5, 1_000), store=store).check("k")
    with ConnectionPool(running().url, min_size=1, open=True) as pool:
        limiter = rate_limit(gcra(5, 1_000), store=PostgresStore(pool, table=new_table()))
        with pytest.raises(UnsupportedError, match=r"sync pool.*from_url"):
            asyncio.run(limiter.acheck("k"))


@pytest.mark.parametrize("pool", [None, "postgresql://localhost/x", object(), 5])
def test_what_is_no_pool_is_refused(pool: Any) -> None:
    """With a text that says what would be right."""
    with pytest.raises(ConfigInvalidError, match="pool must be"):
        PostgresStore(pool)


def test_a_pool_with_no_connection_to_give_is_a_typed_error() -> None:
    """All of them are out: `store_unavailable` at the deadline."""
    from psycopg_pool import ConnectionPool

    from penstock import StoreUnavailableError

    with ConnectionPool(running().url, min_size=1, max_size=1, open=True) as pool:
        limiter = rate_limit(gcra(5, 1_000), store=PostgresStore(pool, timeout_ms=100))
        with (
            pool.connection(),
            pytest.raises(StoreUnavailableError, match=r"no connection from the pool.*nothing"),
        ):
            limiter.check("k")
