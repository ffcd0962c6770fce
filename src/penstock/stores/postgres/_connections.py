"""The address of a PostgreSQL store, and the connections of sync callers: its own, or from a pool.

The parameters of a URL are divided into those of the store and those of the driver.

`borrow` returns a connection that is ready for statements, with the table inspected: for each new
connection of our own, and once for a pool. `give_back` returns it, or drops it if it may not be
idle. All of that happens within the deadline of the call.

One leader at a time borrows. A connection stays registered here while it is lent, so that one which
an interrupted leader did not give back is found by the next.
"""

from __future__ import annotations

import _thread
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from queue import Empty, SimpleQueue
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlunsplit

from ...core._flow import drive
from ...core._validation import reject
from .._sheet import ConnectionFailedError
from .._urls import split_url
from ._libpq import LibpqConnection, connecting, wait
from ._requests import PostgresFlow, late_connect

__all__ = [
    "OwnConnection",
    "PooledConnections",
    "PostgresTarget",
    "SetUp",
    "connect_in_thread",
    "parse_url",
]


SetUp = Callable[[], PostgresFlow]
Deliver = Callable[["LibpqConnection | BaseException"], None]

_OURS = ("schema", "table", "driver", "timeout_ms", "use_server_time")
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True)
class PostgresTarget:
    """The URL for the driver, and how to speak of it: without secrets."""

    url: str = field(repr=False)
    where: str

    def redact(self, text: str) -> str:
        """Drivers do not quote passwords; should one ever do, it stops here."""
        password = split_url(self.url).password or ""
        for secret in {password, unquote(password)} - {""}:
            text = text.replace(secret, "***")
        return text


def parse_url(url: str) -> tuple[PostgresTarget, dict[str, Any]]:
    """The target, and the store's own options: `schema`, `table`, `driver`, `timeout_ms` and
    `use_server_time`. All other parameters are the driver's, unless they look like a misspelt one
    of these: otherwise each driver would reject it in its own way, when it connects."""
    try:
        parts = split_url(url)
        hosts = parts.netloc.rpartition("@")[2]
    except ValueError:
        reject("a PostgreSQL URL is postgresql://user:password@host:5432/database")
    options: dict[str, Any] = {}
    theirs: list[tuple[str, str]] = []
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        if name in ("schema", "table", "driver"):
            options[name] = text
        elif name == "timeout_ms":
            options[name] = int(text) if text.isdecimal() else text
        elif name == "use_server_time":
            if text.lower() not in _FLAGS:
                reject(f"use_server_time must be true or false, not {text!r}")
            options[name] = _FLAGS[text.lower()]
        elif near := get_close_matches(name, _OURS, 1, 0.75):
            reject(f"a postgresql:// URL takes {', '.join(_OURS)}, not {name}; write {near[0]}=")
        else:
            theirs.append((name, text))
    query = urlencode(theirs, quote_via=quote)
    plain = urlunsplit(("postgresql", parts.netloc, parts.path, query, ""))
    where = f"PostgreSQL at {hosts or 'the default address'}{parts.path}"
    return PostgresTarget(plain, where), options


def connect_in_thread(target: PostgresTarget, deadline: float, deliver: Deliver) -> None:
    """Connect in a thread of its own, which calls `deliver` with the connection or the error: libpq
    looks names up in its own time, whatever the deadline.

    Neither a `Thread` nor a `Future`: starting the one and waiting for the other uses a Condition,
    which an interrupt of the caller leaves unusable."""

    def connect() -> None:
        try:
            outcome: LibpqConnection | BaseException = _connect(target, deadline)
        except BaseException as error:
            outcome = error
        deliver(outcome)

    _thread.start_new_thread(connect, ())


class _Arrival:
    """Where a caller waits for its connection. A connection that arrives after the caller has left
    is closed."""

    def __init__(self) -> None:
        # Its operations are atomic, also for signal handlers.
        self._outcomes: SimpleQueue[LibpqConnection | BaseException] = SimpleQueue()
        self._is_over = False

    def deliver(self, outcome: LibpqConnection | BaseException) -> None:
        self._outcomes.put(outcome)
        if self._is_over:
            self.leave()

    def wait(self, timeout_s: float) -> LibpqConnection | BaseException | None:
        try:
            return self._outcomes.get(timeout=timeout_s)
        except Empty:
            return None

    def leave(self) -> None:
        self._is_over = True
        try:
            outcome = self._outcomes.get_nowait()
        except Empty:
            return
        if isinstance(outcome, LibpqConnection):
            outcome.close()


