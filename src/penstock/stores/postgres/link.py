"""A connection of libpq, spoken to without blocking, through psycopg's `pq` module.

The procedures are generators that yield what to wait for, so that a thread can serve them with
`poll` and an event loop with its readers. The connection of a psycopg pool is spoken to in the
same way, below psycopg's cursors; statements run outside of a transaction of its owner.

Values travel in binary, as parameters, never as part of the SQL.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from importlib import import_module
from typing import Any

from .faults import UNPREPARED
from .requests import Ask, LinkError, RefusalError, Request, Row, Statement, Together

__all__ = ["READ", "WRITE", "Link", "connecting", "find_fault"]

READ, WRITE = 1, 2

Waiting = Generator[int, int, Any]
"""Yields READ, WRITE or both, is sent which of them is ready."""

_PIPELINES = 140_000
"""The version of libpq from which on statements can be sent without waiting in between."""

_OIDS = {"bytea": 17, "int8": 20, "text": 25, "bytea[]": 1001, "text[]": 1009, "int8[]": 1016}
_ENCODE: dict[str, Callable[[Any], bytes]] = {
    "bytea": bytes,
    "int8": lambda value: int(value).to_bytes(8, "big", signed=True),
    "text": lambda value: str(value).encode(),
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
    """What libpq finds wrong with an address before it connects: a parameter it does not know."""
    try:
        import_module("psycopg.pq").Conninfo.parse(conninfo.encode())
    except import_module("psycopg").Error as error:
        return " ".join(str(error).split())
    return None


def connecting(conninfo: str, where: str) -> Generator[tuple[int, int], int, Link]:
    """Connect. Yields (socket, what to wait for): the socket may change on the way."""
    pq: Any = import_module("psycopg.pq")
    pgconn = pq.PGconn.connect_start(conninfo.encode())
    while True:
        if pgconn.status == pq.ConnStatus.BAD:
            raise _cannot_connect(pgconn, where)
        status = pgconn.connect_poll()
        if status == pq.PollingStatus.OK:
            pgconn.nonblocking = 1
            return Link(pgconn, where, prepares=True)
        if status == pq.PollingStatus.FAILED:
            raise _cannot_connect(pgconn, where)
        yield pgconn.socket, READ if status == pq.PollingStatus.READING else WRITE


def _cannot_connect(pgconn: Any, where: str) -> LinkError:
    text = pgconn.get_error_message()
    pgconn.finish()
    return LinkError(f"cannot connect to {where}: {' '.join(text.split())}", may_have_run=False)


def _parameters(ask: Ask) -> list[bytes]:
    kinds = ask.statement.takes
    return [_encode(kind, value) for kind, value in zip(kinds, ask.values, strict=True)]


class Link:
    """One connection. `prepares`: nobody else uses it, so statements can stay prepared."""

    def __init__(self, pgconn: Any, where: str, *, prepares: bool) -> None:
        self._pgconn = pgconn
        self._pq: Any = import_module("psycopg.pq")
        self._error: type[Exception] = import_module("psycopg").Error
        self._where = where
        self._prepares = prepares
        self._prepared: set[str] = set()
        self._writing = False

    @property
    def socket(self) -> int:
        number: int = self._pgconn.socket
        return number

    @property
    def is_idle(self) -> bool:
        """Open, with no statement and no transaction under way."""
        idle: bool = self._pgconn.transaction_status == self._pq.TransactionStatus.IDLE
        return idle

    def hears(self) -> bool:
        """Read what came unasked; False if it was the end of the connection."""
        try:
            self._pgconn.consume_input()
        except self._error:
            return False
        return self.is_idle

    def close(self) -> None:
        self._pgconn.finish()

    def execute(self, request: Request) -> Waiting:
        """Serve a request; returns its rows."""
        self._writing = request.writes
        try:
            if isinstance(request, Together):
                return (yield from self._run_together(request.asks))
            return (yield from self._run(request))
        except self._error as error:
            text = " ".join(str(error).split())
            raise LinkError(
                f"the connection to {self._where} failed: {text}", may_have_run=request.writes
            ) from error

    def _run(self, ask: Ask) -> Waiting:
        statement, parameters = ask.statement, _parameters(ask)
        if not (self._prepares and statement.name):
            return (yield from self._run_unnamed(statement, parameters))
        return (yield from self._run_prepared(statement, parameters))

    def _run_together(self, asks: tuple[Ask, ...]) -> Waiting:
        """Send all, then read; the server passes over what comes after a refusal."""
        if self._pq.version() < _PIPELINES:
            answers = []
            for ask in asks:
                answers.append((yield from self._run(ask)))  # noqa: PERF401 - it yields
            return answers
        self._pgconn.enter_pipeline_mode()
        for ask in asks:
            self._send_unnamed(ask.statement, _parameters(ask))
        self._pgconn.pipeline_sync()
        yield from self._flush()
        return (yield from self._read_together(asks))

    def _read_together(self, asks: tuple[Ask, ...]) -> Waiting:
        rows: list[list[Row]] = [[] for _ in asks]
        refusal: RefusalError | None = None
        place = 0
        while True:
            result = yield from self._result()
            if result is None:
                place += 1
                if place > len(asks):
                    raise self._ended()
                continue
            if result.status == self._pq.ExecStatus.PIPELINE_SYNC:
                break
            refusal = refusal or self._refusal(result)
            rows[place] += self._decode(result, asks[place].statement.gives)
        self._pgconn.exit_pipeline_mode()
        if refusal is not None:
            raise refusal
        return rows

    def _run_unnamed(self, statement: Statement, parameters: list[bytes]) -> Waiting:
        self._send_unnamed(statement, parameters)
        return (yield from self._rows(statement))

    def _send_unnamed(self, statement: Statement, parameters: list[bytes]) -> None:
        oids = [_OIDS[kind] for kind in statement.takes]
        self._pgconn.send_query_params(
            statement.sql.encode(), parameters, oids, [1] * len(parameters), 1
        )

    def _run_prepared(self, statement: Statement, parameters: list[bytes]) -> Waiting:
        name = statement.name.encode()
        if statement.name not in self._prepared:
            oids = [_OIDS[kind] for kind in statement.takes]
            self._pgconn.send_prepare(name, statement.sql.encode(), oids)
            yield from self._rows(statement)
            self._prepared.add(statement.name)
        try:
            self._pgconn.send_query_prepared(name, parameters, [1] * len(parameters), 1)
            return (yield from self._rows(statement))
        except RefusalError as refusal:
            if refusal.state not in UNPREPARED:
                raise
        self._prepares = False
        return (yield from self._run_unnamed(statement, parameters))

    def _rows(self, statement: Statement) -> Waiting:
        """Send what is left to send, then read results until there are no more."""
        yield from self._flush()
        rows: list[Row] = []
        refusal: RefusalError | None = None
        while (result := (yield from self._result())) is not None:
            refusal = refusal or self._refusal(result)
            rows += self._decode(result, statement.gives)
        if refusal is not None:
            raise refusal
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

    def _refusal(self, result: Any) -> RefusalError | None:
        if result.status != self._pq.ExecStatus.FATAL_ERROR:
            return None
        state = result.error_field(self._pq.DiagnosticField.SQLSTATE)
        if state is None:
            # Made by libpq itself: the connection is gone.
            raise self._ended()
        text = result.error_field(self._pq.DiagnosticField.MESSAGE_PRIMARY) or b""
        return RefusalError(state.decode(), text.decode(errors="replace"))

    def _ended(self) -> LinkError:
        text = f"the connection to {self._where} ended before the reply"
        return LinkError(text, may_have_run=self._writing)

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
