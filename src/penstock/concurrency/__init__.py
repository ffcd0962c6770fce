"""Limits on what is in flight, with a ceiling that follows the latency.

For example::

    limiter = ConcurrencyLimiter(Gradient(min_limit=4, max_limit=200))
    with limiter.slot():
        call_the_backend()
"""

from __future__ import annotations

from .laws import Aimd, Gradient, Law
from .leases import Heartbeat, Lease, Leases
from .limiter import ConcurrencyLimiter, Grant
from .slot import Slot

__all__ = [
    "Aimd",
    "ConcurrencyLimiter",
    "Gradient",
    "Grant",
    "Heartbeat",
    "Law",
    "Lease",
    "Leases",
    "Slot",
]
