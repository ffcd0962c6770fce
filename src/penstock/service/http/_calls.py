"""The calls of the HTTP API: each parses the body, asks the service and formats the reply.

A check is answered at once, in bytes, if the service decides at once; everything else waits for a
place.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from ...adapters._headers import policy_field
from ...core._decision import Decision, Forecast
from .._core import Admission, Heartbeat, Service
from .._deciding import Asked, Awaited, Then
from .._inline import DEFAULT_STRATEGY, INLINE, MAX_POLICIES, Inline
from ._answers import (
    CLIENT,
    NESTED,
    PLAIN,
    Answer,
    Answers,
    Label,
    ProblemError,
    decision_json,
)
from ._charge_calls import ChargeCalls
from ._head import decode, require_fields

__all__ = ["Calls"]


_KEYED = {"policy": str, "key": str}
_COST = {"cost": int}
_INLINE = {"key": str, "limit": int, "window_ms": int}
_INLINE_OPTIONAL = {"cost": int, "strategy": str}


class Calls:
    """The paths that decide something. `legacy` asks for the older headers as well."""

    def __init__(self, service: Service, answers: Answers) -> None:
        self._service = service
        self._answers = answers
        self.charges: ChargeCalls = ChargeCalls(service, answers)
        self._inline_labels: dict[Inline, Label] = {}

    def check(self, legacy: bool, body: bytes) -> Answer:
        fields = decode(body)
        if "policy" in fields:
            require_fields(fields, _KEYED, _COST)
            return self._by_policy(fields, legacy)
        if len(fields) != 3 or not (
            "key" in fields and "limit" in fields and "window_ms" in fields
        ):
            if not fields.keys() & {"limit", "window_ms"}:
                raise ProblemError("config_invalid", "name a policy, or give limit and window_ms")
            require_fields(fields, _INLINE, _INLINE_OPTIONAL)
        return self._inline(fields, legacy)

    def check_client(self, legacy: bool, client: str, _body: bytes) -> Answer:
        """`GET /check/{client}`, under the policy named `default`."""
        if "default" not in self._service.policies:
            raise ProblemError(
                "unknown_policy",
                "this path asks the policy named 'default', which the policy file does not have; "
                "add one of that name to it, or name another with POST /check",
            )
        return self._by_key("default", client, 1, CLIENT, legacy)

    def v1_check(self, legacy: bool, body: bytes) -> Answer:
        fields = decode(body)
        if self._has_limits(fields):
            return self.charges.check(fields, legacy)
        require_fields(fields, _KEYED, _COST)
        if self._judges(fields["policy"]):
            return self._by_key(
                fields["policy"], fields["key"], fields.get("cost", 1), NESTED, legacy
            )
        return self._one(fields["policy"], "rate", self._service.decide(**fields), legacy)

    def _has_limits(self, fields: dict[str, Any]) -> bool:
        """Whether a request is for several limits: by its fields or, if these do not show it, by
        its policy."""
        if "attributes" in fields or "costs" in fields:
            return True
        name = fields.get("policy")
        policy = self._service.policies.get(name) if isinstance(name, str) else None
        return "key" not in fields and policy is not None and policy.kind == "limits"

    def v1_check_many(self, _legacy: bool, body: bytes) -> Answer:
        fields = decode(body)
        if "attributes" in fields:
            return self.charges.check_many(fields)
        require_fields(fields, {"policy": str, "keys": list}, _COST)

        def render(decisions: list[Decision]) -> bytes:
            listed = ",".join(map(decision_json, decisions))
            body = f'{{"decisions":[{listed}]}}'.encode()
            return self._answers.plain(200, body, headers=self._policy_line(fields["policy"]))

        return partial(_later, partial(self._service.check_many, **fields), render)

    def v1_peek(self, legacy: bool, body: bytes) -> Answer:
        fields = decode(body)
        if self._has_limits(fields):
            return self.charges.peek(fields, legacy)
        require_fields(fields, _KEYED, {})
        if self._judges(fields["policy"]):
            return self.charges.peek_key(fields["policy"], fields["key"], legacy)
        asked = Awaited(partial(self._service.peek, **fields))
        return self._one(fields["policy"], "rate", asked, legacy, peeked=True)

    def v1_forecast(self, _legacy: bool, body: bytes) -> Answer:
        fields = decode(body)

        def render(forecast: Forecast) -> bytes:
            told: dict[str, Any] = {
                "spendable_now": forecast.spendable_now,
                "next_replenish_at": forecast.next_replenish_at,
                "full_at": forecast.full_at,
            }
            if forecast.degraded is not None:
                told["degraded"] = forecast.degraded
            headers = self._policy_line(fields["policy"])
            return self._answers.document(200, {"forecast": told}, headers)

        if self._has_limits(fields):
            return self.charges.forecast(fields, render)
        require_fields(fields, _KEYED, _COST)
        return partial(_later, partial(self._service.forecast, **fields), render)

    def v1_debit(self, legacy: bool, body: bytes) -> Answer:
        fields = decode(body)
        require_fields(fields, _KEYED, {"tokens": int})
        asked = Awaited(partial(self._service.debit, **fields))
        return self._one(fields["policy"], "cost", asked, legacy)

    def v1_admit(self, legacy: bool, body: bytes) -> Answer:
        fields = decode(body)
        # As in gRPC, the fields of a bid are accepted and have no effect.
        require_fields(fields, _KEYED, {"cost": int, "hold": int, "value": int})

        def render(admission: Admission) -> bytes:
            rest = {
                "lease_id": admission.lease_id,
                "lease_expires_at": admission.lease_expires_at,
                "binding_axis": admission.binding_axis,
                "policy_denied": False,
            }
            body = f'{{"decision":{decision_json(admission.decision)},{json.dumps(rest)[1:]}'
            axis, decision = admission.tightest()
            label = self._axis_label(fields["policy"], axis, decision)
            return self._answers.with_limits(200, label, decision, body, legacy)

        policy, key, cost = fields["policy"], fields["key"], fields.get("cost", 1)
        return partial(_later, partial(self._service.admit, policy, key, cost), render)

    def v1_release(self, _legacy: bool, body: bytes) -> Answer:
        fields = decode(body)
        require_fields(fields, {"lease_id": str}, {"dropped": bool})
        asked = partial(self._service.release, **fields)
        return partial(_later, asked, lambda _: self._answers.document(200, {}))

    def v1_heartbeat(self, _legacy: bool, body: bytes) -> Answer:
        fields = decode(body)
        require_fields(fields, {"lease_ids": list}, {})

        def render(beat: Heartbeat) -> bytes:
            told: dict[str, Any] = {
                "live_ids": beat.live_ids,
                "reclaimed_ids": beat.reclaimed_ids,
                "next_deadline": beat.next_deadline,
            }
            if beat.degraded is not None:
                told["degraded"] = beat.degraded
            return self._answers.document(200, told)

        return partial(_later, partial(self._service.heartbeat, **fields), render)

    def _by_policy(self, fields: dict[str, Any], legacy: bool) -> Answer:
        return self._by_key(fields["policy"], fields["key"], fields.get("cost", 1), PLAIN, legacy)

    def _judges(self, policy: str) -> bool:
        """Whether a policy has several limits, each of which has a member in the headers."""
        return self._service.entry(policy).judge is not None

    def _by_key(self, policy: str, key: str, cost: int, form: int, legacy: bool) -> Answer:
        """The answer of a policy of any kind to a bare key."""
        if self._judges(policy):
            return self.charges.check_key(policy, key, cost, form, legacy)
        asked = self._service.decide(policy, key, cost)
        return _reply(asked, self._decided, policy, form, legacy)

    def _decided(self, decision: Decision, policy: str, form: int, legacy: bool) -> bytes:
        label = self._label(policy, decision)
        return self._answers.decided(decision, label, form, legacy)

    def _inline(self, fields: dict[str, Any], legacy: bool) -> Answer:
        limit, window_ms = fields["limit"], fields["window_ms"]
        inline = self._service.inline(limit, window_ms, fields.get("strategy", DEFAULT_STRATEGY))
        asked = inline.decide(fields["key"], fields.get("cost", 1))
        label = self._inline_labels.get(inline) or self._inline_label(inline, limit, window_ms)
        return _reply(asked, self._answers.decided, label, PLAIN, legacy)

    def _inline_label(self, inline: Inline, limit: int, window_ms: int) -> Label:
        """As many labels are kept as there may be inline policies."""
        if len(self._inline_labels) >= MAX_POLICIES:
            self._inline_labels.clear()
        label = Label(INLINE, limit, window_ms, inline.strategy)
        self._inline_labels[inline] = label
        return label

    def _one(
        self, policy: str, axis: str, asked: Asked, legacy: bool, peeked: bool = False
    ) -> Answer:
        return _reply(asked, self._one_reply, policy, axis, legacy, peeked)

    def _one_reply(
        self, decision: Decision, policy: str, axis: str, legacy: bool, peeked: bool
    ) -> bytes:
        label = self._axis_label(policy, axis, decision)
        return self._answers.decided(decision, label, NESTED, legacy, peeked)

    def _label(self, name: str, decision: Decision) -> Label:
        return self._answers.policy_label(self._service.policies.get(name), name, decision)

    def _axis_label(self, name: str, axis: str, decision: Decision) -> Label:
        """The label of one of several axes, which alone is reported."""
        policy = self._service.policies.get(name)
        strategy = None if policy is None else policy.axes.get(axis)
        if strategy is None:
            return self._answers.label(name, decision.limit, None, None)
        return self._answers.label(name, *strategy.rate, strategy)

    def _policy_line(self, name: str) -> tuple[str, ...]:
        """The header for answers that are about a policy and not about one decision."""
        policy = self._service.policies.get(name)
        if policy is None:
            return ()
        if policy.several is None:
            members = [policy_field(name, policy.quota, policy.window_ms)]
        else:
            limits = [limit for limit in policy.several.limits if not limit.shadow]
            members = [policy_field(limit.name, *limit.strategy.rate) for limit in limits]
        return (f"RateLimit-Policy: {', '.join(members)}",) if members else ()


def _reply(asked: Asked, render: Callable[..., bytes], *rest: Any) -> Answer:
    """The reply to a decision that was made at once, or else a function to await."""
    if isinstance(asked, Decision):
        return render(asked, *rest)
    return Then(asked, render, *rest)


async def _later(
    ask: Callable[[], Awaitable[Any]], render: Callable[..., bytes], *rest: Any
) -> bytes:
    return render(await ask(), *rest)
