"""The calls to a service: their fields, and how their answers are read.

A `ServiceCall` describes a call completely: its fields, how to read the answer, and what to return
if there is none. `ServiceLimiter` carries it out, sync or async.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..core._decision import Decision, Forecast
from ..core._validation import MAX_SAFE, reject, shown
from ..core._verdict import Verdict
from ._transport import Answer

__all__ = [
    "Attributes",
    "Cost",
    "ServiceCall",
    "attributes_of",
    "decision_of",
    "decisions_of",
    "failed_forecast",
    "failed_verdict",
    "flag",
    "forecast_of",
    "itself",
    "nothing",
    "readers",
    "verdicts_of",
]

Attributes = Mapping[str, str | int]
"""The attributes of a request: text for keys, plans and conditions, whole numbers for costs."""

Cost = int | Mapping[str, int]
"""One cost for every limit, or costs by the name of the limit."""

_UNREACHABLE = "service"
"""Stands for the names of a policy's limits, which are unknown without an answer."""


class ServiceCall(NamedTuple):
    call: str
    fields: dict[str, Any]
    read: Callable[[Answer], Any]
    failed: Callable[[Decision], Any] | None = None
    """Makes the result from the decision of the fail mode; None if an outage always raises."""


def attributes_of(given: Attributes) -> dict[str, str | int]:
    told: dict[str, str | int] = {}
    for name, value in given.items():
        if not isinstance(name, str) or (type(value) is not int and not isinstance(value, str)):
            reject(
                "attributes must map names to text or whole numbers, such as {'user': 'alice', "
                f"'tokens': 700}}, not {shown(name)}: {shown(value)}"
            )
        told[name] = value
    return told


def readers(
    key: str | Attributes, cost: Cost
) -> tuple[Callable[[Answer], Any], Callable[[Decision], Any]]:
    """How to read an answer, and the fail mode's decision: as a verdict if there are several
    limits, else as a decision."""
    several = isinstance(key, Mapping) or (isinstance(cost, Mapping) and len(cost) > 0)
    return (_verdict, failed_verdict) if several else (decision_of, itself)


def _read(told: Answer) -> Decision:
    return Decision(
        told["allowed"],
        told["limit"],
        told["remaining"],
        told["reset_at"],
        told["retry_after_ms"],
    )


def decision_of(answer: Answer) -> Decision:
    return _read(answer["decision"])


def decisions_of(answer: Answer) -> list[Decision]:
    return [_read(told) for told in answer["decisions"]]


def _verdict(answer: Answer) -> Verdict:
    limits, shadows = answer["limits"], answer["shadows"]
    return Verdict(
        tuple(limits),
        tuple([_read(told) for told in limits.values()]),
        tuple([name in shadows for name in limits]),
    )


def verdicts_of(answer: Answer) -> list[Verdict]:
    return [_verdict(told) for told in answer["verdicts"]]


def failed_verdict(decision: Decision) -> Verdict:
    return Verdict((_UNREACHABLE,), (decision,), (False,))


def forecast_of(answer: Answer) -> Forecast:
    told = answer["forecast"]
    return Forecast(told["spendable_now"], told["next_replenish_at"], told["full_at"])


def failed_forecast(decision: Decision) -> Forecast:
    spendable = MAX_SAFE if decision.allowed else 0
    return Forecast(spendable, decision.reset_at, decision.reset_at)


def flag(answer: Answer) -> bool:
    """The only field of the answer."""
    (done,) = answer.values()
    return bool(done)


def itself(decision: Decision) -> Decision:
    return decision


def nothing(_answer: Answer) -> None:
    return None