def _connect(target: PostgresTarget, deadline: float) -> LibpqConnection:
    steps = connecting(target.url, target.where)
    try:
        socket, what = next(steps)
        while True:
            if not wait(socket, what, deadline):
                steps.close()
                raise late_connect(target.where)
            socket, what = steps.send(0)
    except StopIteration as finished:
        connection: LibpqConnection = finished.value
        return connection
    except ConnectionFailedError as error:
        raise ConnectionFailedError(target.redact(str(error)), may_have_run=False) from None


def _set_up(connection: LibpqConnection, set_up: SetUp, deadline: float) -> None:
    drive(set_up(), lambda request: connection.run(request, deadline))


class OwnConnection:
    """One connection, kept from call to call."""

    def __init__(self, target: PostgresTarget, set_up: SetUp) -> None:
        self._target = target
        self._set_up = set_up
        self._kept: LibpqConnection | None = None
        self.where: str = target.where

    def borrow(self, deadline: float) -> LibpqConnection:
        connection = self._kept
        if connection is not None and connection.is_alive():
            return connection
        self.close()
        connection = self._kept = self.connect(deadline)
        try:
            _set_up(connection, self._set_up, deadline)
        except BaseException:
            self.close()
            raise
        return connection

    def connect(self, deadline: float) -> LibpqConnection:
        """A new connection, for its caller alone."""
        arrival = _Arrival()
        connect_in_thread(self._target, deadline, arrival.deliver)
        try:
            outcome = arrival.wait(max(0.0, deadline - time.monotonic()))
        finally:
            arrival.leave()
        if outcome is None:
            raise late_connect(self.where)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def give_back(self, connection: LibpqConnection) -> None:
        if not connection.is_idle:
            self.drop(connection)

    def drop(self, connection: LibpqConnection) -> None:
        if self._kept is connection:
            self._kept = None
        connection.close()

    def close(self) -> None:
        if self._kept is not None:
            self.drop(self._kept)

    def forget(self) -> None:
        """After a fork: the connection is the parent's."""
        self._kept = None


class PooledConnections:
    """Connections of a `psycopg_pool.ConnectionPool`."""

    def __init__(self, pool: Any, set_up: SetUp) -> None:
        self._pool = pool
        self._set_up = set_up
        self._is_set_up = False
        self._lent: list[Any] = []
        self._error: type[Exception] = import_module("psycopg").Error
        self.where = "PostgreSQL"

    def borrow(self, deadline: float) -> LibpqConnection:
        self._reclaim()
        connection = self._take(self._lent, deadline)
        if not self._is_set_up:
            _set_up(connection, self._set_up, deadline)
            self._is_set_up = True
        return connection

    def connect(self, deadline: float) -> LibpqConnection:
        """A connection for one caller, which drops it."""
        return self._take([], deadline)

    def give_back(self, _connection: LibpqConnection) -> None:
        self._reclaim()

    def drop(self, connection: LibpqConnection) -> None:
        """Of one that was not borrowed."""
        self._put(connection.owner)

    def close(self) -> None:
        """The pool is its owner's."""

    def forget(self) -> None:
        self._lent = []

    def _take(self, lent: list[Any], deadline: float) -> LibpqConnection:
        while True:
            left = max(0.001, deadline - time.monotonic())
            try:
                # In one step: an interrupt must not strike between the pool and our list.
                lent.extend(map(self._pool.getconn, (left,)))
            except self._error as error:
                raise ConnectionFailedError(
                    f"no connection from the pool: {error}", may_have_run=False
                ) from error
            connection = LibpqConnection(
                lent[-1].pgconn, self.where, prepares=False, owner=lent[-1]
            )
            if connection.is_alive():
                return connection
            # The pool checks connections that are returned, and replaces closed ones.
            self._put(lent[-1])
            lent.pop()

    def _reclaim(self) -> None:
        """Give back the connection that is lent, also if a leader was interrupted before it did."""
        while self._lent:
            self._put(self._lent[-1])
            self._lent.pop()

    def _put(self, owned: Any) -> None:
        if not LibpqConnection(owned.pgconn, self.where, prepares=False).is_idle:
            owned.close()
        # Returned already, by a caller that was interrupted right after.
        with contextlib.suppress(ValueError):
            self._pool.putconn(owned)
