"""The Deno KV store, and the Deno program it talks to: `server.js`."""

from __future__ import annotations

from ._store import DenoKvStore

__all__ = ["DenoKvStore"]
