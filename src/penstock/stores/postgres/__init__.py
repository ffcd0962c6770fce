"""PostgreSQL: one limit for a fleet, on the database that is already there.

Checks are exact for everyone who shares the table. `PostgresStore` opens connections of its own, or
borrows them from a pool of psycopg or asyncpg.
"""

# A check travels through four modules. `commits` gathers calls into batches. `flows` decides what
# to ask the server, and does no I/O. `schema` holds the table, its function and every statement.
# `connection` speaks to the server; `connections`, `async_connections` and `asyncpg_connections`
# say where one comes from, and `faults` is the one place where errors become ours.

from .store import PostgresStore

__all__ = ["PostgresStore"]
