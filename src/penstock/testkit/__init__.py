"""For those who test with Penstock, or build on it: the conformance kit for stores."""

from __future__ import annotations

from .conformance import (
    Case,
    ConformanceError,
    arun_store_conformance,
    conformance_cases,
    run_store_conformance,
)

__all__ = [
    "Case",
    "ConformanceError",
    "arun_store_conformance",
    "conformance_cases",
    "run_store_conformance",
]
