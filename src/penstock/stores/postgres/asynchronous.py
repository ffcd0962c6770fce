"""Connections for the async lane: of psycopg, own or from a pool.

Connecting is rare and may look up names, so it is left to a thread; after that the socket is
watched by the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from ...core.flow import adrive
from .faults import late_connect, late_reply
from .link import READ, WRITE, Link
from .requests import LinkError, PostgresFlow, Request
from .sources import connect_in_thread, is_alive, lend
from .target import Target

__all__ = ["AsyncLink", "AsyncOwnSource", "AsyncPoolSource"]

Greet = Callable[[], PostgresFlow]


class AsyncLink:
    """A link whose waiting is done by the running loop."""

    def __init__(self, link: Link, where: str) -> None:
        self.link = link
        self._where = where

    async def execute(self, request: Request, deadline: float) -> Any:
        steps = self.link.execute(request)
        try:
            what = next(steps)
            while True:
                ready = await _ready(self.link.socket, what, deadline)
                if not ready:
                    raise late_reply(self._where, request)
                what = steps.send(ready)
        except StopIteration as finished:
            return finished.value


async def _ready(socket: int, what: int, deadline: float) -> int:
    """As `sources.wait`, on the loop."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[int] = loop.create_future()

    def tell(event: int) -> None:
        if not ready.done():
            ready.set_result(event)

    timer = loop.call_later(max(0.0, deadline - time.monotonic()), tell, 0)
    if what & READ:
        loop.add_reader(socket, tell, READ)
    if what & WRITE:
        loop.add_writer(socket, tell, WRITE)
    try:
        return await ready
    finally:
        timer.cancel()
        if what & READ:
            loop.remove_reader(socket)
        if what & WRITE:
            loop.remove_writer(socket)


class AsyncOwnSource:
    """One connection, kept from batch to batch."""

    def __init__(self, target: Target, greet: Greet) -> None:
        self._target = target
        self._greet = greet
        self._link: AsyncLink | None = None
        self.where: str = target.where

    async def borrow(self, deadline: float) -> AsyncLink:
        kept, self._link = self._link, None
        if kept is not None:
            if is_alive(kept.link):
                return kept
            kept.link.close()
        return await self.connect(deadline, greeted=True)

    async def connect(self, deadline: float, greeted: bool) -> AsyncLink:
        future = asyncio.wrap_future(connect_in_thread(self._target, deadline))
        try:
            raw = await asyncio.wait_for(future, max(0.0, deadline - time.monotonic()))
        except asyncio.TimeoutError:
            raise late_connect(self.where) from None
        link = AsyncLink(raw, self.where)
        if greeted:
            try:
                await adrive(self._greet(), lambda ask: link.execute(ask, deadline))
            except BaseException:
                raw.close()
                raise
        return link

    async def give_back(self, link: AsyncLink) -> None:
        if link.link.is_idle:
            self._link = link
        else:
            link.link.close()

    async def let_go(self, link: AsyncLink) -> None:
        link.link.close()

    def close(self) -> None:
        kept, self._link = self._link, None
        if kept is not None:
            kept.link.close()

    async def aclose(self) -> None:
        self.close()


class AsyncPoolSource:
    """Connections of a `psycopg_pool.AsyncConnectionPool`."""

    def __init__(self, pool: Any, greet: Greet) -> None:
        self._pool = pool
        self._greet = greet
        self._greeted = False
        self._lent: dict[int, Any] = {}
        self._error: type[Exception] = import_module("psycopg").Error
        self.where = "PostgreSQL"

    async def borrow(self, deadline: float) -> AsyncLink:
        link = await self.connect(deadline, not self._greeted)
        self._greeted = True
        return link

    async def connect(self, deadline: float, greeted: bool) -> AsyncLink:
        link = await self._take(deadline)
        while not is_alive(link.link):
            # The pool looks at what it is given back, and replaces what was closed.
            await self._drop(link)
            link = await self._take(deadline)
        if greeted:
            try:
                await adrive(self._greet(), lambda ask: link.execute(ask, deadline))
            except BaseException:
                await self.give_back(link)
                raise
        return link

    async def _take(self, deadline: float) -> AsyncLink:
        try:
            connection = await self._pool.getconn(max(0.001, deadline - time.monotonic()))
        except self._error as error:
            raise LinkError(f"no connection from the pool: {error}", may_have_run=False) from error
        return AsyncLink(lend(self._lent, connection, self.where), self.where)

    async def give_back(self, link: AsyncLink) -> None:
        if link.link.is_idle:
            await self._pool.putconn(self._lent.pop(id(link.link)))
        else:
            await self._drop(link)

    async def _drop(self, link: AsyncLink) -> None:
        connection = self._lent.pop(id(link.link))
        await connection.close()
        await self._pool.putconn(connection)

    let_go = give_back

    def close(self) -> None:
        """The pool is its owner's."""

    async def aclose(self) -> None:
        """The pool is its owner's."""
