"""What a policy allows, in the words of someone who reads it out."""

from __future__ import annotations

from ..core.strategy import Strategy
from ..strategies.gcra import Gcra
from ..strategies.token_bucket import TokenBucket
from .model import PolicySpec

__all__ = ["in_words"]


def in_words(spec: PolicySpec) -> str:
    """Each of its axes, in the order in which they are asked."""
    parts = []
    if spec.concurrency is not None:
        law = spec.concurrency.law
        parts.append(f"{law.min_limit} to {law.max_limit} in flight")
    if spec.strategy is not None:
        parts.append(_rate(spec.strategy))
    if spec.budget is not None:
        parts.append(f"{_per(spec.budget.limit, spec.budget.window_ms)} in tokens")
    return ", ".join(parts)


def _rate(strategy: Strategy) -> str:
    if isinstance(strategy, Gcra):
        rate = _per(strategy.rate_limit, strategy.period_ms)
        return (
            rate if strategy.burst == strategy.rate_limit else f"{rate}, {strategy.burst} at once"
        )
    if isinstance(strategy, TokenBucket):
        return f"{strategy.refill_per_sec:g} per second, {strategy.limit} at once"
    return _per(strategy.limit, strategy.window_ms)


def _per(limit: int, window_ms: int | None) -> str:
    return str(limit) if window_ms is None else f"{limit} per {window_ms / 1000:g} s"
