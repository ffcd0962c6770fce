"""The calls of the HTTP API for several limits and for charges, by attributes or by a key.

As in `_calls.py`, each parses the body, asks the service and formats the reply.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ..._limits import Limit
from ...adapters._headers import (
    LimitHeaders,
    field_name,
    legacy_headers,
    policy_field,
    retry_after_s,
    seconds_until_more,
)
from ...core import native
from ...core._charges import Settlement
from ...core._decision import Decision
from ...core._verdict import Verdict
from .._core import Reservation, Service
from .._deciding import Later, Then
from .._judging import Judge, Judgement
from .._several import PolicyLimits
from ._answers import NESTED, Answer, Answers, ProblemError, decision_body, decision_json
from ._head import decode, require_fields

__all__ = ["AwaitedJudgement", "ChargeCalls", "VerdictForm"]


# The most combinations of limits and figures; beyond that, all are made again.
_MAX_FORMS = 1_024

_NAMED = {"policy": str}
_PEEKED = {"key": str, "attributes": dict}
_COSTS = {"cost": int, "costs": dict}
_ASKED = {**_PEEKED, **_COSTS}
_CHARGE = {"charge_id": str}
_LIMITS = {"key": str, "attributes": dict, "limits": list}


class ChargeCalls:
    """The paths of charges, and those of `Calls` where attributes are sent."""

    def __init__(self, service: Service, answers: Answers) -> None:
        self._service = service
        self._answers = answers
        self._forms: dict[PolicyLimits, VerdictForm] = {}

    def check(self, fields: dict[str, Any], legacy: bool) -> Answer:
        """`/v1/check` by attributes."""
        policy, told = _asked(fields, _ASKED)
        asked = self._service.judge(policy, told, fields.get("cost", 1), fields.get("costs"))
        if isinstance(asked, Judgement):
            return self._judged(asked, legacy)
        return Then(asked, self._judged, legacy)

    def check_read(
        self, judge: Judge, told: dict[str, Any], cost: int
    ) -> bytes | AwaitedJudgement | None:
        """As `check`, for a request that compiled code has read; None if it has to be awaited."""
        asked = judge.judge(told, cost)
        if isinstance(asked, Judgement):
            return self._judged(asked, legacy=False)
        return AwaitedJudgement(asked, self._judged) if asked.can_begin else None

    def check_key(self, policy: str, key: str, cost: int, form: int, legacy: bool) -> Answer:
        """A check of a policy of several limits by a bare key: the body is that of one decision,
        and the headers have a member for each limit."""
        asked = self._service.judge(policy, {"key": key}, cost)
        if isinstance(asked, Judgement):
            return self._judged_key(asked, form, legacy)
        return Then(asked, self._judged_key, form, legacy)

    def peek_key(self, policy: str, key: str, legacy: bool) -> Answer:
        """The same for `/v1/peek`."""
        asked = partial(self._service.peek_all, policy, {"key": key})
        return partial(_later, asked, lambda it: self._judged_key(it, NESTED, legacy, peeked=True))

    def _judged_key(
        self, judged: Judgement, form: int, legacy: bool, peeked: bool = False
    ) -> bytes:
        verdict = judged.verdict
        status = 200 if verdict.allowed or form == NESTED else 429
        lines = self._form(judged).headers(verdict, self._service.clock.now(), peeked, legacy)
        return self._answers.with_lines(status, lines, decision_body(verdict.decision, form))

    def check_many(self, fields: dict[str, Any]) -> Answer:
        """`/v1/check-many` by attributes: a list of them."""
        require_fields(fields, {"policy": str, "attributes": list}, _COSTS)
        for told in fields["attributes"]:
            if type(told) is not dict:
                raise ProblemError("config_invalid", "attributes must be a list of objects")
            _require_attributes(told)

        def render(judged: list[Judgement]) -> bytes:
            verdicts = ",".join([self._form(each).body(each.verdict) for each in judged])
            return self._answers.plain(200, f'{{"verdicts":[{verdicts}]}}'.encode())

        return partial(_later, partial(self._service.judge_many, **fields), render)

    def peek(self, fields: dict[str, Any], legacy: bool) -> Answer:
        """`/v1/peek` by attributes."""
        policy, told = _asked(fields, _PEEKED)
        asked = partial(self._service.peek_all, policy, told)
        return partial(_later, asked, partial(self._judged, legacy=legacy, peeked=True))

    def forecast(self, fields: dict[str, Any], render: Any) -> Answer:
        """`/v1/forecast` by attributes."""
        policy, told = _asked(fields, _ASKED)
        cost, costs = fields.get("cost", 1), fields.get("costs")
        asked = partial(self._service.forecast_all, policy, told, cost, costs)
        return partial(_later, asked, render)

    def v1_reserve(self, legacy: bool, body: bytes) -> Answer:
        fields = decode(body)
        require_fields(fields, _NAMED, {**_ASKED, "max_wait_ms": int})
        _require_attributes(fields.get("attributes", {}))

        def render(reserved: Reservation) -> bytes:
            told = {
                "charge_id": reserved.charge_id,
                "charged_at": reserved.charged_at,
                "starts_at": reserved.starts_at,
                "ttl_ms": reserved.ttl_ms,
            }
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
        asked = partial(self._service.settlement, fields["charge_id"], actual)
        return partial(_later, asked, self._settled)

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

    def _settled(self, settlement: Settlement) -> bytes:
        told: dict[str, Any] = {"settled": settlement.settled}
        if settlement.uncharged:
            told["uncharged"] = dict(settlement.uncharged)
        return self._answers.document(200, told)

    def _flag(self, name: str, asked: Any) -> Answer:
        return partial(_later, asked, lambda done: self._answers.document(200, {name: done}))

    def _done(self, asked: Any) -> Answer:
        return partial(_later, asked, lambda _: self._answers.document(200, {}))

    def _judged(
        self, judged: Judgement, legacy: bool, peeked: bool = False, rest: str = "}"
    ) -> bytes:
        verdict, form, now = judged.verdict, self._form(judged), self._service.clock.now()
        if form.compiled is not None and not (legacy or peeked) and rest == "}":
            replies = self._answers.replies
            replies.count(200)
            head = replies.allowed_head
            reply: bytes = form.compiled.reply(head, verdict.decisions, verdict.allowed, now)
            return reply
        lines = form.headers(verdict, now, peeked, legacy)
        body = form.body(verdict)
        text = body if rest == "}" else f"{body[:-1]},{rest}"
        return self._answers.with_lines(200, lines, text)

    def _form(self, judged: Judgement) -> VerdictForm:
        return _NO_LIMITS if judged.limits is None else self.form(judged.limits)

    def form(self, limits: PolicyLimits) -> VerdictForm:
        """The form of the verdicts of these limits."""
        form = self._forms.get(limits)
        if form is None:
            if len(self._forms) >= _MAX_FORMS:
                self._forms.clear()
            form = self._forms[limits] = VerdictForm(limits.limits)
        return form

    def _decided(self, policy: str, decision: Decision, text: str, legacy: bool) -> bytes:
        label = self._answers.policy_label(self._service.policies.get(policy), policy, decision)
        return self._answers.with_limits(200, label, decision, text, legacy)


class AwaitedJudgement:
    """A reply about a judgement that is not made yet; `AwaitedVerdict` is the same for a verdict in
    compiled code."""

    __slots__ = ("_judged", "asked")

    def __init__(self, asked: Later[Judgement], judged: Callable[[Judgement, bool], bytes]) -> None:
        self.asked = asked
        self._judged = judged

    def about(self, judged: Judgement) -> bytes:
        return self._judged(judged, False)


class VerdictForm:
    """What all verdicts of the same limits have in common, formatted once. `compiled` makes the
    same replies for requests of the common form, if it can."""

    def __init__(self, limits: Mapping[str, Limit]) -> None:
        self._names = [json.dumps(name) for name in limits]
        self._headers = [
            (place, LimitHeaders(name, *limit.strategy.rate, limit.strategy))
            for place, (name, limit) in enumerate(limits.items())
            if not limit.shadow
        ]
        told = ",".join([f"{name}:%s" for name in self._names])
        self._form = f'{{"decision":%s,"limits":{{{told}}},"binding":%s,"violated":%s,'
        shadows = [name for name, limit in limits.items() if limit.shadow]
        # A name of a limit has no percent sign, so that it may be part of the form.
        self._form += f'"shadowed":%s,"shadows":{json.dumps(shadows)}}}'
        self.compiled: Any = _compiled(limits, json.dumps(shadows))

    def body(self, verdict: Verdict) -> str:
        """The binding decision, and that of each limit."""
        decisions, place = verdict.decisions, verdict.binding_place
        told: list[Any] = [decision_json(decision) for decision in (verdict.decision, *decisions)]
        told.append('""' if place is None else self._names[place])
        told.append("[]" if verdict.allowed else json.dumps(verdict.violated))
        told.append(json.dumps(verdict.shadowed) if verdict.has_shadows else "[]")
        return self._form % tuple(told)

    def headers(self, verdict: Verdict, now: int, peeked: bool, legacy: bool) -> str:
        """The same as `verdict_headers`, which a test compares."""
        binding, decisions = verdict.binding_place, verdict.decisions
        policies: list[str] = []
        members: list[str] = []
        for place, headers in self._headers:
            decision = decisions[place]
            at = 0 if place == binding else len(members)
            policies.insert(at, headers.policy)
            members.insert(at, headers.member(decision, now, peeked))
        lines = ""
        if members:
            lines = (
                f"RateLimit-Policy: {', '.join(policies)}\r\nRateLimit: {', '.join(members)}\r\n"
            )
        if not verdict.allowed:
            lines += f"Retry-After: {retry_after_s(verdict.decision)}\r\n"
        if legacy and members:
            told = legacy_headers(verdict.decision)
            lines += "".join([f"{name}: {value}\r\n" for name, value in told.items()])
        return lines


def _compiled(limits: Mapping[str, Limit], shadows: str) -> Any:
    """A compiled function that makes replies about verdicts of these limits, byte for byte as
    `VerdictForm` does; None if it is not compiled."""
    if native is None:
        return None
    words = [
        native.LimitWords(
            json.dumps(name).encode("ascii"),
            policy_field(name, *limit.strategy.rate).encode("ascii"),
            f"{field_name(name)};r=".encode("ascii"),
            limit.shadow,
            limit.strategy.native_more,
            partial(seconds_until_more, limit.strategy),
        )
        for name, limit in limits.items()
    ]
    told = shadows.encode("ascii")
    return native.VerdictReplies(words, told) if native.VerdictReplies.fits(words, told) else None


_NO_LIMITS = VerdictForm({})


def _asked(fields: dict[str, Any], known: Mapping[str, type]) -> tuple[str, dict[str, Any]]:
    """The policy and the attributes, of which a key is one."""
    require_fields(fields, _NAMED, known)
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
