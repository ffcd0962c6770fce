"""The algebra of decisions: how the answers of several limits become one.

A request that several limits have to admit is allowed if all of them allow it. It sees the
tightest limit and the least that remains, and must wait for the slowest to reset and to retry.
Each field is a meet or a join of its own, so the whole is associative, commutative and
idempotent, and `NEUTRAL`, the answer of no limit at all, changes nothing. What holds for the parts
holds for the whole: a combined decision has a `retry_after_ms` of 0 exactly when it is allowed.
"""

from __future__ import annotations

from .decision import Decision
from .validation import MAX_SAFE

__all__ = ["NEUTRAL", "combine"]

NEUTRAL = Decision(True, MAX_SAFE, MAX_SAFE, 0, 0)
"""Combined with any decision, it yields that decision."""


def combine(*decisions: Decision) -> Decision:
    """One decision that stands for all; `NEUTRAL` for none."""
    if len(decisions) == 1:
        return decisions[0]
    if not decisions:
        return NEUTRAL
    return Decision(
        all(decision.allowed for decision in decisions),
        min(decision.limit for decision in decisions),
        min(decision.remaining for decision in decisions),
        max(decision.reset_at for decision in decisions),
        max(decision.retry_after_ms for decision in decisions),
    )
