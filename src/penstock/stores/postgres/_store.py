"""`PostgresStore`, with its connections for sync and async callers."""

from __future__ import annotations

import importlib.util
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..._queueing.fork import ForkAware, watch_forks
from ...core._clock import SystemClock
from ...core._errors import ConfigInvalidError, UnsupportedError, missing
from ...core._loops import running_loop
from ...core._steps import Step, looked_at
from ...core._store import Store, from_its_url
from ...core._transform import Transform
from ...core._validation import reject, require_choice, require_instant, require_int
from ._async_connections import (
    AsyncOwnConnection,
    AsyncpgOwnConnection,
    AsyncpgPooledConnections,
    AsyncPooledConnections,
)
from ._commits import AsyncCommits, SyncCommits
from ._connections import OwnConnection, PooledConnections, parse_url
from ._flows import PostgresFlows
from ._libpq import find_fault
from ._schema import Schema

__all__ = ["PostgresStore"]

R = TypeVar("R")

_DRIVERS = ("psycopg", "asyncpg")
_INIT_TIMEOUT_MS = 30_000
_SWEEP_TIMEOUT_MS = 600_000
_SLICE = 1_000


class PostgresStore(Store, ForkAware):
    """Keeps states in a table of PostgreSQL: one limit for everyone who uses the same database.

    `pool` is a `psycopg_pool.ConnectionPool`, a `psycopg_pool.AsyncConnectionPool` or an
    `asyncpg.Pool`; the store then serves sync or async callers, as the pool does. With `from_url`
    it opens one connection of its own per process, and one per event loop.

    `use_server_time` makes the server's clock decide, for one round trip more. `timeout_ms` is how
    long a call may take, connecting included; past it the call raises `store_unavailable`.

    The table has to be there: `init`, or `penstock store init URL`, once.
    """

    _sync: SyncCommits | None
    _make_async: Callable[[], AsyncCommits] | None
    _async: weakref.WeakKeyDictionary[Any, AsyncCommits]

    def __init__(
        self,
        pool: Any,
        *,
        schema: str = "public",
        table: str = "penstock",
        use_server_time: bool = False,
        timeout_ms: int = 1_000,
    ) -> None:
        self._prepare(schema, table, use_server_time, timeout_ms)
        names = {
            f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in type(pool).__mro__
        }
        if "psycopg_pool.AsyncConnectionPool" in names:
            self._make_async = lambda: self._async_commits(
                AsyncPooledConnections(pool, self._set_up), is_bounded=False
            )
        elif "psycopg_pool.ConnectionPool" in names:
            self._sync = self._sync_commits(PooledConnections(pool, self._set_up), is_bounded=False)
        elif "asyncpg.Pool" in names:
            self._make_async = lambda: self._async_commits(
                AsyncpgPooledConnections(pool, self._set_up), is_bounded=False, bounds_late=True
            )
        else:
            reject(
                "pool must be a psycopg_pool.ConnectionPool, a psycopg_pool.AsyncConnectionPool or "
                "an asyncpg.Pool; for a URL write PostgresStore.from_url(...)"
            )
        self._where = f"a pool ({type(pool).__module__.partition('.')[0]})"
        watch_forks(self)

    @classmethod
    @from_its_url
    def from_url(cls, url: str, **options: Any) -> PostgresStore:
        """`postgresql://user:password@host:5432/database`, with the driver's own parameters, and
        `?schema=`, `?table=`, `?driver=psycopg|asyncpg`, `?timeout_ms=`, `?use_server_time=`.

        psycopg serves sync and async callers, asyncpg async ones.
        """
        target, settings = parse_url(url)
        options = {**settings, **options}
        driver = require_choice("driver", options.pop("driver", "psycopg"), _DRIVERS)
        store = cls.__new__(cls)
        store._prepare(**{**_DEFAULTS, **options})
        _require_driver(driver)
        if driver == "psycopg":
            if fault := find_fault(target.url):
                reject(target.redact(f"{target.where}: {fault}"))
            store._sync = store._sync_commits(OwnConnection(target, store._set_up_own))
            store._make_async = lambda: store._async_commits(
                AsyncOwnConnection(target, store._set_up_own)
            )
        else:
            store._make_async = lambda: store._async_commits(
                AsyncpgOwnConnection(target, store._set_up_own), bounds_late=True
            )
        store._where = target.where
        watch_forks(store)
        return store

    def _prepare(self, schema: str, table: str, use_server_time: bool, timeout_ms: int) -> None:
        if not isinstance(use_server_time, bool):
            reject(f"use_server_time must be True or False, not {use_server_time!r}")
        self.timeout_ms: int = require_int("timeout_ms", timeout_ms, high=3_600_000)
        self.reads_own_clock = use_server_time
        self._schema = Schema(schema, table)
        self._sync = None
        self._make_async = None
        self._async = weakref.WeakKeyDictionary()
        self._where = ""

    def init(self) -> None:
        """Create the table and its functions if they are missing. Rejects a table of another
        program or of an unknown version. Idempotent."""
        self._for_threads().init(_INIT_TIMEOUT_MS)

    async def ainit(self) -> None:
        """The awaitable twin of `init`."""
        await self._for_tasks().init(_INIT_TIMEOUT_MS)

    def apply(self, key: str, transform: Transform[R], now: int, cost: int) -> R:
        commits = self._sync or self._for_threads()
        result: R = commits.apply(((key, transform, cost, False),), now)[0]
        return result

    async def aapply(self, key: str, transform: Transform[R], now: int, cost: int) -> R:
        commits = self._for_tasks()
        result: R = (await commits.apply(((key, transform, cost, False),), now))[0]
        return result

    def apply_many(
        self, keys: Sequence[str], transform: Transform[R], now: int, cost: int
    ) -> list[R]:
        """All keys in one statement, and in a second one those that other processes have
        changed."""
        return self._for_threads().apply([(key, transform, cost, False) for key in keys], now)

    async def aapply_many(
        self, keys: Sequence[str], transform: Transform[R], now: int, cost: int
    ) -> list[R]:
        """The awaitable twin of `apply_many`."""
        steps = [(key, transform, cost, False) for key in keys]
        return await self._for_tasks().apply(steps, now)

    def apply_all(self, steps: Sequence[Step], now: int) -> list[Any]:
        """All keys in one statement, which writes all or none; decided again in a second one if
        other processes have changed one of them."""
        return self._for_threads().apply(looked_at(steps), now, is_whole=True)

    async def aapply_all(self, steps: Sequence[Step], now: int) -> list[Any]:
        """The awaitable twin of `apply_all`."""
        return await self._for_tasks().apply(looked_at(steps), now, is_whole=True)

    def is_atomic(self, lead: str) -> bool:
        return True

    def sweep(self, now: int | None = None) -> int:
        """Delete keys that expired long enough ago to be safe with any clock, at `now` (by default,
        on the clock that decides). Returns how many. Works in slices, and does not wait for
        locks."""
        flow = self._flows().sweep(self._sweep_instant(now), _SLICE)
        dropped: int = self._for_threads().run(flow, _SWEEP_TIMEOUT_MS)
        return dropped

    async def asweep(self, now: int | None = None) -> int:
        """The awaitable twin of `sweep`."""
        flow = self._flows().sweep(self._sweep_instant(now), _SLICE)
        dropped: int = await self._for_tasks().run(flow, _SWEEP_TIMEOUT_MS)
        return dropped

    def close(self) -> None:
        """Close the connections that the store has made. A later call opens new ones."""
        if self._sync is not None:
            self._sync.close()
        for loop, commits in list(self._async.items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(commits.connections.close)

    async def aclose(self) -> None:
        if self._sync is not None:
            self._sync.close()
        commits = self._async.pop(running_loop(), None)
        if commits is not None:
            await commits.aclose()

    def __repr__(self) -> str:
        return f"<PostgresStore on {self._where}, table {self._schema.table}>"

    def _sweep_instant(self, now: int | None) -> int | None:
        if now is not None:
            return require_instant(now)
        return None if self.reads_own_clock else SystemClock().now()

    def _flows(self, *, is_bounded: bool = True, bounds_late: bool = False) -> PostgresFlows:
        return PostgresFlows(
            self._schema,
            self.timeout_ms,
            use_server_time=self.reads_own_clock,
            is_bounded=is_bounded,
            bounds_late=bounds_late,
        )

    def _set_up(self) -> Any:
        return self._schema.set_up(None)

    def _set_up_own(self) -> Any:
        return self._schema.set_up(self.timeout_ms)

    def _sync_commits(self, connections: Any, **bounds: bool) -> SyncCommits:
        return SyncCommits(connections, self._flows(**bounds), self.timeout_ms)

    def _async_commits(self, connections: Any, **bounds: bool) -> AsyncCommits:
        return AsyncCommits(connections, self._flows(**bounds), self.timeout_ms)

    def _for_threads(self) -> SyncCommits:
        if self._sync is None:
            raise UnsupportedError(
                "this PostgresStore is async only: use acheck, apeek, ..., or make it with "
                "PostgresStore.from_url(url), which serves sync and async callers through psycopg"
            )
        return self._sync

    def _for_tasks(self) -> AsyncCommits:
        loop = running_loop()
        commits = self._async.get(loop)
        if commits is None:
            if self._make_async is None:
                raise UnsupportedError(
                    "this PostgresStore was made from a sync pool: use check, peek, ..., or make "
                    "it with PostgresStore.from_url(url), which serves sync and async callers"
                )
            commits = self._async[loop] = self._make_async()
        return commits

    def _after_fork_in_child(self) -> None:
        """A forked child must not use its parent's sockets."""
        self._async = weakref.WeakKeyDictionary()
        if self._sync is not None:
            self._sync.forget()


_DEFAULTS: dict[str, Any] = {
    "schema": "public",
    "table": "penstock",
    "use_server_time": False,
    "timeout_ms": 1_000,
}


def _require_driver(driver: str) -> None:
    if importlib.util.find_spec(driver) is None:
        raise ConfigInvalidError(missing("this PostgresStore", driver))
