"""The in-process store."""

from __future__ import annotations

from .store import MemoryStore

__all__ = ["MemoryStore"]
