"""How a prefix and a key become the name under which a store keeps state, and what is kept of it.

This is the only place that knows: a limiter asks once for its lead and then concatenates, and
whoever remembers keys in this process does so under `kept_key`.

A caller may choose a key of 4,096 bytes; what it costs to remember should not be the caller's
choice. Beyond `LONGEST_KEPT` characters a key is known by its digest: BLAKE2b of 256 bits under a
secret of this process, so that nobody can find two keys that would share their counts. Its first
byte never occurs in UTF-8, so that no other key is equal to a digest.
"""

from __future__ import annotations

import os

from .validation import require_prefix

__all__ = ["LONGEST_KEPT", "digest_of", "kept_key", "key_lead"]

LONGEST_KEPT = 128
"""In characters, which a string knows without being looked at."""

_LEAD = b"\xff"
_SECRET = os.urandom(32)


def key_lead(prefix: str) -> str:
    """What stands before every key: `"prefix:"`, or nothing when there is no prefix."""
    prefix = require_prefix(prefix)
    return f"{prefix}:" if prefix else ""


def kept_key(key: str) -> str | bytes:
    """What to remember a key by, in this process."""
    return key if len(key) <= LONGEST_KEPT else digest_of(key)


def digest_of(key: str) -> bytes:
    """What stands for a long key in this process."""
    from hashlib import blake2b  # most programs have no such key, and do without the module

    return _LEAD + blake2b(key.encode(), digest_size=32, key=_SECRET).digest()
