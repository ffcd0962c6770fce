"""Where the async store gets its connections from: of psycopg, own or from a pool.

Connecting is rare and may look up names, so it is left to a thread; after that the socket is
watched by the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from ...core._flow import adrive
from .._sheet import ConnectionFailedError
from ._libpq import READ, WRITE, LibpqConnection
from ._requests import PostgresFlow, PostgresRequest, late_connect, late_reply
from ._sync_connections import connect_in_thread
from ._urls import PostgresTarget

__all__ = ["AsyncConnection", "AsyncOwnConnection", "AsyncPooledConnections"]

Greet = Callable[[], PostgresFlow]


class AsyncConnection:
    """A connection whose waiting is done by the running loop."""

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

    def unwatch(self) -> None:
        """Before the socket is closed: a loop that still watched it, after an interrupt, would not
        notice a new one of the same number."""
        socket, loop = self.connection.socket, asyncio.get_running_loop()
        if socket >= 0:
            loop.remove_reader(socket)
            loop.remove_writer(socket)


async def _ready(socket: int, what: int, deadline: float) -> int:
    """As `connection.wait`, on the loop."""
    loop = asyncio.get_running_loop()
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


async def _greet(connection: AsyncConnection, greet: Greet, deadline: float) -> None:
    await adrive(greet(), lambda request: connection.execute(request, deadline))


class AsyncOwnConnection:
    """One connection, kept from batch to batch."""

    def __init__(self, target: PostgresTarget, greet: Greet) -> None:
        self._target = target
        self._greet = greet
        self._kept: AsyncConnection | None = None
        self.where: str = target.where

    async def borrow(self, deadline: float) -> AsyncConnection:
        kept = self._kept
        if kept is not None and kept.connection.is_alive():
            return kept
        self.close()
        connection = self._kept = await self.connect(deadline, greeted=True)
        return connection

    async def connect(self, deadline: float, greeted: bool) -> AsyncConnection:
        future = asyncio.wrap_future(connect_in_thread(self._target, deadline))
        try:
            raw = await asyncio.wait_for(future, max(0.0, deadline - time.monotonic()))
        except asyncio.TimeoutError:
            raise late_connect(self.where) from None
        connection = AsyncConnection(raw, self.where)
        if greeted:
            try:
                await _greet(connection, self._greet, deadline)
            except BaseException:
                await self.drop(connection)
                raise
        return connection

    async def give_back(self, connection: AsyncConnection) -> None:
        if not connection.connection.is_idle:
            await self.drop(connection)

    async def drop(self, connection: AsyncConnection) -> None:
        if self._kept is connection:
            self._kept = None
        connection.unwatch()
        connection.connection.close()

    def close(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.unwatch()
            kept.connection.close()

    async def aclose(self) -> None:
        self.close()


class AsyncPooledConnections:
    """Connections of a `psycopg_pool.AsyncConnectionPool`."""

    def __init__(self, pool: Any, greet: Greet) -> None:
        self._pool = pool
        self._greet = greet
        self._is_greeted = False
        self._lent: list[Any] = []
        self._error: type[Exception] = import_module("psycopg").Error
        self.where = "PostgreSQL"

    async def borrow(self, deadline: float) -> AsyncConnection:
        await self._reclaim()
        connection = await self._take(deadline)
        self._lent.append(connection.connection.owner)
        if not self._is_greeted:
            await _greet(connection, self._greet, deadline)
            self._is_greeted = True
        return connection

    async def connect(self, deadline: float, greeted: bool) -> AsyncConnection:
        """A connection for its caller alone, who drops it."""
        connection = await self._take(deadline)
        if greeted:
            try:
                await _greet(connection, self._greet, deadline)
            except BaseException:
                await self.drop(connection)
                raise
        return connection

    async def give_back(self, _connection: AsyncConnection) -> None:
        await self._reclaim()

    async def drop(self, connection: AsyncConnection) -> None:
        """Of one that was not borrowed."""
        await self._put(connection.connection.owner)

    def close(self) -> None:
        """The pool is its owner's."""

    async def aclose(self) -> None:
        """The pool is its owner's."""

    async def _take(self, deadline: float) -> AsyncConnection:
        while True:
            left = max(0.001, deadline - time.monotonic())
            try:
                owned = await self._pool.getconn(left)
            except self._error as error:
                raise ConnectionFailedError(
                    f"no connection from the pool: {error}", may_have_run=False
                ) from error
            connection = LibpqConnection(owned.pgconn, self.where, prepares=False, owner=owned)
            if connection.is_alive():
                return AsyncConnection(connection, self.where)
            # The pool looks at what it is given back, and replaces what was closed.
            await self._put(owned)

    async def _reclaim(self) -> None:
        """Give back what is lent, also by a leader that did not."""
        while self._lent:
            await self._put(self._lent[-1])
            self._lent.pop()

    async def _put(self, owned: Any) -> None:
        connection = LibpqConnection(owned.pgconn, self.where, prepares=False)
        if not connection.is_idle:
            AsyncConnection(connection, self.where).unwatch()
            await owned.close()
        # Given back already, by somebody who was interrupted right after.
        with contextlib.suppress(ValueError):
            await self._pool.putconn(owned)
