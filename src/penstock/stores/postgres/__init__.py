"""PostgreSQL: one limit for a fleet, on the database that is already there.

Checks are exact for everyone who shares the table. `PostgresStore` opens connections of its own, or
borrows them from a pool of psycopg or asyncpg.
"""

# A check travels through four modules. `lanes` gathers calls into batches. `flows` decides what to
# ask the server, and does no I/O. `schema` holds the table, its function and every statement.
# `link`, with `sources` and `asynchronous`, and `with_asyncpg` carry statements; `faults` is the
# one place where their errors become ours.

from .store import PostgresStore

__all__ = ["PostgresStore"]
