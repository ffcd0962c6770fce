"""A non-blocking connection of libpq, through psycopg's `pq` module.

Requests are generators that yield what to wait for, so that a thread can serve them with `poll` and
an event loop with its readers. The connection of a psycopg pool is used in the same way, below
psycopg's cursors; statements run outside of a transaction of its owner.

Values are sent in binary as parameters, never as part of the SQL. A connection may end in the
middle of a reply; a partial reply is never taken for an answer.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Callable, Generator
from importlib import import_module
from typing import Any

from .._sheet import ConnectionFailedError
from ._requests import (
    UNPREPARED,
    Pipeline,
    PostgresRequest,
    Query,
    RefusalError,
    Row,
    Statement,
    late_reply,
)
from ._schema import bound

__all__ = ["READ", "WRITE", "LibpqConnection", "connecting", "find_fault", "wait"]

READ, WRITE = 1, 2

Waiting = Generator[int, int, Any]
"""Yields READ, WRITE or both, is sent which of them is ready."""

_PIPELINES = 140_000
"""The version of libpq from which on statements can be sent without waiting in between."""

_OIDS = {"bytea": 17, "int8": 20, "text": 25, "bytea[]": 1001, "text[]": 1009, "int8[]": 1016}
_ENCODE: dict[str, Callable[[Any], bytes]] = {
    "bytea": bytes,
    "int8": struct.Struct("!q").pack,
    "text": str.encode,
}
_DECODE: dict[str, Callable[[bytes], Any]] = {
    "bytea": bytes,
    "int4": lambda raw: int.from_bytes(raw, "big", signed=True),
    "int8": lambda raw: int.from_bytes(raw, "big", signed=True),
    "text": lambda raw: bytes(raw).decode(),
}


def _encode(kind: str, value: Any) -> bytes:
    """A parameter in PostgreSQL's binary format."""
    if not kind.endswith("[]"):
        return _ENCODE[kind](value)
    kind = kind[:-2]
    encode, oid = _ENCODE[kind], _OIDS[kind]
    if not value:
        return struct.pack("!iiI", 0, 0, oid)
    parts = [struct.pack("!iiIii", 1, None in value, oid, len(value), 1)]
    for item in value:
        if item is None:
            parts.append(b"\xff\xff\xff\xff")
        else:
            raw = encode(item)
            parts += (len(raw).to_bytes(4, "big"), raw)
    return b"".join(parts)


def find_fault(conninfo: str) -> str | None:
    """What libpq rejects in an address before it connects, such as an unknown parameter."""
    try:
        import_module("psycopg.pq").Conninfo.parse(conninfo.encode())
    except import_module("psycopg").Error as error:
        return " ".join(str(error).split())
    return None


def connecting(conninfo: str, where: str) -> Generator[tuple[int, int], int, LibpqConnection]:
    """Connect. Yields (socket, what to wait for); the socket may change in between."""
    pq: Any = import_module("psycopg.pq")
    pgconn = pq.PGconn.connect_start(conninfo.encode())
    while True:
        if pgconn.status == pq.ConnStatus.BAD:
            raise _cannot_connect(pgconn, where)
        status = pgconn.connect_poll()
        if status == pq.PollingStatus.OK:
            pgconn.nonblocking = 1
            return LibpqConnection(pgconn, where, prepares=True)
        if status == pq.PollingStatus.FAILED:
            raise _cannot_connect(pgconn, where)
        yield pgconn.socket, READ if status == pq.PollingStatus.READING else WRITE


def _cannot_connect(pgconn: Any, where: str) -> ConnectionFailedError:
    text = pgconn.get_error_message()
    pgconn.finish()
    return ConnectionFailedError(
        f"cannot connect to {where}: {' '.join(text.split())}", may_have_run=False
    )


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
    # libpq detects errors itself, by reading.
    return bool(bits & select.POLLOUT) * WRITE | bool(bits & ~select.POLLOUT) * READ


