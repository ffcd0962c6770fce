"""PostgreSQL: one limit for a fleet, on the database that is already there.

Checks are exact for everyone who shares the table. `PostgresStore` opens connections of its own, or
borrows them from a pool of psycopg or asyncpg.
"""

# A check travels through five modules. `commits` gathers calls into batches. `flows` decides what
# to ask the server, and does no I/O. `schema` holds the table, its function and every statement,
# `requests` what can be asked and every way in which that fails. `libpq` speaks to the server;
# `sync_connections`, `async_connections` and `asyncpg_connections` say where one comes from.

from ._store import PostgresStore

__all__ = ["PostgresStore"]
