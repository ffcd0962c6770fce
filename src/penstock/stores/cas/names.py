"""Names that a backend can hold.

Keys may be 4,096 bytes long, which some backends do not take. A key that is as long as `limit` or
longer is replaced by a name of exactly `limit` bytes: its first characters, for those who read the
table, and its SHA-256. Keys that go in unchanged are shorter than `limit`, so no key can be made
up that meets the name of another.
"""

from __future__ import annotations

import re
from hashlib import sha256

from ...core.validation import reject

__all__ = ["fit", "require_name"]


def fit(key: str, limit: int) -> str:
    """The key, or what stands for it in a backend that takes names of up to `limit` bytes."""
    raw = key.encode()
    if len(raw) < limit:
        return key
    digest = sha256(raw).hexdigest()
    lead = raw[: limit - len(digest)].decode(errors="ignore")
    return lead + "." * (limit - len(digest) - len(lead.encode())) + digest


def require_name(what: str, name: object, pattern: str) -> str:
    """A table, namespace or account, before it becomes part of a statement or a path."""
    if not isinstance(name, str) or not re.fullmatch(pattern, name, re.ASCII):
        reject(f"{what} must match {pattern}, not {name!r}")
    return name
