"""One PostgreSQL for all tests of the store, started at its first use; a table for each test."""

from __future__ import annotations

import functools
import uuid
from typing import Any

from penstock.stores.postgres import PostgresStore
from tests.servers import Postgres, require

PATIENT_MS = 20_000


@functools.cache
def running() -> Postgres:
    """A server that stays up to the end of the run."""
    require("postgres")
    return Postgres(settings={"max_connections": 60}).__enter__()


def new_table() -> str:
    """The name of a table that exists, empty."""
    table = f"t_{uuid.uuid4().hex[:12]}"
    store = PostgresStore.from_url(running().url, table=table)
    store.init()
    store.close()
    return table


def url_of(table: str, **options: Any) -> str:
    words = "".join(f"&{name}={value}" for name, value in options.items())
    return f"{running().url}?table={table}{words}"


def open_empty(driver: str = "psycopg", **options: Any) -> PostgresStore:
    """A patient store on a table of its own."""
    options = {"timeout_ms": PATIENT_MS, **options}
    return PostgresStore.from_url(running().url, table=new_table(), driver=driver, **options)
