"""The URL of every store that a service can use, on its real server, with nothing in it yet."""

from __future__ import annotations

from pathlib import Path

from tests.stores import edge
from tests.stores.postgres import live as postgres
from tests.stores.redis import live as redis

SHARED = ("sqlite", "valkey", "cluster", "postgresql", "dynamodb-local", *edge.EXACT)
"""Those that several nodes can share, and that are exact."""
STORES = ("memory", *SHARED, "workers-kv")


def url_of(name: str, folder: Path) -> str:
    if name == "memory":
        return "memory://"
    if name == "sqlite":
        return f"sqlite:///{folder}/limits.db?timeout_ms={edge.PATIENT_MS}"
    if name == "postgresql":
        return postgres.url_of(postgres.new_table(), timeout_ms=postgres.PATIENT_MS)
    if name in ("valkey", "cluster"):
        return redis.patient_url_of(name)
    url = edge.url_of(name)
    # Creates its table.
    edge.opened(url).close()
    return url


__all__ = ["SHARED", "STORES", "url_of"]
