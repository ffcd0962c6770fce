"""PostgreSQL: one limit for a fleet, on the database that is already there.

A check travels through four rooms. `lanes` gathers calls into batches. `flows` decides what to
ask the server, and does no I/O. `schema` holds the table, its function and every statement.
`link`, with `sources` and `asynchronous`, and `with_asyncpg` carry statements, and `faults` is the
one place where their errors become ours.
"""

from .store import PostgresStore

__all__ = ["PostgresStore"]
