"""The in-process store."""

from __future__ import annotations

from ._store import MemoryStore

__all__ = ["MemoryStore"]
