"""For tests of code that extends Penstock: the conformance kit of stores, and sample strategies."""

from __future__ import annotations

from ..core._register import temporarily_registered
from ._conformance import Case, arun_store_conformance, conformance_cases, run_store_conformance
from ._samples import draw_strategy, sample_strategies
from ._steps import ConformanceError

__all__ = [
    "Case",
    "ConformanceError",
    "arun_store_conformance",
    "conformance_cases",
    "draw_strategy",
    "run_store_conformance",
    "sample_strategies",
    "temporarily_registered",
]
