"""The table, its functions, and the statements that use them.

Keys are bytes, since text in PostgreSQL cannot contain a NUL. A key that is too long for an index
is replaced by its digest, after a byte that never occurs in UTF-8. Names of tables and schemas are
the only text put into SQL: they are validated as plain identifiers, and quoted.

`swap` is a compare-and-set for many keys at once. Per key it gets the record that the caller worked
from and the one to write; it writes only if the first is still there, and returns the current
record of every other key. `INSERT ... ON CONFLICT DO NOTHING`, and an update on condition of the
record, are atomic in PostgreSQL, so the first write of a key is as safe as any other. The function
knows nothing about limits. Callers pass keys in order, so there is no deadlock.

`swap_all` is the same for keys that belong together. Those of one group are written if all of them
hold what the caller worked from, otherwise none is, and all are returned. So it locks every key
that it may write, in their order, before it writes the first: a row by its lock, an absent key by
inserting a row, which is removed again if needed. Keys of group 0 are only compared, all at one
instant at which the others are locked. Tables that were made before this function existed lack it
until the next `init`, and are served without it, by transactions (see `_flows.py`).

`claim` locks keys in the same way for the rest of a transaction; an absent one gets an empty
record.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any

from ...core._validation import reject
from ._requests import PostgresFlow, Query, Statement, missing_table, not_ours

__all__ = ["SHARE", "Schema", "begin_bounded", "bound", "encode_key"]

VERSION = 1
_MARK = "penstock store, version {}"
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,49}\Z")
# An index entry has room for about 2,700 bytes.
_LONGEST_KEY = 1_024

_TABLE = """
CREATE TABLE {table} (
    key bytea PRIMARY KEY,
    record text NOT NULL,
    keep_until bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05)
"""
_FUNCTION = """
CREATE FUNCTION {swap}(keys bytea[], expected text[], records text[], keeps bigint[])
RETURNS TABLE (place int, held text) LANGUAGE plpgsql VOLATILE AS $body$
#variable_conflict use_column
DECLARE
    matched boolean;
BEGIN
    FOR at IN 1 .. cardinality(keys) LOOP
        IF keeps[at] < 0 AND expected[at] IS NOT NULL THEN
            DELETE FROM {table} AS t WHERE t.key = keys[at] AND t.record = expected[at];
            matched := FOUND;
        ELSIF keeps[at] <= 0 THEN
            SELECT t.record INTO held FROM {table} AS t WHERE t.key = keys[at];
            matched := held IS NOT DISTINCT FROM expected[at];
        ELSIF expected[at] IS NULL THEN
            INSERT INTO {table} AS t VALUES (keys[at], records[at], keeps[at])
                ON CONFLICT (key) DO NOTHING;
            matched := FOUND;
        ELSE
            UPDATE {table} AS t SET record = records[at], keep_until = keeps[at]
                WHERE t.key = keys[at] AND t.record = expected[at];
            matched := FOUND;
        END IF;
        IF NOT matched THEN
            place := at;
            SELECT t.record INTO held FROM {table} AS t WHERE t.key = keys[at];
            RETURN NEXT;
        END IF;
    END LOOP;
END
$body$
"""
_GROUPS_FUNCTION = """
CREATE FUNCTION {swap_all}(
    keys bytea[], expected text[], records text[], keeps bigint[], groups bigint[]
)
RETURNS TABLE (place int, held text) LANGUAGE plpgsql VOLATILE AS $body$
#variable_conflict use_column
DECLARE
    present text[];
    is_added boolean[];
    failed bigint[] := '{{}}';
