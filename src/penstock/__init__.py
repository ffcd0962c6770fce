"""Penstock: one limit, enforced exactly, wherever the traffic is.

>>> from penstock import rate_limit
>>> limiter = rate_limit("100/minute")
>>> bool(limiter.check("alice"))
True
"""

from __future__ import annotations

from ._limited import Limited, limited
from ._limits import Limit, Limits
from ._rate_limit import rate_limit
from .core import accelerated
from .core._charges import Charge
from .core._clock import Clock, ManualClock, SystemClock
from .core._decision import Decision, Forecast, Outcome
from .core._errors import (
    ConfigInvalidError,
    OverloadedError,
    PenstockError,
    QueueFullError,
    RateLimitExceededError,
    StoreUnavailableError,
    UnsupportedError,
)
from .core._limiter import Limiter, SlotLimiter
from .core._register import register
from .core._steps import Step
from .core._store import Store
from .core._strategy import Parameter, Strategy
from .core._transform import Transform
from .core._verdict import Verdict
from .stores.memory import MemoryStore
from .strategies import (
    calendar_quota,
    fixed_window,
    gcra,
    sliding_window,
    sliding_window_log,
    slots,
    token_bucket,
    unlimited,
)

__version__ = "0.1.0"

__all__ = [
    "Charge",
    "Clock",
    "ConfigInvalidError",
    "Decision",
    "Forecast",
    "Limit",
    "Limited",
    "Limiter",
    "Limits",
    "ManualClock",
    "MemoryStore",
    "Outcome",
    "OverloadedError",
    "Parameter",
    "PenstockError",
    "QueueFullError",
    "RateLimitExceededError",
    "SlotLimiter",
    "Step",
    "Store",
    "StoreUnavailableError",
    "Strategy",
    "SystemClock",
    "Transform",
    "UnsupportedError",
    "Verdict",
    "accelerated",
    "calendar_quota",
    "fixed_window",
    "gcra",
    "limited",
    "rate_limit",
    "register",
    "sliding_window",
    "sliding_window_log",
    "slots",
    "token_bucket",
    "unlimited",
]
