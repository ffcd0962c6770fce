"""The connections of async callers: psycopg or asyncpg, own connections or a pool.

Connecting with psycopg is rare and may look up names, so it is done by a thread; after that the
event loop watches the socket.

asyncpg prepares statements by itself and converts PostgreSQL's types; its errors become a
`ConnectionFailedError` or a `RefusalError` here. It waits for the rows of a statement before it
sends the next, so several statements take a round trip each.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import import_module
from typing import Any, Generic, Protocol, TypeVar

from ...core._flow import adrive
from ...core._loops import running_loop
from .._sheet import ConnectionFailedError
from ._connections import PostgresTarget, SetUp, connect_in_thread
from ._libpq import READ, WRITE, LibpqConnection
from ._requests import (
    Pipeline,
    PostgresRequest,
    Query,
    RefusalError,
    Row,
    late_connect,
    late_reply,
)
from ._schema import begin_bounded

__all__ = [
    "AsyncConnection",
    "AsyncOwnConnection",
    "AsyncPooledConnections",
    "AsyncpgConnection",
    "AsyncpgOwnConnection",
    "AsyncpgPooledConnections",
]


class _AnyConnection(Protocol):
    """The operations of a connection, with either driver."""

    async def execute(self, request: PostgresRequest, deadline: float) -> Any: ...

    @property
    def is_idle(self) -> bool: ...

    def is_alive(self) -> bool: ...

    def drop(self) -> None: ...

    async def aclose(self) -> None: ...


C = TypeVar("C", bound=_AnyConnection)


class _Connections(Generic[C]):
    """`connect` returns a connection for one caller, which drops it; `borrow` one that is given
    back."""

    def __init__(self, set_up: SetUp, where: str) -> None:
        self._set_up = set_up
        self.where = where

    async def connect(self, deadline: float, sets_up: bool) -> C:
        connection = await self._open(deadline)
        if sets_up:
            try:
                await self._inspect(connection, deadline)
            except BaseException:
                await self.drop(connection)
                raise
        return connection

    async def drop(self, connection: C) -> None:
        raise NotImplementedError

    async def _open(self, deadline: float) -> C:
        raise NotImplementedError

    async def _inspect(self, connection: C, deadline: float) -> None:
        await adrive(self._set_up(), lambda request: connection.execute(request, deadline))


class _OwnConnection(_Connections[C]):
    """One connection, kept from batch to batch."""

    def __init__(self, target: PostgresTarget, set_up: SetUp) -> None:
        super().__init__(set_up, target.where)
        self._target = target
        self._kept: C | None = None

    async def borrow(self, deadline: float) -> C:
        kept = self._kept
        if kept is not None and kept.is_alive():
            return kept
        self.close()
        connection = self._kept = await self.connect(deadline, sets_up=True)
        return connection

    async def give_back(self, connection: C) -> None:
        if not connection.is_idle:
            await self.drop(connection)

    async def drop(self, connection: C) -> None:
        if self._kept is connection:
            self._kept = None
        connection.drop()

    def close(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.drop()

    async def aclose(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            await kept.aclose()


class _PooledConnections(_Connections[C]):
    """Connections of a pool, which is its owner's to close."""

    def __init__(self, pool: Any, set_up: SetUp) -> None:
        super().__init__(set_up, "PostgreSQL")
        self._pool = pool
        self._is_set_up = False
        self._lent: list[C] = []

    async def borrow(self, deadline: float) -> C:
        await self._reclaim()
        connection = await self._open(deadline)
        self._lent.append(connection)
        if not self._is_set_up:
            await self._inspect(connection, deadline)
            self._is_set_up = True
        return connection

    async def give_back(self, _connection: C) -> None:
        await self._reclaim()

    def close(self) -> None:
        """Nothing here is ours."""

    async def aclose(self) -> None:
        """Nor here."""

    async def _reclaim(self) -> None:
        """Give back the connection that is lent, also if a leader was interrupted before it did."""
        while self._lent:
            await self.drop(self._lent[-1])
            self._lent.pop()


class AsyncConnection:
    """A connection of psycopg, whose waiting is done by the running loop."""

    def __init__(self, connection: LibpqConnection, where: str) -> None:
        self.connection = connection
        self._where = where

    async def execute(self, request: PostgresRequest, deadline: float) -> Any:
        steps = self.connection.execute(request)
        try:
            what = next(steps)
            while True:
                ready = await _ready(self.connection.socket, what, deadline)
                if not ready:
                    raise late_reply(self._where, request)
                what = steps.send(ready)
        except StopIteration as finished:
            return finished.value

    @property
    def is_idle(self) -> bool:
        return self.connection.is_idle

    def is_alive(self) -> bool:
        return self.connection.is_alive()

    def unwatch(self) -> None:
        """Before the socket is closed: a loop that still watched it, after an interrupt, would not
        notice a new one of the same number."""
        socket, loop = self.connection.socket, running_loop()
        if socket >= 0:
            loop.remove_reader(socket)
            loop.remove_writer(socket)

    def drop(self) -> None:
        self.unwatch()
        self.connection.close()

    async def aclose(self) -> None:
        self.drop()


