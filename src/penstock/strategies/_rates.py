"""A rate such as `"100/minute"` as a strategy."""

from __future__ import annotations

from ..core._strategy import Strategy
from ..core._validation import parse_rate
from ._gcra import gcra, is_coarse_enough
from ._token_bucket import token_bucket

__all__ = ["strategy_of_rate"]


def strategy_of_rate(text: str) -> Strategy:
    """GCRA with a burst of the whole count; above what its grid can space exactly (10,240 a
    second), the token bucket of the same capacity and rate, which admits the same."""
    limit, period_ms = parse_rate(text)
    if limit and not is_coarse_enough(limit, period_ms):
        return token_bucket(limit, limit * 1000 / period_ms)
    return gcra(limit, period_ms)
