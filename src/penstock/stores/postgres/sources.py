"""Where a lane gets its connection from: one of its own, or a pool of the user's.

`borrow` gives a connection that is ready for statements, with the table inspected: for each new
connection of our own, and once for a pool. `give_back` returns it, or drops it when it is not
known to be idle. All of it within the deadline of the call.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from importlib import import_module
from typing import Any

from ...core.flow import drive
from .faults import late_connect, late_reply
from .link import READ, WRITE, Link, connecting
from .requests import LinkError, PostgresFlow, Request
from .target import Target

__all__ = [
    "OwnSource",
    "PoolSource",
    "connect_in_thread",
    "is_alive",
    "lend",
    "run_blocking",
    "wait",
]

Greet = Callable[[], PostgresFlow]


def wait(socket: int, what: int, deadline: float) -> int:
    """Which of READ and WRITE the socket is ready for; 0 when the deadline came first."""
    left = max(0.0, deadline - time.monotonic())
    if not hasattr(select, "poll"):
        readable, writable, _ = select.select(
            [socket] if what & READ else [], [socket] if what & WRITE else [], [], left
        )
        return bool(readable) * READ | bool(writable) * WRITE
    poll = select.poll()
    poll.register(socket, (what & READ and select.POLLIN) | (what & WRITE and select.POLLOUT))
    events = poll.poll(left * 1000)
    if not events:
        return 0
    bits = events[0][1]
    # Trouble is for libpq to find out, by reading.
    return bool(bits & select.POLLOUT) * WRITE | bool(bits & ~select.POLLOUT) * READ


def is_alive(link: Link) -> bool:
    """A server that went away while we were idle has left word: a farewell, perhaps, and the
    end of the stream behind it."""
    if not link.is_idle:
        return False
    while wait(link.socket, READ, 0):
        if not link.hears():
            return False
    return True


def connect_in_thread(target: Target, deadline: float) -> Future[Link]:
    """Connect in a thread of its own: libpq looks names up in its own time, whatever the deadline.
    A connection that comes too late for its caller is closed."""
    future: Future[Link] = Future()

    def connect() -> None:
        try:
            link = _connect(target, deadline)
        except BaseException as error:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
            return
        if future.set_running_or_notify_cancel():
            future.set_result(link)
        else:
            link.close()

    threading.Thread(target=connect, name="penstock-postgres-connect", daemon=True).start()
    return future


def _connect(target: Target, deadline: float) -> Link:
    steps = connecting(target.url, target.where)
    try:
        socket, what = next(steps)
        while True:
            if not wait(socket, what, deadline):
                steps.close()
                raise late_connect(target.where)
            socket, what = steps.send(0)
    except StopIteration as finished:
        link: Link = finished.value
        return link
    except LinkError as error:
        raise LinkError(target.redact(str(error)), may_have_run=False) from None


def run_blocking(link: Link, request: Request, where: str, deadline: float) -> Any:
    """One request, on a connection that nobody else uses meanwhile."""
    steps = link.execute(request)
    ready = 0
    try:
        what = next(steps)
        while True:
            ready = wait(link.socket, what, deadline)
            if not ready:
                raise late_reply(where, request)
            what = steps.send(ready)
    except StopIteration as finished:
        return finished.value


class OwnSource:
    """One connection, kept from call to call."""

    def __init__(self, target: Target, greet: Greet) -> None:
        self._target = target
        self._greet = greet
        self._link: Link | None = None
        self.where: str = target.where

    def borrow(self, deadline: float) -> Link:
        link, self._link = self._link, None
        if link is not None:
            if is_alive(link):
                return link
            link.close()
        return self.connect(deadline, self._greet)

    def connect(self, deadline: float, greet: Greet | None) -> Link:
        future = connect_in_thread(self._target, deadline)
        try:
            link = future.result(max(0.0, deadline - time.monotonic()))
        except FutureTimeoutError:
            future.cancel()
            raise late_connect(self.where) from None
        if greet is not None:
            try:
                drive(greet(), lambda ask: run_blocking(link, ask, self.where, deadline))
            except BaseException:
                link.close()
                raise
        return link

    def give_back(self, link: Link) -> None:
        if link.is_idle:
            self._link = link
        else:
            link.close()

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def forget(self) -> None:
        """After a fork: the connection is the parent's."""
        self._link = None


class PoolSource:
    """Connections of a `psycopg_pool.ConnectionPool`."""

    def __init__(self, pool: Any, greet: Greet) -> None:
        self._pool = pool
        self._greet = greet
        self._greeted = False
        self._lent: dict[int, Any] = {}
        self._error: type[Exception] = import_module("psycopg").Error
        self.where = "PostgreSQL"

    def borrow(self, deadline: float) -> Link:
        link = self.connect(deadline, None)
        if not self._greeted:
            try:
                drive(self._greet(), lambda ask: run_blocking(link, ask, self.where, deadline))
            except BaseException:
                self.give_back(link)
                raise
            self._greeted = True
        return link

    def connect(self, deadline: float, _greet: Greet | None) -> Link:
        link = self._take(deadline)
        while not is_alive(link):
            # The pool looks at what it is given back, and replaces what was closed.
            self._drop(link)
            link = self._take(deadline)
        return link

    def _take(self, deadline: float) -> Link:
        try:
            connection = self._pool.getconn(timeout=max(0.001, deadline - time.monotonic()))
        except self._error as error:
            raise LinkError(f"no connection from the pool: {error}", may_have_run=False) from error
        return lend(self._lent, connection, self.where)

    def give_back(self, link: Link) -> None:
        if link.is_idle:
            self._pool.putconn(self._lent.pop(id(link)))
        else:
            self._drop(link)

    def _drop(self, link: Link) -> None:
        connection = self._lent.pop(id(link))
        connection.close()
        self._pool.putconn(connection)

    def close(self) -> None:
        """The pool is its owner's."""

    def forget(self) -> None:
        pass


def lend(lent: dict[int, Any], connection: Any, where: str) -> Link:
    """A link over the connection of a pool, remembered until it is given back."""
    link = Link(connection.pgconn, where, prepares=False)
    lent[id(link)] = connection
    return link
