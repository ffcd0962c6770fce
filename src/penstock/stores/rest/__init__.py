"""Stores behind an HTTP API: a sync and an async client, and what such stores share.

- client: httpx, made when first used; the token goes into a header and nowhere else
- faults: every fault of httpx and every HTTP status, as one of ours
- batching: many requests of a loop in few calls
- store: a store whose requests become HTTP calls
- urls: what the URL of such a store may say
- cloudflare: the envelope of Cloudflare's REST API
- records: the protocol of the small servers that ship with Penstock
"""

from __future__ import annotations

from ._client import HttpCall, RestClient, RestReply
from ._store import RestStore

__all__ = ["HttpCall", "RestClient", "RestReply", "RestStore"]
