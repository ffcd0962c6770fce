"""How a state without a fixed wire encoding is kept: as a JSON text that says what it is.

    {"v": 1, "strategy": "MyStrategy", "expires_at": 1700000060000, "state": [3, 1700000000000]}

Numbers are written by `repr`, so doubles come back as they were. Expiry is decided by
`expires_at` on the clock of the request. The key's own TTL only gives memory back: it outlasts
the state by as much again, and by a minute at least, and by how far the caller's clock runs ahead
of the server's.
"""

from __future__ import annotations

import json
from typing import Any

from ...core.validation import reject
from ...strategies.lua import MARGIN_MS
from .faults import foreign_state

__all__ = ["FORMAT", "keep_ms", "pack", "unpack"]

FORMAT = 1


def pack(kind: str, state: Any, expires_at: int) -> str:
    record = {"v": FORMAT, "strategy": kind, "expires_at": expires_at, "state": state}
    try:
        return json.dumps(record, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        reject(
            f"the state of {kind!r} cannot be kept in Redis ({error}): make it of numbers, "
            "strings, lists, dicts with text keys and None"
        )


def unpack(raw: Any, key: str, kind: str, now: int) -> Any:
    """The state that `pack` was given, or None when there is none or its time has passed."""
    if raw is None:
        return None
    try:
        record = json.loads(raw)
        version, held, expires_at = record["v"], record["strategy"], record["expires_at"]
        state = record["state"]
    except (ValueError, TypeError, KeyError):
        raise foreign_state(f"key {key!r}", "not a record of this store") from None
    if version != FORMAT:
        raise foreign_state(f"key {key!r}", f"a record of format {version}, not {FORMAT}")
    if now >= expires_at:
        return None
    if held != kind:
        raise foreign_state(f"key {key!r}", f"the strategy {held!r}, not {kind!r}")
    return state


def keep_ms(ttl_ms: int, now: int, server_now: int) -> int:
    """The physical TTL of a state that matters for `ttl_ms` from `now`."""
    return max(0, now - server_now) + ttl_ms + max(ttl_ms, MARGIN_MS)
