"""Penstock: one limit, enforced exactly, wherever the traffic is.

>>> from penstock import rate_limit
>>> limiter = rate_limit("100/minute")
>>> bool(limiter.check("alice"))
True
"""

from __future__ import annotations

from ._rate_limit import rate_limit
from .core._clock import Clock, ManualClock, SystemClock
from .core._decision import Decision, Forecast, Outcome
from .core._errors import (
    ConfigInvalidError,
    PenstockError,
    QueueFullError,
    RateLimitExceededError,
    StoreUnavailableError,
    UnsupportedError,
)
from .core._limiter import Limiter
from .core._native import accelerated
from .core._store import Store
from .core._strategy import Parameter, Strategy, register
from .core._transform import Transform
from .stores.memory import MemoryStore
from .strategies import (
    calendar_quota,
    fixed_window,
    gcra,
    sliding_window,
    sliding_window_log,
    token_bucket,
    unlimited,
)

__version__ = "0.1.0"

__all__ = [
    "Clock",
    "ConfigInvalidError",
    "Decision",
    "Forecast",
    "Limiter",
    "ManualClock",
    "MemoryStore",
    "Outcome",
    "Parameter",
    "PenstockError",
    "QueueFullError",
    "RateLimitExceededError",
    "Store",
    "StoreUnavailableError",
    "Strategy",
    "SystemClock",
    "Transform",
    "UnsupportedError",
    "accelerated",
    "calendar_quota",
    "fixed_window",
    "gcra",
    "rate_limit",
    "register",
    "sliding_window",
    "sliding_window_log",
    "token_bucket",
    "unlimited",
]
