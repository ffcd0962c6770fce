"""Stores behind an HTTP API: a sync and an async client, and what such stores share.

- client: httpx, made when first used, its faults as ours, and what the URL of such a store may say;
  the token goes into a header and nowhere else; last, the envelope of Cloudflare's REST API
- store: a store whose requests become HTTP calls, many of a loop in few, and the protocol of the
  small servers that ship with Penstock
"""

from __future__ import annotations

from ._client import HttpCall, RestClient, RestReply
from ._store import RestStore

__all__ = ["HttpCall", "RestClient", "RestReply", "RestStore"]
