"""The Cloudflare Durable Object store, and the Worker it talks to: `worker.js`."""

from __future__ import annotations

from ..rest._store import RecordServerStore

__all__ = ["DurableObjectStore"]


class DurableObjectStore(RecordServerStore):
    """Keeps states in Durable Objects, through the Worker that ships in this folder.

    `base_url` is where the Worker is deployed, `token` the secret it was given. One object holds
    one key, and the runtime lets one request at a time into an object: comparing and writing is
    one step there. Exact across every process that uses the Worker.
    """

    # What one entry of an object's storage may have, less the version.
    max_record_bytes = 1_900_000
    max_key_bytes = 1_024
