"""Which clock tells how long something holds on this node.

Where the store has a clock of its own, only spans are measured here, and a steady clock measures
them best: one that is set back would make credits last into the next window. A clock that is moved
by hand, as in tests, is taken at its word. Where the caller's clock decides in the store, the same
one decides here, so that both see a window end at once.
"""

from __future__ import annotations

from ..core.clock import Clock, SystemClock
from ..core.store import Store

__all__ = ["clocks_for"]


def clocks_for(store: Store, clock: Clock | None) -> tuple[Clock | None, Clock]:
    """(for the store, for this node)."""
    if clock is None:
        return None, SystemClock()
    if not store.reads_own_clock:
        return clock, clock
    return None, clock if hasattr(clock, "subscribe") else SystemClock()
