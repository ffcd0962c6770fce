"""The calls for several limits, and for what is charged ahead: asked by attributes, or by a key.

As in `_calls.py`: parse, ask the service, render; nothing is decided.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from ...adapters._headers import verdict_headers
from ...core._decision import Decision
from .._core import Reservation, Service
from .._several import Judgement
from ._answers import Answer, Answers, ProblemError, decision_json
from ._head import decode, require_fields

__all__ = ["ChargeCalls", "verdict_json"]


_NAMED = {"policy": str}
_ASKED = {"key": str, "attributes": dict, "cost": int}
_CHARGE = {"charge_id": str}
_LIMITS = {"key": str, "attributes": dict, "limits": list}


class ChargeCalls:
    """The paths of charges, and those of `Calls` where attributes are sent."""

    def __init__(self, service: Service, answers: Answers) -> None:
        self._service = service
        self._answers = answers

    def check(self, fields: dict[str, Any], legacy: bool) -> Answer:
        """`/v1/check` by attributes."""
        policy, told = _asked(fields, {"cost": int})
        asked = self._service.judge(policy, told, fields.get("cost", 1))
        render = partial(self._judged, legacy=legacy)
        return render(asked) if isinstance(asked, Judgement) else partial(_later, asked, render)

    def peek(self, fields: dict[str, Any], legacy: bool) -> Answer:
        """`/v1/peek` by attributes."""
        policy, told = _asked(fields, {})
        asked = partial(self._service.peek_all, policy, told)
        return partial(_later, asked, partial(self._judged, legacy=legacy, peeked=True))

    def forecast(self, fields: dict[str, Any], render: Any) -> Answer:
        """`/v1/forecast` by attributes."""
        policy, told = _asked(fields, {"cost": int})
        asked = partial(self._service.forecast_all, policy, told, fields.get("cost", 1))
        return partial(_later, asked, render)

    def v1_reserve(self, legacy: bool, body: bytes) -> Answer:
        fields = decode(body)
        require_fields(fields, _NAMED, {**_ASKED, "max_wait_ms": int})
        _require_attributes(fields.get("attributes", {}))

        def render(reserved: Reservation) -> bytes:
            told = {"charge_id": reserved.charge_id, "starts_at": reserved.starts_at}
            rest = json.dumps(told, separators=(",", ":"))[1:]
            answer = reserved.answer
            if isinstance(answer, Judgement):
                return self._judged(answer, legacy, rest=rest)
            text = f'{{"decision":{decision_json(answer)},{rest}'
            return self._decided(fields["policy"], answer, text, legacy)

        return partial(_later, partial(self._service.reserve, **fields), render)

    def v1_settle(self, _legacy: bool, body: bytes) -> Answer:
        fields = decode(body)
        actual = fields.pop("actual", None)
        require_fields(fields, _CHARGE, {})
        if type(actual) not in (int, dict):
            raise ProblemError(
                "config_invalid", "actual must be an integer, or an object of integers by limit"
            )
        asked = partial(self._service.settle, fields["charge_id"], actual)
        return self._flag("settled", asked)

    def v1_cancel(self, _legacy: bool, body: bytes) -> Answer:
        fields = decode(body)
        require_fields(fields, _CHARGE, {})
        return self._flag("cancelled", partial(self._service.cancel, **fields))

    def v1_renew(self, _legacy: bool, body: bytes) -> Answer:
        fields = decode(body)
        require_fields(fields, _CHARGE, {})
        return self._flag("held", partial(self._service.renew, **fields))

    def v1_pause(self, _legacy: bool, body: bytes) -> Answer:
        fields = decode(body)
        require_fields(fields, {"policy": str, "until_ms": int}, _LIMITS)
        return self._done(partial(self._service.pause, **_checked(fields)))

    def v1_reset(self, _legacy: bool, body: bytes) -> Answer:
        fields = decode(body)
        require_fields(fields, _NAMED, _LIMITS)
        return self._done(partial(self._service.reset, **_checked(fields)))

    def _flag(self, name: str, asked: Any) -> Answer:
        return partial(_later, asked, lambda done: self._answers.document(200, {name: done}))

    def _done(self, asked: Any) -> Answer:
        return partial(_later, asked, lambda _: self._answers.document(200, {}))

    def _judged(
        self, judged: Judgement, legacy: bool, peeked: bool = False, rest: str = "}"
    ) -> bytes:
        body = verdict_json(judged)
        text = body if rest == "}" else f"{body[:-1]},{rest}"
        headers = verdict_headers(
            judged.limits, judged.verdict, self._service.clock.now(), peeked=peeked, legacy=legacy
        )
        return self._answers.with_headers(200, headers, text)

    def _decided(self, policy: str, decision: Decision, text: str, legacy: bool) -> bytes:
        label = self._answers.policy_label(self._service.policies.get(policy), policy, decision)
        return self._answers.with_limits(200, label, decision, text, legacy)


def verdict_json(judged: Judgement) -> str:
    """The decision that binds, and what each limit said."""
    verdict = judged.verdict
    limits = ",".join(
        [f"{json.dumps(name)}:{decision_json(told)}" for name, told in verdict.limits.items()]
    )
    return (
        f'{{"decision":{decision_json(verdict.decision)},"limits":{{{limits}}},'
        f'"binding":{json.dumps(verdict.binding)},"violated":{json.dumps(verdict.violated)},'
        f'"shadowed":{json.dumps(verdict.shadowed)}}}'
    )


def _asked(fields: dict[str, Any], more: dict[str, type]) -> tuple[str, dict[str, Any]]:
    """The policy and the attributes, of which a key is one."""
    require_fields(fields, _NAMED, {"key": str, "attributes": dict, **more})
    told = _require_attributes(fields.get("attributes", {}))
    return fields["policy"], told | {"key": fields["key"]} if "key" in fields else told


def _require_attributes(told: dict[str, Any]) -> dict[str, Any]:
    for name, value in told.items():
        if type(value) not in (str, int):
            raise ProblemError(
                "config_invalid", f"the attribute {name[:80]!r} must be a string or an integer"
            )
    return told


def _checked(fields: dict[str, Any]) -> dict[str, Any]:
    _require_attributes(fields.get("attributes", {}))
    if not all(type(name) is str for name in fields.get("limits", ())):
        raise ProblemError("config_invalid", "limits must be a list of strings")
    return fields


async def _later(ask: Any, render: Any) -> bytes:
    return render(await ask())  # type: ignore[no-any-return]
