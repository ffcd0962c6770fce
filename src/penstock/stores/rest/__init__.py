"""Stores behind an HTTP API: a sync and an async client, and what such stores share.

- client: httpx, made on first use; its errors translated; the URLs of such stores, whose token goes
  into a header and nowhere else; and the envelope of Cloudflare's REST API
- store: a store whose requests become HTTP calls, batched per event loop, and the protocol of the
  small servers that ship with Penstock
"""

from __future__ import annotations

from ._client import HttpCall, RestClient, RestReply
from ._store import RestStore

__all__ = ["HttpCall", "RestClient", "RestReply", "RestStore"]
