"""The algorithms, one per file: pure functions of (state, now, cost)."""

from __future__ import annotations

from ..core._accelerator import LuaAccelerator
from ..core._lua import LuaScript, LuaSource, beside, hash_fields, real, whole
from ..core._register import register as _register
from ._calendar_quota import CalendarQuota, calendar_quota
from ._fixed_window import FixedWindow, fixed_window
from ._gcra import Gcra, gcra, strategy_of_rate
from ._sliding_window import SlidingWindow, sliding_window
from ._sliding_window_log import SlidingWindowLog, sliding_window_log
from ._slots import Slots, slots
from ._token_bucket import TokenBucket, token_bucket
from ._unlimited import Unlimited, unlimited

for _built_in in (Gcra, TokenBucket, FixedWindow, CalendarQuota, SlidingWindow, SlidingWindowLog):
    _register(_built_in)

__all__ = [
    "CalendarQuota",
    "FixedWindow",
    "Gcra",
    "LuaAccelerator",
    "LuaScript",
    "LuaSource",
    "SlidingWindow",
    "SlidingWindowLog",
    "Slots",
    "TokenBucket",
    "Unlimited",
    "beside",
    "calendar_quota",
    "fixed_window",
    "gcra",
    "hash_fields",
    "real",
    "sliding_window",
    "sliding_window_log",
    "slots",
    "strategy_of_rate",
    "token_bucket",
    "unlimited",
    "whole",
]
