"""The compiled `check` of several limits.

It reads the clock, finds the keys and decides them all in one step. That takes strategies with
native kernels on a store with a native table, and a plain call: every limit with a key, all at
the same cost. Whatever else is asked goes the long way round, by `Limits.check` itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core import native
from ..core._clock import ANCHOR_NS, SystemClock
from ..core._verdict import Verdict

__all__ = ["gate_of"]


def gate_of(limits: Any, parts: Sequence[tuple[str, Any, str, Any]]) -> Any:
    """A compiled object with a `check` for these limits, or None."""
    table = limits.store.native_table
    if native is None or table is None or any(check.native is None for *_, check in parts):
        return None
    if not native.LimitsGate.fits(table, len(parts)):
        return None
    steady = native.reads_steady_clock and type(limits.clock) is SystemClock
    return native.LimitsGate(
        table,
        [(name, lead, check, limit.keyless) for name, limit, lead, check in parts],
        tuple([limit.shadow for _, limit, _, _ in parts]),
        limits._now,
        ANCHOR_NS if steady else None,
        Verdict,
        type(limits).check.__get__(limits),
    )
