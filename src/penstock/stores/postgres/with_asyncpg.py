"""Connections for the async lane: of asyncpg, own or from a pool.

asyncpg prepares statements by itself, and speaks PostgreSQL's types; what it raises becomes a
`LinkError` or a `RefusalError` here. It waits for the rows of a statement before it sends the
next, so what is asked together takes a round trip for each.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from ...core.flow import adrive
from .faults import late_connect, late_reply
from .requests import Ask, LinkError, PostgresFlow, RefusalError, Request, Row, Together
from .target import Target

__all__ = ["AsyncpgOwnSource", "AsyncpgPoolSource"]

Greet = Callable[[], PostgresFlow]


class AsyncpgLink:
    """One connection of asyncpg."""

    def __init__(self, connection: Any, where: str) -> None:
        self.connection = connection
        self.broken: bool = False
        self._where = where

    async def execute(self, request: Request, deadline: float) -> Any:
        if isinstance(request, Together):
            return [await self._run(ask, deadline) for ask in request.asks]
        return await self._run(request, deadline)

    async def _run(self, ask: Ask, deadline: float) -> list[Row]:
        asyncpg: Any = import_module("asyncpg")

        left = max(0.001, deadline - time.monotonic())
        # Until it has come to its end, the connection is not to be used again.
        broken, self.broken = self.broken, True
        try:
            records = await self.connection.fetch(ask.statement.sql, *ask.values, timeout=left)
        except asyncpg.PostgresError as error:
            self.broken = broken or self.connection.is_closed()
            raise RefusalError(error.sqlstate or "", str(error)) from error
        except asyncio.TimeoutError:
            raise late_reply(self._where, ask) from None
        except (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
            raise LinkError(
                f"the connection to {self._where} failed: {error}", may_have_run=ask.writes
            ) from error
        self.broken = broken
        return [tuple(record) for record in records]

    @property
    def is_idle(self) -> bool:
        if self.broken or self.connection.is_closed():
            return False
        return not self.connection.is_in_transaction()


class AsyncpgOwnSource:
    """One connection, kept from batch to batch."""

    def __init__(self, target: Target, greet: Greet) -> None:
        self._target = target
        self._greet = greet
        self._link: AsyncpgLink | None = None
        self.where: str = target.where

    async def borrow(self, deadline: float) -> AsyncpgLink:
        kept, self._link = self._link, None
        if kept is not None and kept.is_idle:
            return kept
        return await self.connect(deadline, greeted=True)

    async def connect(self, deadline: float, greeted: bool) -> AsyncpgLink:
        asyncpg: Any = import_module("asyncpg")

        left = max(0.001, deadline - time.monotonic())
        try:
            connection = await asyncpg.connect(self._target.url, timeout=left)
        except asyncio.TimeoutError:
            raise late_connect(self.where) from None
        except (OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            text = self._target.redact(f"cannot connect to {self.where}: {error}")
            raise LinkError(text, may_have_run=False) from None
        link = AsyncpgLink(connection, self.where)
        if greeted:
            try:
                await adrive(self._greet(), lambda ask: link.execute(ask, deadline))
            except BaseException:
                await self.let_go(link)
                raise
        return link

    async def give_back(self, link: AsyncpgLink) -> None:
        if link.is_idle:
            self._link = link
        else:
            link.connection.terminate()

    async def let_go(self, link: AsyncpgLink) -> None:
        link.connection.terminate()

    def close(self) -> None:
        kept, self._link = self._link, None
        if kept is not None:
            kept.connection.terminate()

    async def aclose(self) -> None:
        kept, self._link = self._link, None
        if kept is not None:
            await _close(kept.connection)


async def _close(connection: Any) -> None:
    asyncpg: Any = import_module("asyncpg")
    try:
        await connection.close(timeout=1)
    except (OSError, asyncio.TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()


class AsyncpgPoolSource:
    """Connections of an `asyncpg.Pool`."""

    def __init__(self, pool: Any, greet: Greet) -> None:
        self._pool = pool
        self._greet = greet
        self._greeted = False
        self.where = "PostgreSQL"

    async def borrow(self, deadline: float) -> AsyncpgLink:
        link = await self.connect(deadline, not self._greeted)
        self._greeted = True
        return link

    async def connect(self, deadline: float, greeted: bool) -> AsyncpgLink:
        asyncpg: Any = import_module("asyncpg")

        left = max(0.001, deadline - time.monotonic())
        try:
            connection = await self._pool.acquire(timeout=left)
        except asyncio.TimeoutError:
            raise late_connect(self.where) from None
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            text = f"no connection from the pool: {error}"
            raise LinkError(text, may_have_run=False) from error
        link = AsyncpgLink(connection, self.where)
        if greeted:
            try:
                await adrive(self._greet(), lambda ask: link.execute(ask, deadline))
            except BaseException:
                await self.give_back(link)
                raise
        return link

    async def give_back(self, link: AsyncpgLink) -> None:
        if not link.is_idle:
            link.connection.terminate()
        await self._pool.release(link.connection)

    let_go = give_back

    def close(self) -> None:
        """The pool is its owner's."""

    async def aclose(self) -> None:
        """The pool is its owner's."""
