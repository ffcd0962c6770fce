"""Spending a lease: the rule by itself, for one key, without store or clock.

A grant adds credits and says when their window ends. A spend takes from them, or answers None:
then somebody has to go and get more. It never invents a denial; only the store can deny.

Coupled to the window, credits are void from its end on, so that what a node leased in one window
can never add to the next one's limit. Not coupled, they carry over.

`penstock.leasing` applies the same rule to many keys at once, as the strategy of a MemoryStore
(`leasing/credits.py`); the tests hold the two together.
"""

from __future__ import annotations

from .decision import Decision
from .validation import require_cost, require_instant, require_int

__all__ = ["LeaseSpender"]


class LeaseSpender:
    """The credits of one key on one node."""

    def __init__(self, limit: int, ttl_ms: int, window_coupled: bool) -> None:
        self.limit: int = require_int("limit", limit)
        self.ttl_ms: int = require_int("ttl_ms", ttl_ms, low=0)
        self.window_coupled = window_coupled
        self.credits: int = 0
        self.expires_at: int | None = None

    def apply_lease(self, capacity: int, expires_at: int) -> None:
        """Add granted credits; their window ends at `expires_at`, by the store's clock."""
        require_int("capacity", capacity, low=0)
        self.expires_at = require_instant(expires_at)
        self.credits += capacity

    def spend(self, now: int, cost: int) -> Decision | None:
        """Spend `cost`, or None when a lease is needed first."""
        require_cost(cost)
        if self.window_coupled and self.expires_at is not None and now >= self.expires_at:
            self.credits = 0
        if self.credits < cost:
            return None
        self.credits -= cost
        reset_at = now + self.ttl_ms if self.expires_at is None else self.expires_at
        return Decision(True, self.limit, self.credits, reset_at, 0)

    def __repr__(self) -> str:
        return f"<LeaseSpender {self.credits} credits until {self.expires_at}>"
