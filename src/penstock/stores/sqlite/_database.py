"""The database file: its schema, its settings, and the few statements that the store needs.

The file belongs to the store. Its header has an application id and a schema version, and a file
with any other content is rejected, never altered.

`synchronous=normal`, the default, hands every commit to the operating system before it is
answered, and the disk catches up at checkpoints: the death of a process, by kill -9 too, loses
nothing, a power cut may lose the last moments, and neither damages the file.

Errors of SQLite are translated here and in no other file, by their texts, which are stable; Python
3.10 has no error codes for them.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from typing import Literal, get_args

from ...core._errors import ConfigInvalidError, PenstockError, StoreUnavailableError

__all__ = [
    "SYNCHRONOUS",
    "Database",
    "LockedError",
    "Synchronous",
    "interrupted",
    "is_busy",
    "late",
    "locked",
    "mapped",
    "not_ours",
]


_SETTLED = "nothing was charged"
_DOUBT = "the request may have been charged"


class LockedError(StoreUnavailableError):
    """Another process kept the lock; it may be free the next moment."""


_FULL = "is full"
_ADVICE = (
    ("readonly", "the file or its folder cannot be written; give this process the right to"),
    (_FULL, "make room on the disk"),
    ("unable to open", "it must be a file, in a folder that is writable for this process"),
    ("malformed", "the file is damaged; put it aside, and the store starts a new one"),
    ("disk I/O error", "the disk fails, or the file was moved or cut while in use"),
    ("no such table", "the file was replaced while in use; close the store"),
)


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another process holds the lock, so that trying again will do."""
    text = str(error)
    return "locked" in text or "busy" in text


def mapped(error: sqlite3.Error, path: str) -> PenstockError:
    text = str(error)
    if "not a database" in text:
        return not_ours(path, text)
    folder = os.path.dirname(path)
    if "unable to open" in text and not os.path.isdir(folder):
        return ConfigInvalidError(
            f"SQLite at {path}: there is no folder {folder}; create it, or name another path"
        )
    advice = "".join(f"; {words}" for sign, words in _ADVICE if sign in text)
    return StoreUnavailableError(
        f"SQLite at {path}: {text}{advice}; {_SETTLED}", reason="full" if _FULL in text else "away"
    )


def locked(path: str, timeout_ms: int) -> LockedError:
    return LockedError(
        f"SQLite at {path}: database is locked by another process for over {timeout_ms} ms; "
        f"{_SETTLED}"
    )


def late(path: str, timeout_ms: int, *, in_doubt: bool) -> StoreUnavailableError:
    effect = _DOUBT if in_doubt else _SETTLED
    return StoreUnavailableError(f"SQLite at {path}: no answer within {timeout_ms} ms; {effect}")


def interrupted(path: str) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"SQLite at {path}: the thread that was committing was interrupted; {_DOUBT}"
    )


def not_ours(path: str, detail: str) -> ConfigInvalidError:
    return ConfigInvalidError(
        f"{path} is not a store of this version ({detail}); give the store a file of its own"
    )


APPLICATION_ID = 0x50454E53  # "PENS"
SCHEMA = 1
Synchronous = Literal["off", "normal", "full", "extra"]
SYNCHRONOUS: tuple[Synchronous, ...] = get_args(Synchronous)

_CREATE = """
CREATE TABLE penstock (
    key TEXT PRIMARY KEY NOT NULL, record TEXT NOT NULL, keep_until INTEGER NOT NULL
) WITHOUT ROWID
"""
_READ = "SELECT record FROM penstock WHERE key = ?"
_WRITE = (
    "INSERT INTO penstock VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE "
    "SET record = excluded.record, keep_until = excluded.keep_until"
)
_DELETE = "DELETE FROM penstock WHERE key = ?"
# In slices, so that no other caller waits long; the next slice begins at the last key.
_SLICE = "SELECT key FROM penstock WHERE key > ? ORDER BY key LIMIT 1 OFFSET ?"
_SWEEP = "DELETE FROM penstock WHERE key > ? AND keep_until <= ? AND (? IS NULL OR key <= ?)"


