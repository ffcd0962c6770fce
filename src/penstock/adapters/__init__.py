"""Decisions and verdicts as rate-limit headers."""

from __future__ import annotations

from ._headers import decision_headers, verdict_headers

__all__ = ["decision_headers", "verdict_headers"]
