"""The contracts that every other layer stands on. Standard library only.

It is decided here, once per process, whether the compiled path is on: `native` is the extension
module, or None. The module is a leaf: it imports nothing of this package, so any layer may use it.
`PENSTOCK_PURE=1` keeps it out; a wheel without it, or an interpreter it was not built for, has
the same effect. Nothing but speed and memory may depend on the answer, and so how many keys fit
into a store that is bounded in bytes. `accel/_choice.py` has the rule.
"""

from __future__ import annotations

from typing import Any

from ..accel._choice import interpreted_because

__all__ = ["accelerated", "native"]


def _load() -> Any:
    if interpreted_because:
        return None
    try:
        from ..accel import _native
    except ImportError:
        return None
    return _native


native: Any = _load()
accelerated: bool = native is not None
"""True when checks in memory take the native path. `PENSTOCK_PURE=1` turns that off, and so does a
free-threaded Python that runs without the interpreter lock."""
