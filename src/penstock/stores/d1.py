"""`D1Store`: Cloudflare D1, SQLite over a REST API.

Values are always bound as parameters. The name of the table, the only text put into SQL, is
validated.

`keep_until` is on the database's own clock, so that `sweep` depends neither on a caller's clock nor
on network delays.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from itertools import islice
from typing import Any

from ..core._errors import ConfigInvalidError, StoreUnavailableError
from ..core._flow import Flow, adrive, drive
from ..core._store import from_its_url
from ..core._validation import reject, require_instant
from .cas import (
    AnyRequest,
    Check,
    Conflict,
    ConnectionFailedError,
    Drop,
    Held,
    Read,
    ReadAll,
    Swap,
    SwapAll,
)
from .cas._requests import require_name
from .rest import HttpCall, RestReply, RestStore
from .rest._client import (
    CLOUDFLARE_API,
    CLOUDFLARE_TOKEN_ENV,
    CloudflareRefused,
    read_url,
    require_id,
    result_of,
)

__all__ = ["D1Store"]


_SCHEMA = 1

_Statement = dict[str, Any]

_NOW = "CAST(unixepoch('subsec') * 1000 AS INTEGER)"
_LATER = f"{_NOW} + CAST(? AS INTEGER)"
_ORDER = (Swap, Drop, Check)


class _Statements:
    """All statements on one table."""

    def __init__(self, table: str) -> None:
        self.table = table
        self.versions: str = f"{table}_schema"

    def of(self, request: AnyRequest) -> list[_Statement]:
        """One statement; after a conditional one, another that shows what stood in its way."""
        if isinstance(request, ReadAll):
            return [self._look_at_all(request)]
        if isinstance(request, SwapAll):
            return self._write_all(request)
        look = _statement(f"SELECT record, version FROM {self.table} WHERE key = ?", request.key)
        if isinstance(request, Read):
            return [look]
        if isinstance(request, Drop) and request.expected is None:
            return [self._write(request)]
        return [self._write(request), look]

    def _write(self, request: Swap | Drop) -> _Statement:
        if isinstance(request, Drop):
            sql = f"DELETE FROM {self.table} WHERE key = ?"
            if request.expected is None:
                return _statement(sql, request.key)
            return _statement(f"{sql} AND version = ?", request.key, request.expected.version)
        values = (request.record, request.version, request.keep_ms, request.key)
        if request.expected is None:
            sql = (
                f"INSERT INTO {self.table} (record, version, keep_until, key) "
                f"VALUES (?, ?, {_LATER}, ?) ON CONFLICT (key) DO NOTHING"
            )
            return _statement(sql, *values)
        sql = (
            f"UPDATE {self.table} SET record = ?, version = ?, keep_until = {_LATER} "
            "WHERE key = ? AND version = ?"
        )
        return _statement(sql, *values, request.expected.version)

    def _look_at_all(self, request: ReadAll) -> _Statement:
        places = ", ".join("?" * len(request.keys))
        sql = f"SELECT key, record, version FROM {self.table} WHERE key IN ({places})"
        return _statement(sql, *request.keys)

    def _write_all(self, request: SwapAll) -> list[_Statement]:
        """A batch is one transaction, and nothing in it can end it but an error. So the first
        statement has all of the conditions, and leaves a version that is in the row only if they
        held; the others ask for that one. Where the first is to delete its row, it marks it, and
        the last one deletes it."""
        first, *others = sorted(request.writes, key=lambda write: _ORDER.index(type(write)))
        mark = first.version if isinstance(first, Swap) else secrets.token_urlsafe(12)
        conditions = [self._still(write.key, write.expected) for write in request.writes]
        is_marked = self._has(first.key, mark)
        if isinstance(first, Swap):
            statements = [self._put(first, conditions)]
        else:
            sql = f"UPDATE {self.table} SET version = ? WHERE key = ?"
            statements = [_on_condition(sql, (mark, first.key), conditions)]
        for write in others:
            if isinstance(write, Swap):
                statements.append(self._put(write, [is_marked]))
            elif isinstance(write, Drop):
                sql = f"DELETE FROM {self.table} WHERE key = ?"
                statements.append(_on_condition(sql, (write.key,), [is_marked]))
        if isinstance(first, Drop):
            sql = f"DELETE FROM {self.table} WHERE key = ? AND version = ?"
            statements.append(_statement(sql, first.key, mark))
        return statements

    def _put(self, write: Swap, conditions: list[_Condition]) -> _Statement:
        values = (write.record, write.version, write.keep_ms, write.key)
        if write.expected is None:
            sql = (
                f"INSERT INTO {self.table} (record, version, keep_until, key) "
                f"SELECT ?, ?, {_LATER}, ? WHERE true"
            )
        else:
            sql = (
                f"UPDATE {self.table} SET record = ?, version = ?, keep_until = {_LATER} "
                "WHERE key = ?"
            )
        return _on_condition(sql, values, conditions)

    def _still(self, key: str, expected: Held | None) -> _Condition:
        if expected is None:
            return f"NOT EXISTS (SELECT 1 FROM {self.table} WHERE key = ?)", (key,)
        return self._has(key, expected.version)

    def _has(self, key: str, version: str) -> _Condition:
        return f"EXISTS (SELECT 1 FROM {self.table} WHERE key = ? AND version = ?)", (key, version)

    def answer(self, request: AnyRequest, results: list[Any]) -> Any:
        """The answer to the flow: exactly one changed row is a commit."""
        if isinstance(request, ReadAll):
            rows = {row["key"]: Held(row["record"], row["version"]) for row in _rows(results)}
            return [rows.get(key) for key in request.keys]
        if isinstance(request, SwapAll):
            return "" if results[0]["meta"]["changes"] == 1 else Conflict()
        if isinstance(request, Read):
            return _held(results[0])
        if len(results) == 1 or results[0]["meta"]["changes"] == 1:
            return ""
        return Conflict(_held(results[1]), known=True)

    def look(self) -> list[_Statement]:
        """Which of our two tables are there."""
        sql = "SELECT name FROM sqlite_master WHERE type = 'table' AND name IN (?, ?)"
        return [_statement(sql, self.table, self.versions)]

    def read_schema(self) -> list[_Statement]:
        return [_statement(f"SELECT version FROM {self.versions}")]

    def create(self) -> list[_Statement]:
        """One batch, so one transaction; harmless if several processes do it at once."""
        return [
            _statement(
                f"CREATE TABLE IF NOT EXISTS {self.table} (key TEXT PRIMARY KEY NOT NULL, "
                "record TEXT NOT NULL, version TEXT NOT NULL, keep_until INTEGER NOT NULL) "
                "WITHOUT ROWID"
            ),
            _statement(
                f"CREATE INDEX IF NOT EXISTS {self.table}_keep_until ON {self.table} (keep_until)"
            ),
            _statement(
                f"CREATE TABLE IF NOT EXISTS {self.versions} (version INTEGER PRIMARY KEY NOT NULL)"
            ),
            _statement(f"INSERT INTO {self.versions} VALUES ({_SCHEMA}) ON CONFLICT DO NOTHING"),
        ]

    def sweep(self, now: int | None, most: int) -> list[_Statement]:
        until = _NOW if now is None else "CAST(? AS INTEGER)"
        sql = (
            f"DELETE FROM {self.table} WHERE key IN "
            f"(SELECT key FROM {self.table} WHERE keep_until <= {until} LIMIT {most})"
        )
        return [_statement(sql, *(() if now is None else (now,)))]


_Condition = tuple[str, tuple[str, ...]]
"""SQL, and what is bound in it."""


def _on_condition(sql: str, params: tuple[object, ...], conditions: list[_Condition]) -> _Statement:
    tests = "".join(f" AND {test}" for test, _ in conditions)
    return _statement(f"{sql}{tests}", *params, *(one for _, bound in conditions for one in bound))


def _is_result(result: Any) -> bool:
    """Whether it has the form of the result of one statement."""
    if not isinstance(result, dict):
        return False
    rows, meta = result.get("results"), result.get("meta")
    return (
        isinstance(rows, list)
        and all(isinstance(row, dict) for row in rows)
        and isinstance(meta, dict)
        and type(meta.get("changes")) is int
    )


def _rows(results: list[Any]) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = results[0]["results"]
    return rows


def _held(result: Any) -> Held | None:
    rows = result["results"]
    return Held(rows[0]["record"], rows[0]["version"]) if rows else None


def _statement(sql: str, *params: object) -> _Statement:
    # Parameters of the API are texts; the statement casts those that are numbers.
    return {"sql": sql, "params": list(map(str, params))}


_SLICE = 1_000
_ADMIN_S = 30.0

_SqlFlow = Flow[list[_Statement], Any]


class D1Store(RestStore):
    """Keeps states in a table of a D1 database: exact, since a D1 database has one writer.

    `account` and `database` are ids as the dashboard shows them, `token` is an API token that may
    edit D1. `init()` creates the table, once. A check is an UPDATE (or an INSERT, the first time)
    that names the version it was decided on: one changed row is the commit. Several limits are one
    batch, which is one transaction.

    Each of them is a request to Cloudflare's API, which has a rate limit of its own; inside a
    Worker, use a binding instead.
    """

    # A row may have 2 MB: the key and the version are in it too.
    max_record_bytes = 1_900_000
    # A statement takes 100 values: those of a row, and two for each condition.
    most_keys_at_once = 40

    def __init__(
        self,
        account: str,
        database: str,
        *,
        token: str,
        table: str = "penstock",
        base_url: str = CLOUDFLARE_API,
        timeout_ms: int = 2_000,
    ) -> None:
        super().__init__(base_url, token, timeout_ms)
        account = require_id("account", account)
        self.database: str = require_id("database", database)
        self._path = f"/accounts/{account}/d1/database/{self.database}/query"
        self._statements = _Statements(require_name("table", table, r"[A-Za-z_][A-Za-z0-9_]{0,47}"))

    @classmethod
    @from_its_url
    def from_url(cls, url: str, **options: Any) -> D1Store:
        """`d1://account/database`, with `?token_env=`, `table=`, `base_url=`, `timeout_ms=`."""
        settings = read_url(url, CLOUDFLARE_TOKEN_ENV, options, "table", "base_url")
        account, _, database = settings.place.partition("/")
        if not database:
            reject("a d1:// URL names the account and the database: d1://account/database")
        return cls(account, database, **settings.options)

    def init(self) -> None:
        """Create the table and its index. Does nothing if they exist, and rejects a table of
        another program or of an unknown version."""
        self._administer(self._init())

    async def ainit(self) -> None:
        """The awaitable twin of `init`."""
        await self._aadminister(self._init())

    def sweep(self, now: int | None = None) -> int:
        """Delete keys that expired long enough ago to be safe with any clock, by the database's
        clock or at `now`. Returns how many. Works in slices of 1,000."""
        return int(self._administer(self._sweep(now)))

    async def asweep(self, now: int | None = None) -> int:
        """The awaitable twin of `sweep`."""
        return int(await self._aadminister(self._sweep(now)))

    def _calls(self, requests: Sequence[AnyRequest]) -> list[HttpCall]:
        return [self._batch([one for request in requests for one in self._statements.of(request)])]

    def _answers(self, requests: Sequence[AnyRequest], replies: Sequence[RestReply]) -> list[Any]:
        try:
            results = iter(self._results(replies[0]))
            return [
                self._statements.answer(
                    request, [*islice(results, len(self._statements.of(request)))]
                )
                for request in requests
            ]
        except (ConfigInvalidError, ConnectionFailedError, StoreUnavailableError) as error:
            return [error] * len(requests)

    def _batch(self, statements: list[_Statement]) -> HttpCall:
        body = statements[0] if len(statements) == 1 else {"batch": statements}
        return HttpCall("POST", self._path, body)

    def _results(self, reply: RestReply) -> list[Any]:
        """One result per statement, or an error translated."""
        try:
            results: list[Any] = result_of(reply, f"D1 database {self.database}")
        except CloudflareRefused as no:
            if "no such table" in str(no):
                raise ConfigInvalidError(
                    f"the D1 database has no table {self._statements.table!r}; create it once "
                    "with D1Store.init()"
                ) from None
            raise no.error from None
        if not isinstance(results, list) or not all(map(_is_result, results)):
            text = f"D1 database {self.database} sent a malformed reply: {reply.text[:200]!r}"
            raise ConnectionFailedError(text, may_have_run=True)
        return results

    def _init(self) -> _SqlFlow:
        statements = self._statements
        there = {row["name"] for row in (yield statements.look())[0]["results"]}
        if not there:
            yield statements.create()
            there = {statements.table, statements.versions}
        if there != {statements.table, statements.versions}:
            raise self._not_ours("it was not created by this store")
        rows = (yield statements.read_schema())[0]["results"]
        if [row.get("version") for row in rows] != [_SCHEMA]:
            found = ", ".join(str(row.get("version")) for row in rows) or "none"
            raise self._not_ours(f"its schema version is {found}, not {_SCHEMA}")

    def _not_ours(self, reason: str) -> ConfigInvalidError:
        return ConfigInvalidError(
            f"the table {self._statements.table!r} cannot be used: {reason}; choose another name "
            "with table="
        )

    def _sweep(self, now: int | None) -> _SqlFlow:
        if now is not None:
            require_instant(now)
        total = 0
        while True:
            dropped = (yield self._statements.sweep(now, _SLICE))[0]["meta"]["changes"]
            total += dropped
            if dropped < _SLICE:
                return total

    def _administer(self, flow: _SqlFlow) -> Any:
        def serve(statements: list[_Statement]) -> list[Any]:
            deadline = time.monotonic() + _ADMIN_S
            return self._done(self._client.send([self._batch(statements)], deadline)[0])

        return drive(flow, serve)

    async def _aadminister(self, flow: _SqlFlow) -> Any:
        async def serve(statements: list[_Statement]) -> list[Any]:
            deadline = time.monotonic() + _ADMIN_S
            return self._done((await self._client.asend([self._batch(statements)], deadline))[0])

        return await adrive(flow, serve)

    def _done(self, reply: Any) -> list[Any]:
        try:
            if isinstance(reply, BaseException):
                raise reply
            return self._results(reply)
        except ConnectionFailedError as error:
            raise StoreUnavailableError(str(error)) from None
