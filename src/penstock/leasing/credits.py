"""Credits as a strategy: what a node may still spend of its lease.

The near tier of a two-tier limiter is a MemoryStore, and this is its strategy; so it has the same
atomicity, the same expiry and the same native path as any other. `check` spends credits or denies,
and a denial here only means that a lease is needed.

The state is (credits, reset_at, until). `reset_at` is the end of the window as the store told it,
for the caller to see. `until` is the same end on this node's steady clock, reckoned from the
moment the lease was *requested*: the store's reading came later, so `until` is not late (with a
margin for clocks that run apart, see `near.py`), and a node whose clock shows another time of day
is not fooled. From `until` on the state is expired,
which is how credits that are coupled to their window are dropped.
"""

from __future__ import annotations

from typing import Any

from ..core.decision import Decision, Forecast, Outcome
from ..core.store import Transform
from ..core.strategy import Strategy
from ..core.validation import MAX_SPAN_MS

__all__ = ["Credits", "State", "granting", "overlap"]

State = tuple[int, int, int]


class Credits(Strategy):
    """State: (credits, reset_at, until).

    `aligned` means that all credits of one instant belong to one window, named by its end: held
    ones of another window than a fresh grant's are void, whatever the clocks say. Where it is not
    known whether windows are shared or slide, `granted_at`, the instant of a fresh grant on the
    clock that names the ends, tells: held credits are good if their window had not ended then. A
    shared window has, when there is another.
    """

    name = "credits"

    def __init__(self, limit: int, idle_ms: int | None = None, aligned: bool = True) -> None:
        self.limit = limit
        self.ttl_ms = MAX_SPAN_MS
        self._idle_ms = idle_ms
        self._aligned = aligned
        # Idle credits need a second deadline, for which the native record has no room.
        self.native: tuple[Any, ...] | None = ("credits", limit) if idle_ms is None else None

    def check(self, state: State | None, now: int, cost: int) -> Outcome[Decision]:
        if state is None or state[0] < cost:
            held = state[0] if state else 0
            return Outcome(state, Decision(False, self.limit, held, now + 1, 1), 0, False)
        held, reset_at, until = state[0] - cost, state[1], state[2]
        decision = Decision(True, self.limit, held, reset_at, 0)
        return Outcome((held, reset_at, until), decision, self._life(until, now), True)

    def forecast(self, state: State | None, now: int, cost: int) -> Forecast:
        held = state[0] if state else 0
        return Forecast(held // cost, now + 1, now + 1)

    def grant(
        self, state: State | None, now: int, fresh: State, granted_at: int | None = None
    ) -> Outcome[int]:
        """Add what was leased; the result is what is held then."""
        held, reset_at, until = fresh
        if until <= now:
            return Outcome(state, state[0] if state else 0, 0, False)
        if state is not None and self._adds_up(state[1], reset_at, granted_at):
            held += state[0]
            # Of two reckonings of the end, the earlier one is safe for both leases.
            until = min(until, state[2])
        return Outcome((held, reset_at, until), held, self._life(until, now), True)

    def _adds_up(self, held_end: int, end: int, granted_at: int | None) -> bool:
        if held_end == end or not self._aligned:
            return True
        return granted_at is not None and overlap(held_end, end, granted_at)

    def _life(self, until: int, now: int) -> int:
        left = until - now
        return left if self._idle_ms is None else min(left, self._idle_ms)


def overlap(held_end: int, end: int, granted_at: int) -> bool:
    """Whether credits up to `held_end` were still good when others, up to `end`, were granted."""
    return granted_at < held_end <= end


def granting(strategy: Credits, fresh: State, granted_at: int | None = None) -> Transform[int]:
    """The transform that puts a lease into the near tier; returns the credits then held."""

    def run(state: Any, now: int, _cost: int) -> Outcome[int]:
        return strategy.grant(state, now, fresh, granted_at)

    return Transform(strategy, "grant", run, lambda _now, _retry_after_ms: 0)
