"""A limit for a fleet without a round trip per request: credits taken in batches, spent locally."""

from __future__ import annotations

from ..core.spender import LeaseSpender
from .batch import AdaptiveBatch
from .two_tier import TwoTierLimiter, two_tier

__all__ = ["AdaptiveBatch", "LeaseSpender", "TwoTierLimiter", "two_tier"]
