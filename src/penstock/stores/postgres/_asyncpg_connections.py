"""Where the async store gets its connections from: of asyncpg, own or from a pool.

asyncpg prepares statements by itself, and speaks PostgreSQL's types; what it raises becomes a
`ConnectionFailedError` or a `RefusalError` here. It waits for the rows of a statement before it
sends the next, so what is asked together takes a round trip for each.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import import_module
from typing import Any

from ...core._flow import adrive
from .._sheet import ConnectionFailedError
from ._requests import (
    Pipeline,
    PostgresFlow,
    PostgresRequest,
    Query,
    RefusalError,
    Row,
    late_connect,
    late_reply,
)
from ._schema import begin_bounded
from ._urls import PostgresTarget

__all__ = ["AsyncpgConnection", "AsyncpgOwnConnection", "AsyncpgPooledConnections"]

Greet = Callable[[], PostgresFlow]


class AsyncpgConnection:
    """One connection of asyncpg."""

    def __init__(self, raw: Any, where: str) -> None:
        self.raw = raw
        self._is_broken = False
        self._where = where

    async def execute(self, request: PostgresRequest, deadline: float) -> Any:
        if isinstance(request, Pipeline):
            return [await self._fetch(query, deadline) for query in request.queries]
        if request.bound_ms is not None:
            return await self._fetch_bounded(request, request.bound_ms, deadline)
        return await self._fetch(request, deadline)

    async def _fetch(self, query: Query, deadline: float) -> list[Row]:
        ask = partial(self.raw.fetch, query.statement.sql, *query.values)
        return [tuple(record) for record in await self._reply(ask, query, deadline)]

    async def _fetch_bounded(self, query: Query, bound_ms: int, deadline: float) -> list[Row]:
        """In a transaction, which a bound of its own can be set for."""
        await self._run(begin_bounded(bound_ms), query, deadline)
        try:
            rows = await self._fetch(query, deadline)
        except RefusalError:
            await self._run("ROLLBACK", query, deadline)
            raise
        await self._run("COMMIT", query, deadline)
        return rows

    async def _run(self, sql: str, query: Query, deadline: float) -> None:
        await self._reply(partial(self.raw.execute, sql), query, deadline)

    async def _reply(
        self, ask: Callable[..., Awaitable[Any]], query: Query, deadline: float
    ) -> Any:
        """What is answered, or what was met instead, in our words."""
        asyncpg: Any = import_module("asyncpg")
        # Until it has come to its end, the connection is not to be used again.
        broken, self._is_broken = self._is_broken, True
        try:
            answer = await ask(timeout=_left_s(deadline))
        except asyncio.TimeoutError:
            raise late_reply(self._where, query) from None
        except asyncpg.PostgresError as error:
            state = error.sqlstate or ""
            if state.startswith("08"):
                # The driver's own word for a connection that ended before the reply.
                raise self._failed(error, query) from error
            self._is_broken = broken or self.raw.is_closed()
            raise RefusalError(state, str(error)) from error
        except (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
            raise self._failed(error, query) from error
        self._is_broken = broken
        return answer

    def _failed(self, error: Exception, query: Query) -> ConnectionFailedError:
        text = f"the connection to {self._where} failed: {error}"
        return ConnectionFailedError(text, may_have_run=query.writes)

    @property
    def is_idle(self) -> bool:
        if self._is_broken or self.raw.is_closed():
            return False
        return not self.raw.is_in_transaction()


def _left_s(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


async def _greet(connection: AsyncpgConnection, greet: Greet, deadline: float) -> None:
    await adrive(greet(), lambda request: connection.execute(request, deadline))


class AsyncpgOwnConnection:
    """One connection, kept from batch to batch."""

    def __init__(self, target: PostgresTarget, greet: Greet) -> None:
        self._target = target
        self._greet = greet
        self._kept: AsyncpgConnection | None = None
        self.where: str = target.where

    async def borrow(self, deadline: float) -> AsyncpgConnection:
        kept = self._kept
        if kept is not None and kept.is_idle:
            return kept
        self.close()
        connection = self._kept = await self.connect(deadline, greeted=True)
        return connection

    async def connect(self, deadline: float, greeted: bool) -> AsyncpgConnection:
        asyncpg: Any = import_module("asyncpg")
        try:
            raw = await asyncpg.connect(self._target.url, timeout=_left_s(deadline))
        except asyncio.TimeoutError:
            raise late_connect(self.where) from None
        except (OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            text = self._target.redact(f"cannot connect to {self.where}: {error}")
            raise ConnectionFailedError(text, may_have_run=False) from None
        connection = AsyncpgConnection(raw, self.where)
        if greeted:
            try:
                await _greet(connection, self._greet, deadline)
            except BaseException:
                raw.terminate()
                raise
        return connection

    async def give_back(self, connection: AsyncpgConnection) -> None:
        if not connection.is_idle:
            await self.drop(connection)

    async def drop(self, connection: AsyncpgConnection) -> None:
        if self._kept is connection:
            self._kept = None
        connection.raw.terminate()

    def close(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.raw.terminate()

    async def aclose(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            await _close(kept.raw)


async def _close(raw: Any) -> None:
    asyncpg: Any = import_module("asyncpg")
    try:
        await raw.close(timeout=1)
    except (OSError, asyncio.TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        raw.terminate()


class AsyncpgPooledConnections:
    """Connections of an `asyncpg.Pool`."""

    def __init__(self, pool: Any, greet: Greet) -> None:
        self._pool = pool
        self._greet = greet
        self._is_greeted = False
        self._lent: list[AsyncpgConnection] = []
        self.where = "PostgreSQL"

    async def borrow(self, deadline: float) -> AsyncpgConnection:
        await self._reclaim()
        connection = await self.connect(deadline, greeted=False)
        self._lent.append(connection)
        if not self._is_greeted:
            await _greet(connection, self._greet, deadline)
            self._is_greeted = True
        return connection

    async def connect(self, deadline: float, greeted: bool) -> AsyncpgConnection:
        """A connection for its caller alone, who drops it."""
        asyncpg: Any = import_module("asyncpg")
        try:
            raw = await self._pool.acquire(timeout=_left_s(deadline))
        except asyncio.TimeoutError:
            raise late_connect(self.where) from None
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            text = f"no connection from the pool: {error}"
            raise ConnectionFailedError(text, may_have_run=False) from error
        connection = AsyncpgConnection(raw, self.where)
        if greeted:
            try:
                await _greet(connection, self._greet, deadline)
            except BaseException:
                await self.drop(connection)
                raise
        return connection

    async def give_back(self, _connection: AsyncpgConnection) -> None:
        await self._reclaim()

    async def drop(self, connection: AsyncpgConnection) -> None:
        """Of one that was not borrowed."""
        if not connection.is_idle:
            connection.raw.terminate()
        await self._pool.release(connection.raw)

    def close(self) -> None:
        """The pool is its owner's."""

    async def aclose(self) -> None:
        """The pool is its owner's."""

    async def _reclaim(self) -> None:
        """Give back what is lent, also by a leader that did not."""
        while self._lent:
            await self.drop(self._lent[-1])
            self._lent.pop()
