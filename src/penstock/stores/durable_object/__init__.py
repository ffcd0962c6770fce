"""The Cloudflare Durable Object store, and the Worker it talks to: `worker.js`."""

from __future__ import annotations

from ._store import DurableObjectStore

__all__ = ["DurableObjectStore"]
