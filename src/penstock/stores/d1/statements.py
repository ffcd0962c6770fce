"""The SQL, and what its results say. Values are always bound; the table's name is validated.

`keep_until` is on the database's own clock, so that neither a caller's clock nor the way there
matters to what `sweep` removes.
"""

from __future__ import annotations

from typing import Any

from ...core.validation import reject
from ..cas import Conflict, Drop, Held, Read, Request, Swap

__all__ = ["SCHEMA", "Statement", "Statements"]

SCHEMA = 1

Statement = dict[str, Any]

_NOW = "CAST(unixepoch('subsec') * 1000 AS INTEGER)"
_LATER = f"{_NOW} + CAST(? AS INTEGER)"


class Statements:
    """All statements on one table."""

    def __init__(self, table: str) -> None:
        self.table = table
        self.versions: str = f"{table}_schema"

    def of(self, request: Request) -> list[Statement]:
        """One statement; after a conditional one, another that shows what stood in its way."""
        look = _statement(f"SELECT record, version FROM {self.table} WHERE key = ?", request.key)
        if isinstance(request, Read):
            return [look]
        if isinstance(request, Drop) and request.expected is None:
            return [self._write(request)]
        return [self._write(request), look]

    def _write(self, request: Swap | Drop) -> Statement:
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

    def answer(self, request: Request, results: list[Any]) -> Any:
        """What the flow is told: exactly one changed row is a commit."""
        try:
            if isinstance(request, Read):
                return _held(results[0])
            if len(results) == 1 or results[0]["meta"]["changes"] == 1:
                return ""
            return Conflict(_held(results[1]), known=True)
        except (KeyError, IndexError, TypeError):
            reject(f"D1 answered in a form that this store does not know: {str(results)[:200]}")

    def look(self) -> list[Statement]:
        """Which of our two tables are there."""
        sql = "SELECT name FROM sqlite_master WHERE type = 'table' AND name IN (?, ?)"
        return [_statement(sql, self.table, self.versions)]

    def read_schema(self) -> list[Statement]:
        return [_statement(f"SELECT version FROM {self.versions}")]

    def create(self) -> list[Statement]:
        """One batch, hence one transaction; harmless to whoever does the same at once."""
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
            _statement(f"INSERT INTO {self.versions} VALUES ({SCHEMA}) ON CONFLICT DO NOTHING"),
        ]

    def sweep(self, now: int | None, most: int) -> list[Statement]:
        until = _NOW if now is None else "CAST(? AS INTEGER)"
        sql = (
            f"DELETE FROM {self.table} WHERE key IN "
            f"(SELECT key FROM {self.table} WHERE keep_until <= {until} LIMIT {most})"
        )
        return [_statement(sql, *(() if now is None else (now,)))]


def _held(result: Any) -> Held | None:
    rows = result["results"]
    return Held(rows[0]["record"], rows[0]["version"]) if rows else None


def _statement(sql: str, *params: object) -> Statement:
    # The API's parameters are texts; where a number is meant, the statement says so.
    return {"sql": sql, "params": list(map(str, params))}
