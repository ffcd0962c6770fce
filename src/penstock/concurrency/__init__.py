"""Concurrency limits: slots in flight, under a ceiling that is inferred from latency.

For example::

    limiter = ConcurrencyLimiter(Gradient(min_limit=4, max_limit=200))
    with limiter.slot():
        call_the_backend()
"""

from __future__ import annotations

from ._ceilings import Aimd, Gradient, Law
from ._limiter import ConcurrencyLimiter, SlotGrant
from ._slots import Heartbeat, Slot, SlotLease

__all__ = [
    "Aimd",
    "ConcurrencyLimiter",
    "Gradient",
    "Heartbeat",
    "Law",
    "Slot",
    "SlotGrant",
    "SlotLease",
]
