"""The Workers KV store. Approximate: see `WorkersKVStore`."""

from __future__ import annotations

from ._store import WorkersKVStore

__all__ = ["WorkersKVStore"]
