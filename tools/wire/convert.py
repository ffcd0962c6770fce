"""Between Python's names and the wire's, which are in camelCase."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.core._decision import Decision
from penstock.core._lua import REPLY
from penstock.core._register import find_strategy, registered
from penstock.core._strategy import Strategy
from penstock.core._validation import reject

__all__ = ["decision_fields", "strategy_of"]


def strategy_of(kind: str, options: Mapping[str, Any]) -> Strategy:
    """The strategy that `{kind, options}` stands for."""
    cls = find_strategy(kind)
    if cls is None or kind != cls.wire_name:
        kinds = ", ".join(cls.wire_name for cls in registered())
        reject(f"strategy kind must be one of {kinds}, not {kind!r}")
    names = {parameter.wire_name: parameter.name for parameter in cls.parameters}
    if unknown := options.keys() - names.keys():
        reject(f"{kind} has no option {', '.join(sorted(unknown))}; it has {', '.join(names)}")
    return cls(**{names[option]: value for option, value in options.items()})


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