BEGIN
    FOR at IN 1 .. cardinality(keys) LOOP
        is_added[at] := false;
        CONTINUE WHEN groups[at] = 0;
        IF expected[at] IS NULL THEN
            INSERT INTO {table} AS t
                VALUES (keys[at], coalesce(records[at], ''), greatest(keeps[at], 0))
                ON CONFLICT (key) DO NOTHING;
            is_added[at] := FOUND;
            CONTINUE WHEN FOUND;
            failed := failed || groups[at];
        END IF;
        SELECT t.record INTO held FROM {table} AS t WHERE t.key = keys[at] FOR UPDATE;
        present[at] := held;
        IF held IS DISTINCT FROM expected[at] THEN
            failed := failed || groups[at];
        END IF;
    END LOOP;
    FOR at IN 1 .. cardinality(keys) LOOP
        CONTINUE WHEN groups[at] = 0;
        IF groups[at] = ANY (failed) THEN
            place := at;
            held := present[at];
            RETURN NEXT;
            CONTINUE WHEN NOT is_added[at];
            DELETE FROM {table} AS t WHERE t.key = keys[at];
        ELSIF keeps[at] < 0 OR (keeps[at] = 0 AND is_added[at]) THEN
            DELETE FROM {table} AS t WHERE t.key = keys[at];
        ELSIF keeps[at] > 0 AND NOT is_added[at] THEN
            UPDATE {table} AS t SET record = records[at], keep_until = keeps[at]
                WHERE t.key = keys[at];
        END IF;
    END LOOP;
    IF 0 = ANY (groups) THEN
        RETURN QUERY SELECT asked.at::int, t.record
            FROM unnest(keys, expected, groups) WITH ORDINALITY AS asked (key, guess, part, at)
            LEFT JOIN {table} AS t ON t.key = asked.key
            WHERE asked.part = 0 AND t.record IS DISTINCT FROM asked.guess;
    END IF;
END
$body$
"""
# In slices along the key, without rows that are locked: a sweep never waits.
_SWEEP = """
WITH slice AS MATERIALIZED (
    SELECT key FROM {table} WHERE key > $1 ORDER BY key LIMIT $2
), doomed AS MATERIALIZED (
    SELECT t.key FROM {table} AS t JOIN slice USING (key)
    WHERE t.keep_until <= $3 FOR UPDATE OF t SKIP LOCKED
), gone AS (
    DELETE FROM {table} AS t USING doomed WHERE t.key = doomed.key RETURNING 1
)
SELECT (SELECT key FROM slice ORDER BY key DESC LIMIT 1), (SELECT count(*) FROM gone)::int4
"""
_NOW_MS = "floor(extract(epoch FROM clock_timestamp()) * 1000)::int8"
SHARE = 0.8
"""The share of a caller's time that the server may take, so that its refusal arrives before the
deadline."""
_SETTINGS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")


def bound(ms: int) -> Query:
    """Set the server's timeout for the rest of the transaction."""
    return Query(_BOUND, (f"{ms}ms",))


def begin_bounded(ms: int) -> str:
    """The same as a script, for a transaction that begins with it."""
    return f"BEGIN; SET LOCAL statement_timeout = {ms:d}; SET LOCAL lock_timeout = {ms:d}"


def encode_key(key: str) -> bytes:
    """A key as the table holds it."""
    raw = key.encode()
    return raw if len(raw) <= _LONGEST_KEY else b"\xff" + sha256(raw).digest()