class LibpqConnection:
    """One connection. `prepares`: it is not shared, so statements can stay prepared. `owner` is the
    object of the pool that it is from."""

    def __init__(self, pgconn: Any, where: str, *, prepares: bool, owner: Any = None) -> None:
        self.owner = owner
        self._pgconn = pgconn
        self._pq: Any = import_module("psycopg.pq")
        self._error: type[Exception] = import_module("psycopg").Error
        self._where = where
        self._prepares = prepares
        self._prepared: set[str] = set()

    @property
    def socket(self) -> int:
        """Its number; -1 if it is closed."""
        try:
            number: int = self._pgconn.socket
        except self._error:
            return -1
        return number

    @property
    def is_idle(self) -> bool:
        """Whether it is open, with no statement or transaction in progress."""
        pgconn, pq = self._pgconn, self._pq
        idle: bool = pgconn.transaction_status == pq.TransactionStatus.IDLE
        return idle and (
            pq.version() < _PIPELINES or pgconn.pipeline_status == pq.PipelineStatus.OFF
        )

    def is_alive(self) -> bool:
        """A server that went away while we were idle has left word: a farewell, perhaps, and the
        end of the stream behind it."""
        if not self.is_idle:
            return False
        while wait(self.socket, READ, 0):
            try:
                self._pgconn.consume_input()
            except self._error:
                return False
            if not self.is_idle:
                return False
        return True

    def close(self) -> None:
        self._pgconn.finish()

    def run(self, request: PostgresRequest, deadline: float) -> Any:
        """Serve a request by blocking; returns its rows."""
        steps, socket = self.execute(request), self.socket
        try:
            what = next(steps)
            while True:
                ready = wait(socket, what, deadline)
                if not ready:
                    raise late_reply(self._where, request)
                what = steps.send(ready)
        except StopIteration as finished:
            return finished.value

    def execute(self, request: PostgresRequest) -> Waiting:
        """Serve a request; returns its rows."""
        try:
            if isinstance(request, Pipeline):
                return (yield from self._run_together(request.queries))
            if request.bound_ms is not None and self._can_pipeline():
                # Outside of a transaction, statements that are sent together are one transaction.
                *_, rows = yield from self._run_together((bound(request.bound_ms), request))
                return rows
            return (yield from self._run(request))
        except self._error as error:
            text = " ".join(str(error).split())
            raise ConnectionFailedError(
                f"the connection to {self._where} failed: {text}", may_have_run=request.writes
            ) from error
        except EOFError:
            raise ConnectionFailedError(
                f"the connection to {self._where} ended before the reply",
                may_have_run=request.writes,
            ) from None

    def _can_pipeline(self) -> bool:
        able: bool = self._pq.version() >= _PIPELINES
        return able

    def _run(self, query: Query) -> Waiting:
        statement, parameters = query.statement, _parameters(query)
        if not (self._prepares and statement.name):
            self._send_unnamed(statement, parameters)
            return (yield from self._rows(statement))
        name = statement.name.encode()
        if statement.name not in self._prepared:
            oids = [_OIDS[kind] for kind in statement.takes]
            self._pgconn.send_prepare(name, statement.sql.encode(), oids)
            yield from self._rows(_NOTHING)
            self._prepared.add(statement.name)
        self._pgconn.send_query_prepared(name, parameters, [1] * len(parameters), 1)
        try:
            return (yield from self._rows(statement))
        except RefusalError as refusal:
            if refusal.state not in UNPREPARED:
                raise
        self._prepares = False
        self._send_unnamed(statement, parameters)
        return (yield from self._rows(statement))

    def _send_unnamed(self, statement: Statement, parameters: list[bytes]) -> None:
        oids = [_OIDS[kind] for kind in statement.takes]
        self._pgconn.send_query_params(
            statement.sql.encode(), parameters, oids, [1] * len(parameters), 1
        )

    def _rows(self, statement: Statement) -> Waiting:
        """Send the rest of a statement, and read its whole result."""
        pgconn, status = self._pgconn, self._pq.ExecStatus
        if pgconn.flush():
            yield from self._flush()
        rows: list[Row] | None = None
        refusal: RefusalError | None = None
        while True:
            # As in `_result`, without a generator for each result.
            while pgconn.is_busy():
                yield READ
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                break
            if result.status in (status.TUPLES_OK, status.COMMAND_OK):
                rows = self._decode(result, statement.gives)
            else:
                refusal = refusal or self._refusal(result)
        if refusal is not None:
            raise refusal
        if rows is None:
            raise EOFError
        return rows

    def _flush(self) -> Waiting:
        while self._pgconn.flush():
            if (yield READ | WRITE) & READ:
                self._pgconn.consume_input()

    def _result(self) -> Waiting:
        """The next result, or None where those of a statement end."""
        while self._pgconn.is_busy():
            yield READ
            self._pgconn.consume_input()
        return self._pgconn.get_result()

    def _run_together(self, queries: tuple[Query, ...]) -> Waiting:
        """Send all statements, then read; after a refusal the server skips the rest."""
        if not self._can_pipeline():
            answers = []
            for query in queries:
                answers.append((yield from self._run(query)))  # noqa: PERF401 - it yields
            return answers
        self._pgconn.enter_pipeline_mode()
        for query in queries:
            self._send_unnamed(query.statement, _parameters(query))
        self._pgconn.pipeline_sync()
        rows = yield from self._rows_together(queries)
        self._pgconn.exit_pipeline_mode()
        return rows

    def _rows_together(self, queries: tuple[Query, ...]) -> Waiting:
        """As `_rows`, for each statement in turn, and then the end of the pipeline, at which an
        implicit transaction is committed."""
        status = self._pq.ExecStatus
        yield from self._flush()
        refusal: RefusalError | None = None
        rows: list[list[Row]] = []
        try:
            for query in queries:
                answer: list[Row] | None = None
                while (result := (yield from self._result())) is not None:
                    if result.status in (status.TUPLES_OK, status.COMMAND_OK):
                        answer = self._decode(result, query.statement.gives)
                    elif result.status != status.PIPELINE_ABORTED:
                        refusal = refusal or self._refusal(result)
                if answer is None and refusal is None:
                    raise EOFError
                rows.append(answer or [])
            while (result := (yield from self._result())) is None or (
                result.status != status.PIPELINE_SYNC
            ):
                if result is None:
                    raise EOFError
                refusal = refusal or self._refusal(result)
        except EOFError:
            # The reason for the end of a session is more useful than the fact.
            raise refusal or EOFError from None
        if refusal is not None:
            self._pgconn.exit_pipeline_mode()
            raise refusal
        return rows

    def _refusal(self, result: Any) -> RefusalError:
        state = result.error_field(self._pq.DiagnosticField.SQLSTATE)
        if state is None:
            # Made by libpq itself: the connection is gone.
            raise EOFError
        text = result.error_field(self._pq.DiagnosticField.MESSAGE_PRIMARY) or b""
        return RefusalError(state.decode(), text.decode(errors="replace"))

    def _decode(self, result: Any, kinds: tuple[str, ...]) -> list[Row]:
        if not kinds or not result.ntuples:
            return []
        decoders = [_DECODE[kind] for kind in kinds]
        return [
            tuple(
                None if (raw := result.get_value(row, column)) is None else decode(raw)
                for column, decode in enumerate(decoders)
            )
            for row in range(result.ntuples)
        ]


_NOTHING = Statement("")
"""Stands for a statement that gives no rows."""


def _parameters(query: Query) -> list[bytes]:
    return list(map(_encode, query.statement.takes, query.values))
