"""A store of your own: one atomic method, and every strategy works on it.

This one keeps states in an SQLite file, so that the processes of one machine share a limit. Before
it is used, the conformance kit holds it to what a store must do.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from pathlib import Path
from typing import TypeVar

from penstock import Store, Transform, rate_limit
from penstock.testkit import run_store_conformance

R = TypeVar("R")


class SqliteStore(Store):
    def __init__(self, path: Path) -> None:
        self._path = path
        with self._connect() as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute(
                "CREATE TABLE IF NOT EXISTS states (key TEXT PRIMARY KEY, state TEXT, expires INT)"
            )
        database.close()

    def apply(self, key: str, transform: Transform[R], now: int, cost: int) -> R:
        database = self._connect()
        try:
            # The write lock is taken before the read, so nobody comes in between.
            database.execute("BEGIN IMMEDIATE")
            row = database.execute(
                "SELECT state FROM states WHERE key = ? AND expires > ?", (key, now)
            ).fetchone()
            outcome = transform.run(json.loads(row[0]) if row else None, now, cost)
            if outcome.persist and outcome.state is None:
                database.execute("DELETE FROM states WHERE key = ?", (key,))
            elif outcome.persist:
                record = (key, json.dumps(outcome.state), now + outcome.ttl_ms)
                database.execute("REPLACE INTO states VALUES (?, ?, ?)", record)
            database.execute("COMMIT")
            return outcome.result
        finally:
            database.close()

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, timeout=30, isolation_level=None)
        database.execute("PRAGMA synchronous = OFF")
        return database


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        names = iter(range(1_000))
        run_store_conformance(lambda: SqliteStore(Path(directory, f"{next(names)}.db")))
        print("the store conforms")

        path = Path(directory, "limits.db")
        here = rate_limit("3/minute", store=SqliteStore(path))
        there = rate_limit("3/minute", store=SqliteStore(path))
        for limiter in (here, there, here, there):
            decision = limiter.check("alice")
            print("allowed" if decision else "denied", f"{decision.remaining} left")


if __name__ == "__main__":
    main()