async def _ready(socket: int, what: int, deadline: float) -> int:
    """As `wait` of `_libpq.py`, on the loop."""
    loop = running_loop()
    ready: asyncio.Future[int] = loop.create_future()

    def tell(event: int) -> None:
        if not ready.done():
            ready.set_result(event)

    timer = loop.call_later(max(0.0, deadline - time.monotonic()), tell, 0)
    try:
        if what & READ:
            loop.add_reader(socket, tell, READ)
        if what & WRITE:
            loop.add_writer(socket, tell, WRITE)
        return await ready
    finally:
        timer.cancel()
        if what & READ:
            loop.remove_reader(socket)
        if what & WRITE:
            loop.remove_writer(socket)


class AsyncOwnConnection(_OwnConnection[AsyncConnection]):
    """Of psycopg."""

    async def _open(self, deadline: float) -> AsyncConnection:
        loop = running_loop()
        future: asyncio.Future[LibpqConnection] = loop.create_future()

        def settle(outcome: LibpqConnection | BaseException) -> None:
            if isinstance(outcome, BaseException):
                if not future.done():
                    future.set_exception(outcome)
            elif future.done():
                # It comes too late for its caller.
                outcome.close()
            else:
                future.set_result(outcome)

        def deliver(outcome: LibpqConnection | BaseException) -> None:
            try:
                loop.call_soon_threadsafe(settle, outcome)
            except RuntimeError:
                # The loop was closed meanwhile.
                if isinstance(outcome, LibpqConnection):
                    outcome.close()

        connect_in_thread(self._target, deadline, deliver)
        try:
            raw = await asyncio.wait_for(future, max(0.0, deadline - time.monotonic()))
        except asyncio.TimeoutError:
            raise late_connect(self.where) from None
        return AsyncConnection(raw, self.where)


class AsyncPooledConnections(_PooledConnections[AsyncConnection]):
    """Of a `psycopg_pool.AsyncConnectionPool`."""

    def __init__(self, pool: Any, set_up: SetUp) -> None:
        super().__init__(pool, set_up)
        self._error: type[Exception] = import_module("psycopg").Error

    async def _open(self, deadline: float) -> AsyncConnection:
        while True:
            try:
                owned = await self._pool.getconn(_left_s(deadline))
            except self._error as error:
                raise ConnectionFailedError(
                    f"no connection from the pool: {error}", may_have_run=False
                ) from error
            raw = LibpqConnection(owned.pgconn, self.where, prepares=False, owner=owned)
            connection = AsyncConnection(raw, self.where)
            if connection.is_alive():
                return connection
            # The pool checks connections that are returned, and replaces closed ones.
            await self.drop(connection)

    async def drop(self, connection: AsyncConnection) -> None:
        owned = connection.connection.owner
        if not connection.is_idle:
            connection.unwatch()
            await owned.close()
        # Returned already, by a caller that was interrupted right after.
        with contextlib.suppress(ValueError):
            await self._pool.putconn(owned)


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
        """The answer, or the driver's error translated."""
        asyncpg: Any = import_module("asyncpg")
        # Until it has ended, the connection must not be used again.
        broken, self._is_broken = self._is_broken, True
        try:
            answer = await ask(timeout=_left_s(deadline))
        except asyncio.TimeoutError:
            raise late_reply(self._where, query) from None
        except asyncpg.PostgresError as error:
            state = error.sqlstate or ""
            if state.startswith("08"):
                # The driver's error for a connection that ended before the reply.
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

    def is_alive(self) -> bool:
        return self.is_idle

    def drop(self) -> None:
        self.raw.terminate()

    async def aclose(self) -> None:
        asyncpg: Any = import_module("asyncpg")
        try:
            await self.raw.close(timeout=1)
        except (OSError, asyncio.TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            self.raw.terminate()


class AsyncpgOwnConnection(_OwnConnection[AsyncpgConnection]):
    """Of asyncpg."""

    async def _open(self, deadline: float) -> AsyncpgConnection:
        asyncpg: Any = import_module("asyncpg")
        try:
            raw = await asyncpg.connect(self._target.url, timeout=_left_s(deadline))
        except asyncio.TimeoutError:
            raise late_connect(self.where) from None
        except (OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            text = self._target.redact(f"cannot connect to {self.where}: {error}")
            raise ConnectionFailedError(text, may_have_run=False) from None
        return AsyncpgConnection(raw, self.where)


class AsyncpgPooledConnections(_PooledConnections[AsyncpgConnection]):
    """Of an `asyncpg.Pool`."""

    async def _open(self, deadline: float) -> AsyncpgConnection:
        asyncpg: Any = import_module("asyncpg")
        try:
            raw = await self._pool.acquire(timeout=_left_s(deadline))
        except asyncio.TimeoutError:
            raise late_connect(self.where) from None
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            text = f"no connection from the pool: {error}"
            raise ConnectionFailedError(text, may_have_run=False) from error
        return AsyncpgConnection(raw, self.where)

    async def drop(self, connection: AsyncpgConnection) -> None:
        if not connection.is_idle:
            connection.raw.terminate()
        await self._pool.release(connection.raw)


def _left_s(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())
