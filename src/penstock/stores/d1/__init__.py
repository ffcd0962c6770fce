"""The Cloudflare D1 store."""

from __future__ import annotations

from ._store import D1Store

__all__ = ["D1Store"]
