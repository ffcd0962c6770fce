"""Between Python's names and the wire's, which are in camelCase."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..core.decision import Decision
from ..core.strategy import Strategy
from ..core.validation import reject
from ..strategies import fixed_window, gcra, sliding_window, sliding_window_log, token_bucket
from ..strategies.lua import REPLY

__all__ = ["KINDS", "decision_fields", "strategy_of"]

# Per kind: the function that makes the strategy, and its parameters by their names on the wire.
KINDS: dict[str, tuple[Callable[..., Strategy], dict[str, str]]] = {
    "gcra": (gcra, {"limit": "limit", "periodMs": "period_ms", "burst": "burst"}),
    "tokenBucket": (token_bucket, {"capacity": "capacity", "refillPerSec": "refill_per_sec"}),
    "fixedWindow": (
        fixed_window,
        {"limit": "limit", "windowMs": "window_ms", "anchor": "anchor"},
    ),
    "slidingWindow": (
        sliding_window,
        {"limit": "limit", "windowMs": "window_ms", "buckets": "buckets"},
    ),
    "slidingWindowLog": (sliding_window_log, {"limit": "limit", "windowMs": "window_ms"}),
}


def strategy_of(kind: str, options: Mapping[str, Any]) -> Strategy:
    """The strategy that `{kind, options}` stands for."""
    if kind not in KINDS:
        reject(f"strategy kind must be one of {', '.join(KINDS)}, not {kind!r}")
    make, names = KINDS[kind]
    if unknown := options.keys() - names.keys():
        reject(f"{kind} has no option {', '.join(sorted(unknown))}; it has {', '.join(names)}")
    return make(**{names[option]: value for option, value in options.items()})


def decision_fields(decision: Decision) -> dict[str, bool | int]:
    """A decision by the wire's names, in the order of the reply."""
    values = (
        decision.allowed,
        decision.limit,
        decision.remaining,
        decision.reset_at,
        decision.retry_after_ms,
    )
    return dict(zip(REPLY, values, strict=True))