class Database:
    """One connection. Not safe to share without a lock, nor across a fork."""

    def __init__(self, path: str, synchronous: str, timeout_ms: int) -> None:
        self.path = path
        self._timeout_ms = timeout_ms
        self._synchronous = synchronous
        self._connection: sqlite3.Connection | None = None
        # A connection that is being set up, and not in use yet.
        self._opening: sqlite3.Connection | None = None

    def open(self, deadline: float) -> None:
        """Connect, and create the schema in a file that is empty."""
        # Two processes that open a new file at once may each find it locked for a moment.
        while self._connection is None and not self._try_open():
            self._pause(deadline)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def begin(self, deadline: float) -> None:
        """Take the write lock. SQLite's own waiting doubles up to 100 ms; this one stays short."""
        while not self._try_begin():
            self._pause(deadline)

    def begin_reading(self) -> None:
        """Let all reads up to the commit be of one instant. Waits for no lock."""
        try:
            self._execute("BEGIN")
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def read(self, key: str) -> str | None:
        try:
            row = self._execute(_READ, (key,)).fetchone()
        except sqlite3.Error as error:
            raise self._failed(error) from error
        record: str | None = row[0] if row else None
        return record

    def commit(self, writes: dict[str, tuple[str | None, int]]) -> None:
        try:
            for key, (record, keep_until) in writes.items():
                if record is None:
                    self._execute(_DELETE, (key,))
                else:
                    self._execute(_WRITE, (key, record, keep_until))
            self._execute("COMMIT")
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def rollback(self) -> bool:
        """End a transaction that failed, if SQLite has not done so itself. Whether there was one:
        then nothing of it was written."""
        if self._connection is None or not self._connection.in_transaction:
            return False
        try:
            self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self.close()
        return True

    def sweep_slice(
        self, after: str, now: int, size: int, deadline: float
    ) -> tuple[str | None, int]:
        """Delete what may be deleted in the slice that follows a key. Returns its end, and how
        many."""
        self.begin(deadline)
        try:
            row = self._execute(_SLICE, (after, size - 1)).fetchone()
            end = row[0] if row else None
            dropped = self._execute(_SWEEP, (after, now, end, end)).rowcount
        except sqlite3.Error as error:
            raise self._failed(error) from error
        self.commit({})
        return end, dropped

    def _try_open(self) -> bool:
        try:
            self._connection = self._connect()
            self._opening = None
        except sqlite3.Error as error:
            if is_busy(error):
                return False
            raise mapped(error, self.path) from error
        return True

    def _try_begin(self) -> bool:
        try:
            self._execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            if is_busy(error):
                return False
            raise self._failed(error) from error
        return True

    def _execute(self, sql: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        assert self._connection is not None
        return self._connection.execute(sql, values)

    def _failed(self, error: sqlite3.Error) -> Exception:
        """Nothing of the transaction stays, whatever failed; a damaged connection goes too."""
        self.rollback()
        if not is_busy(error):
            self.close()
        return mapped(error, self.path)

    def _pause(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise locked(self.path, self._timeout_ms)
        time.sleep(min(left, random.uniform(0.000_1, 0.001)))

    def _connect(self) -> sqlite3.Connection:
        self._drop_unfinished()
        connection = self._opening = sqlite3.connect(
            self.path, timeout=0, isolation_level=None, check_same_thread=False
        )
        try:
            self._adopt(connection)
        except BaseException:
            self._drop_unfinished()
            raise
        return connection

    def _drop_unfinished(self) -> None:
        """Close a connection whose setting up was interrupted: it may hold the write lock."""
        if self._opening is not None:
            self._opening.close()
        self._opening = None

    def _adopt(self, connection: sqlite3.Connection) -> None:
        if _header(connection) != (APPLICATION_ID, SCHEMA):
            connection.execute("BEGIN IMMEDIATE")
            try:
                self._create(connection)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise not_ours(self.path, f"its file system cannot do WAL, only {mode!r}")
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")

    def _create(self, connection: sqlite3.Connection) -> None:
        """Under the lock: another process may just have done it."""
        application, version = _header(connection)
        if (application, version) == (APPLICATION_ID, SCHEMA):
            return
        if application == APPLICATION_ID:
            raise not_ours(self.path, f"schema version {version}, not {SCHEMA}")
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application or version or tables:
            raise not_ours(self.path, "another program's database")
        connection.execute(_CREATE)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA}")


def _header(connection: sqlite3.Connection) -> tuple[int, int]:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    return application, connection.execute("PRAGMA user_version").fetchone()[0]
