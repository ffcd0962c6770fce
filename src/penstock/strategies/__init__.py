"""The algorithms, one per file: pure functions of (state, now, cost)."""

from __future__ import annotations

from ..core.strategy import register
from .fixed_window import FixedWindow, fixed_window
from .gcra import Gcra, gcra
from .rates import strategy_of_rate
from .sliding_window import SlidingWindow, sliding_window
from .sliding_window_log import SlidingWindowLog, sliding_window_log
from .token_bucket import TokenBucket, token_bucket
from .unlimited import Unlimited, unlimited

for _built_in in (Gcra, TokenBucket, FixedWindow, SlidingWindow, SlidingWindowLog):
    register(_built_in)

__all__ = [
    "FixedWindow",
    "Gcra",
    "SlidingWindow",
    "SlidingWindowLog",
    "TokenBucket",
    "Unlimited",
    "fixed_window",
    "gcra",
    "sliding_window",
    "sliding_window_log",
    "strategy_of_rate",
    "token_bucket",
    "unlimited",
]
