"""What a policy allows, in the words of someone who reads it out."""

from __future__ import annotations

from .model import PolicySpec

__all__ = ["in_words"]


def in_words(spec: PolicySpec) -> str:
    """Each of its axes, in the order in which they are asked."""
    parts = []
    if spec.concurrency is not None:
        law = spec.concurrency.law
        parts.append(f"{law.min_limit} to {law.max_limit} in flight")
    if spec.strategy is not None:
        parts.append(spec.strategy.in_words())
    if spec.budget is not None:
        parts.append(f"{spec.budget.in_words()} in tokens")
    return ", ".join(parts)
