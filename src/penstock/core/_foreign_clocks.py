"""Clocks that are ahead of the one that decides, noticed by what they leave in a shared store.

Where callers bring their own clocks, a store holds instants of all of them. No strategy moves back
in time, so a key that was charged by a clock an hour ahead is denied to the others until theirs
have come that far. That keeps the limit, and it looks like a fault to whoever is told to wait an
hour: so it is said and counted.

The sign is a wait that is longer than any state can cause which the deciding clock has written
itself by a check (`Strategy.longest_wait_ms`). It does not depend on how a store keeps its states,
nor on whether the clock is the caller's or a server's. A clock that has been set back looks the
same, and so does a burst that was made smaller while a key was in debt, a pause, a booking, or a
charge beyond what was left; the text says so.

A process has one count for all of its stores, as all of its system clocks have one anchor. Whoever
decides in a store's place calls `look_at` with what it answers without having written.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from ._clock import Clock, SystemClock

if TYPE_CHECKING:
    from ._decision import Decision
    from ._strategy import Strategy
    from ._transform import Transform


__all__ = ["FOREIGN_CLOCKS", "TOLERATED_MS", "ForeignClocks"]


TOLERATED_MS = 2_000
"""A caller may reach the store this much later than it read its clock, and others before it."""

_SAY_EVERY_MS = 60_000

_log = logging.getLogger("penstock.clocks")


class ForeignClocks:
    """`met` counts how often a request was denied for the sake of an instant too far ahead."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.met: int = 0
        self._lock = threading.Lock()
        self._now = (clock or SystemClock()).now
        self._quiet_until = 0

    def look_at(self, result: Any, transform: Transform[Any], cost: int, times: int = 1) -> None:
        """Notice if `result`, that of a check or a lease, is a denial by a foreign clock."""
        strategy = transform.strategy
        if strategy is None or transform.role not in ("check", "lease"):
            return
        longest_ms = strategy.longest_wait_ms(max(cost, transform.need))
        if longest_ms is None:
            return
        decision: Decision = result.decision if transform.role == "lease" else result
        if decision.retry_after_ms > longest_ms + TOLERATED_MS:
            self._note(strategy, decision.retry_after_ms - longest_ms, times)

    def _note(self, strategy: Strategy, ahead_ms: int, times: int) -> None:
        now = self._now()
        with self._lock:
            self.met += times
            is_quiet = now < self._quiet_until
            if not is_quiet:
                self._quiet_until = now + _SAY_EVERY_MS
        if not is_quiet:
            _log.warning(
                "a key of %r was last charged by a clock that is %.1f s ahead of the one that "
                "decides; it is denied until that has caught up. Set the clocks right, or let the "
                "store's own decide (use_server_time) where it has one. A clock that was set back, "
                "a limit that was lowered, a pause, a booking or a debt do the same. (Met %d times "
                "so far.)",
                strategy,
                ahead_ms / 1000,
                self.met,
            )


FOREIGN_CLOCKS = ForeignClocks()