class Schema:
    """The statements for one table."""

    def __init__(self, schema: str, table: str) -> None:
        self._schema = _require_name("schema", schema)
        self.table: str = f'"{schema}"."{_require_name("table", table)}"'
        self.has_swap_all: bool = True
        swap_function = f'"{schema}"."{table}_swap"'
        swap_all_function = f'"{schema}"."{table}_swap_all"'
        names = {"table": self.table, "swap": swap_function, "swap_all": swap_all_function}
        self._functions: dict[str, str] = {
            f"{swap_function}(bytea[],text[],text[],bigint[])": _FUNCTION.format(**names),
            f"{swap_all_function}(bytea[],text[],text[],bigint[],bigint[])": (
                _GROUPS_FUNCTION.format(**names)
            ),
        }
        # A prepared statement has a name of its own per table, as a connection may serve several.
        label = f"penstock_{sha256(self.table.encode()).hexdigest()[:12]}"
        self.swap: Statement = Statement(
            f"SELECT place, held FROM {swap_function}($1, $2, $3, $4)",
            ("bytea[]", "text[]", "text[]", "int8[]"),
            ("int4", "text"),
            f"{label}_swap",
        )
        self.swap_all: Statement = Statement(
            f"SELECT place, held FROM {swap_all_function}($1, $2, $3, $4, $5)",
            ("bytea[]", "text[]", "text[]", "int8[]", "int8[]"),
            ("int4", "text"),
            f"{label}_swap_all",
        )
        self.look: Statement = Statement(
            f"SELECT asked.place::int4, t.record, {_NOW_MS} FROM unnest($1::bytea[]) "
            f"WITH ORDINALITY AS asked (key, place) LEFT JOIN {self.table} AS t USING (key)",
            ("bytea[]",),
            ("int4", "text", "int8"),
            f"{label}_look",
        )
        self.hold: Statement = Statement(
            f"SELECT key, record FROM {self.table} WHERE key = ANY ($1::bytea[]) "
            "ORDER BY key FOR UPDATE",
            ("bytea[]",),
            ("bytea", "text"),
        )
        # The condition is never met: an existing row is locked, and not written.
        self.claim: Statement = Statement(
            f"INSERT INTO {self.table} AS t SELECT key, '', 0 FROM unnest($1::bytea[]) AS key "
            "ORDER BY key ON CONFLICT (key) DO UPDATE SET record = t.record WHERE false",
            ("bytea[]",),
        )
        self.read: Statement = Statement(
            f"SELECT key, record FROM {self.table} WHERE key = ANY ($1::bytea[])",
            ("bytea[]",),
            ("bytea", "text"),
        )
        self.sweep: Statement = Statement(
            _SWEEP.format(table=self.table), ("bytea", "int8", "int8"), ("bytea", "int4")
        )
        self.now: Statement = Statement(f"SELECT {_NOW_MS}", (), ("int8",))

    def set_up(self, timeout_ms: int | None) -> PostgresFlow:
        """For a new connection: set the server's timeouts, and inspect the table."""
        if timeout_ms is not None:
            yield Query(_SET, (f"{max(1, int(timeout_ms * SHARE))}ms",))
        found, mark = yield from self._inspect()
        if not found:
            raise missing_table(self.table)
        if mark != _MARK.format(VERSION):
            raise not_ours(self.table, mark)
        # If it is missing, the first call that needs it reports that.
        self.has_swap_all = True

    def init(self) -> PostgresFlow:
        """Create what is missing, in one transaction under a lock. Rejects a table of another
        program."""
        yield Query(Statement("BEGIN"))
        yield Query(_LOCK, ([_INIT_LOCK],))
        [[schema]] = yield Query(_NAMESPACE, (f'"{self._schema}"',))
        if schema is None:
            yield Query(Statement(f'CREATE SCHEMA "{self._schema}"'))
        found, mark = yield from self._inspect()
        if not found:
            yield Query(Statement(_TABLE.format(table=self.table)))
            yield Query(Statement(f"COMMENT ON TABLE {self.table} IS '{_MARK.format(VERSION)}'"))
        elif mark != _MARK.format(VERSION):
            raise not_ours(self.table, mark)
        for signature, sql in self._functions.items():
            [[function]] = yield Query(_SIGNATURE, (signature,))
            if function is None:
                yield Query(Statement(sql))
        yield Query(Statement("COMMIT"))
        self.has_swap_all = True

    def lock(self, hashes: list[int]) -> Query:
        """Take advisory locks until the end of the transaction."""
        return Query(_LOCK, (sorted(hashes),))

    def lock_of(self, key: bytes) -> int:
        """The advisory lock of a key: one per table and key, but for collisions, which only
        make callers wait for one another."""
        digest = sha256(self.table.encode() + b"\0" + key).digest()
        return int.from_bytes(digest[:8], "big", signed=True)

    def _inspect(self) -> Any:
        [[found, mark]] = yield Query(_INSPECT, (self.table,))
        return found is not None, mark


_INIT_LOCK = int.from_bytes(sha256(b"penstock store init").digest()[:8], "big", signed=True)
_LOCK = Statement(
    "SELECT count(pg_advisory_xact_lock(id))::int4 FROM "
    "(SELECT id FROM unnest($1::int8[]) AS id ORDER BY id OFFSET 0) AS ids",
    ("int8[]",),
    ("int4",),
)
_SET = Statement(
    "SELECT "
    + ", ".join(f"set_config('{name}', $1, false)" for name in _SETTINGS)
    + ", set_config('default_transaction_isolation', 'read committed', false)",
    ("text",),
    ("text",) * (len(_SETTINGS) + 1),
)
_BOUND = Statement(
    "SELECT set_config('statement_timeout', $1, true), set_config('lock_timeout', $1, true)",
    ("text",),
    ("text", "text"),
)
_INSPECT = Statement(
    "SELECT to_regclass($1)::text, obj_description(to_regclass($1), 'pg_class')",
    ("text",),
    ("text", "text"),
)
_NAMESPACE = Statement("SELECT to_regnamespace($1)::text", ("text",), ("text",))
_SIGNATURE = Statement("SELECT to_regprocedure($1)::text", ("text",), ("text",))


def _require_name(what: str, name: Any) -> str:
    if not isinstance(name, str) or not _IDENTIFIER.match(name):
        reject(
            f"{what} must be a plain identifier (letters, digits and underscores, at most 50, no "
            f"digit in front), not {name!r}"
        )
    return name
