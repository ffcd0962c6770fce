"""The calls to a service: their fields, and how their answers are read.

A `ServiceCall` describes a call completely: its fields, how to read the answer, and what to return
if there is none. `ServiceLimiter` carries it out, sync or async.

An answer is foreign data. Its readers verify the type and range of every field, and the number of
decisions, before a decision is made of them. A reader raises `AnswerError` for anything else:
a limiter must not admit a request because a broken server sent `"allowed": "false"`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..core._charges import Settlement
from ..core._decision import Decision, DegradedDecision, DegradedForecast, Forecast
from ..core._validation import MAX_SAFE, reject, shown
from ..core._verdict import Verdict
from ._transport import Answer

__all__ = [
    "AnswerError",
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
    "text_field",
    "texts_field",
    "verdicts_of",
    "whole_field",
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


class AnswerError(Exception):
    """An answer does not have the fields that its call is answered with."""


_MAX_INT64 = 2**63 - 1


def _field(fields: Any, name: str, kind: type) -> Any:
    """The value of a field, which must have exactly this type: True is not a whole number."""
    if type(fields) is not dict:
        raise AnswerError(f"{shown(fields)} is not an object")
    try:
        value = fields[name]
    except KeyError:
        raise AnswerError(f"it has no field {name!r}") from None
    if type(value) is not kind:
        raise AnswerError(f"its field {name!r} is {shown(value)}, not of type {kind.__name__}")
    return value


def whole_field(fields: Any, name: str) -> int:
    """A whole number that is not negative."""
    value: int = _field(fields, name, int)
    if not 0 <= value <= _MAX_INT64:
        raise AnswerError(f"its field {name!r} is {shown(value)}, which is out of range")
    return value


def text_field(fields: Any, name: str) -> str:
    value: str = _field(fields, name, str)
    return value


def texts_field(fields: Any, name: str) -> list[str]:
    values: list[str] = _field(fields, name, list)
    if any(type(value) is not str for value in values):
        raise AnswerError(f"its field {name!r} is not a list of texts")
    return values


def _list_field(fields: Any, name: str, count: int) -> list[Any]:
    """A list with one entry for each of the `count` requests of the call."""
    values: list[Any] = _field(fields, name, list)
    if len(values) != count:
        raise AnswerError(f"it has {len(values)} {name} for {count} requests")
    return values


def _decision(fields: Any) -> Decision:
    allowed = _field(fields, "allowed", bool)
    retry_after_ms = whole_field(fields, "retry_after_ms")
    if allowed == (retry_after_ms > 0):
        raise AnswerError(f"it has allowed {allowed} with retry_after_ms {retry_after_ms}")
    decision = Decision(
        allowed,
        whole_field(fields, "limit"),
        whole_field(fields, "remaining"),
        whole_field(fields, "reset_at"),
        retry_after_ms,
    )
    mode = _mode(fields)
    return DegradedDecision.of(mode, decision) if mode else decision


def _mode(fields: Any) -> str:
    """The fail mode of the service; empty if its store answered."""
    return text_field(fields, "degraded") if "degraded" in fields else ""


def decision_of(answer: Answer) -> Decision:
    return _decision(_field(answer, "decision", dict))


def decisions_of(answer: Answer, count: int) -> list[Decision]:
    return [_decision(fields) for fields in _list_field(answer, "decisions", count)]


def _verdict(answer: Answer) -> Verdict:
    limits, shadows = _field(answer, "limits", dict), texts_field(answer, "shadows")
    return Verdict(
        tuple(limits),
        tuple([_decision(fields) for fields in limits.values()]),
        tuple([name in shadows for name in limits]),
        answer["decision"]["reset_at"],
    )


def verdicts_of(answer: Answer, count: int) -> list[Verdict]:
    return [_verdict(fields) for fields in _list_field(answer, "verdicts", count)]


def failed_verdict(decision: Decision) -> Verdict:
    return Verdict((_UNREACHABLE,), (decision,), (False,))


def forecast_of(answer: Answer) -> Forecast:
    fields = _field(answer, "forecast", dict)
    forecast = Forecast(
        whole_field(fields, "spendable_now"),
        whole_field(fields, "next_replenish_at"),
        whole_field(fields, "full_at"),
    )
    mode = _mode(fields)
    return DegradedForecast(mode, forecast) if mode else forecast


def failed_forecast(decision: Decision) -> Forecast:
    spendable = MAX_SAFE if decision.allowed else 0
    forecast = Forecast(spendable, decision.reset_at, decision.reset_at)
    return DegradedForecast(decision.degraded or "", forecast)


def flag(answer: Answer) -> bool:
    """The only field of the answer."""
    if len(answer) != 1:
        raise AnswerError(f"it has {len(answer)} fields instead of one")
    (name,) = answer
    done: bool = _field(answer, name, bool)
    return done


def settlement_of(answer: Answer) -> Settlement:
    uncharged = _field(answer, "uncharged", dict) if "uncharged" in answer else {}
    units = {name: whole_field(uncharged, name) for name in uncharged}
    return Settlement(_field(answer, "settled", bool), units)


def itself(decision: Decision) -> Decision:
    return decision


def nothing(_answer: Answer) -> None:
    return None
