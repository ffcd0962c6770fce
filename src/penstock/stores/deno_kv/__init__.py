"""The Deno KV store, and the Deno program it talks to: `server.js`."""

from __future__ import annotations

from ..rest._store import RecordServerStore

__all__ = ["DenoKvStore"]


class DenoKvStore(RecordServerStore):
    """Keeps states in Deno KV, through the program that ships in this folder.

    `base_url` is where the program runs, `token` the secret it was given. A write is
    `atomic().check(versionstamp).set(...).commit()`: exact across every process that uses the
    program, and across every instance of it on Deno Deploy. Several limits are one such operation.
    """

    # A value may have 64 KiB, the version and the wrapping included.
    max_record_bytes = 65_000
    # What one consistent read may ask for.
    most_keys_at_once = 10
    # A key may have 2 KiB, in which a zero byte takes two.
    max_key_bytes = 900
