"""How a prefix and a key become the name under which a store keeps state.

This is the only place that knows: a limiter asks once for its lead and then concatenates.
"""

from __future__ import annotations

from .validation import require_prefix

__all__ = ["key_lead"]


def key_lead(prefix: str) -> str:
    """What stands before every key: `"prefix:"`, or nothing when there is no prefix."""
    prefix = require_prefix(prefix)
    return f"{prefix}:" if prefix else ""
