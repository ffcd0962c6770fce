"""A leased limiter on clocks moved by hand, for tests."""

from __future__ import annotations

from typing import Any

from penstock import Limiter, fixed_window
from penstock.leasing import two_tier
from tests.leasing.far import FarStore
from tests.support.helpers import NOW

WINDOW = 60_000
# Aligned to the minute, so that a window lies ahead in full.
START = NOW // WINDOW * WINDOW


def leased(far: FarStore, limit: int = 100, **options: Any) -> Limiter:
    options = {"batch": 10, "clock": far.clock, **options}
    return two_tier(fixed_window(limit, WINDOW), far, "leased", **options)
