"""The calls: what each path does with a body. Parse, ask the service, render; nothing is decided.

A call returns its reply at once where the store is in this process, else a coroutine.
"""

from __future__ import annotations

import json
import types
from collections.abc import Coroutine, Generator
from typing import Any

from ...adapters.headers import policy_field
from ...core.decision import Decision
from ...stores.memory import MemoryStore
from ..core import Service
from ..inline import DEFAULT_STRATEGY, INLINE
from .answers import Answer, Answers, Label, decision_json
from .fields import decode, require_fields
from .problem import ProblemError

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
        self._at_hand = isinstance(service.store, MemoryStore)

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
        check = self._service.checker("default")
        if check is None:
            return self._later_client(client, legacy)
        return self._client_reply(check(client, 1), legacy)

    def v1_check(self, legacy: bool, body: bytes) -> Answer:
        fields = decode(body)
        require_fields(fields, _KEYED, _COST)
        policy, key, cost = fields["policy"], fields["key"], fields.get("cost", 1)
        return self._one(policy, "rate", self._service.check(policy, key, cost), legacy)

    def v1_check_many(self, _legacy: bool, body: bytes) -> Answer:
        fields = decode(body)
        require_fields(fields, {"policy": str, "keys": list}, _COST)
        return self._run(self._many(fields["policy"], fields["keys"], fields.get("cost", 1)))

    def v1_peek(self, legacy: bool, body: bytes) -> Answer:
        fields = decode(body)
        require_fields(fields, _KEYED, {})
        policy = fields["policy"]
        asked = self._service.peek(policy, fields["key"])
        return self._one(policy, "rate", asked, legacy, peeked=True)

    def v1_forecast(self, _legacy: bool, body: bytes) -> Answer:
        fields = decode(body)
        require_fields(fields, _KEYED, _COST)
        return self._run(self._forecast(fields["policy"], fields["key"], fields.get("cost", 1)))

    def v1_debit(self, legacy: bool, body: bytes) -> Answer:
        fields = decode(body)
        require_fields(fields, _KEYED, {"tokens": int})
        policy, tokens = fields["policy"], fields.get("tokens", 1)
        asked = self._service.debit(policy, fields["key"], tokens)
        return self._one(policy, "cost", asked, legacy)

    def v1_admit(self, legacy: bool, body: bytes) -> Answer:
        fields = decode(body)
        # As in gRPC, the terms of a bid are taken and have no effect.
        require_fields(fields, _KEYED, {"cost": int, "hold": int, "value": int})
        return self._run(self._admit(fields, legacy))

    def v1_release(self, _legacy: bool, body: bytes) -> Answer:
        fields = decode(body)
        require_fields(fields, {"lease_id": str}, {"dropped": bool})
        return self._run(self._release(fields["lease_id"], fields.get("dropped", False)))

    def v1_heartbeat(self, _legacy: bool, body: bytes) -> Answer:
        fields = decode(body)
        require_fields(fields, {"lease_ids": list}, {})
        return self._run(self._heartbeat(fields["lease_ids"]))

    def _by_policy(self, fields: dict[str, Any], legacy: bool) -> Answer:
        name, key, cost = fields["policy"], fields["key"], fields.get("cost", 1)
        check = self._service.checker(name)
        if check is None:
            return self._later(name, key, cost, legacy)
        return self._decided(name, check(key, cost), legacy)

    def _inline(self, fields: dict[str, Any], legacy: bool) -> Answer:
        limit, window_ms = fields["limit"], fields["window_ms"]
        strategy = fields.get("strategy", DEFAULT_STRATEGY)
        inline = self._service.inline(limit, window_ms, strategy)
        check, cost = inline.checker, fields.get("cost", 1)
        label = self._answers.label(INLINE, limit, window_ms, inline.limiter.strategy)
        if check is None:
            terms = (limit, window_ms, cost, strategy)
            return self._later_inline(label, fields["key"], terms, legacy)
        return self._answers.decided(label, check(fields["key"], cost), legacy)

    async def _later(self, name: str, key: str, cost: int, legacy: bool) -> bytes:
        return self._decided(name, await self._service.check(name, key, cost), legacy)

    async def _later_inline(
        self, label: Label, key: str, terms: tuple[int, int, int, str], legacy: bool
    ) -> bytes:
        decision = await self._service.check_inline(key, *terms)
        return self._answers.decided(label, decision, legacy)

    async def _later_client(self, client: str, legacy: bool) -> bytes:
        return self._client_reply(await self._service.check("default", client, 1), legacy)

    def _decided(self, name: str, decision: Decision, legacy: bool) -> bytes:
        return self._answers.decided(self._label(name, decision), decision, legacy)

    def _client_reply(self, decision: Decision, legacy: bool) -> bytes:
        fields: dict[str, Any] = {
            "allowed": decision.allowed,
            "remaining": decision.remaining,
            "resetAt": decision.reset_at,
        }
        if not decision.allowed:
            message = f"rate limit exceeded; window resets at {decision.reset_at}"
            fields["message"] = message
        status = 200 if decision.allowed else 429
        label = self._label("default", decision)
        return self._answers.with_limits(status, label, decision, json.dumps(fields), legacy)

    def _label(self, name: str, decision: Decision) -> Label:
        policy = self._service.policies.get(name)
        if policy is None:
            # A reload has taken the policy away while the store was asked.
            return self._answers.label(name, decision.limit, None, None)
        return self._answers.label(name, policy.quota, policy.window_ms, policy.strategy)

    def _axis_label(self, name: str, axis: str, decision: Decision) -> Label:
        """The label of one of several axes: what is said is all about that one."""
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
        return (f"RateLimit-Policy: {policy_field(name, policy.quota, policy.window_ms)}",)

    def _one(
        self,
        policy: str,
        axis: str,
        asked: Coroutine[Any, Any, Decision],
        legacy: bool,
        peeked: bool = False,
    ) -> Answer:
        async def reply() -> bytes:
            decision = await asked
            body = f'{{"decision":{decision_json(decision)}}}'
            label = self._axis_label(policy, axis, decision)
            return self._answers.with_limits(200, label, decision, body, legacy, peeked)

        return self._run(reply())

    async def _many(self, policy: str, keys: list[str], cost: int) -> bytes:
        decisions = await self._service.check_many(policy, keys, cost)
        listed = ",".join(map(decision_json, decisions))
        body = f'{{"decisions":[{listed}]}}'.encode()
        return self._answers.plain(200, body, headers=self._policy_line(policy))

    async def _forecast(self, policy: str, key: str, cost: int) -> bytes:
        forecast = await self._service.forecast(policy, key, cost)
        fields = {
            "spendable_now": forecast.spendable_now,
            "next_replenish_at": forecast.next_replenish_at,
            "full_at": forecast.full_at,
        }
        return self._answers.document(200, {"forecast": fields}, self._policy_line(policy))

    async def _admit(self, fields: dict[str, Any], legacy: bool) -> bytes:
        policy = fields["policy"]
        admission = await self._service.admit(policy, fields["key"], fields.get("cost", 1))
        rest = {
            "lease_id": admission.lease_id,
            "lease_expires_at": admission.lease_expires_at,
            "binding_axis": admission.binding_axis,
            "policy_denied": False,
        }
        body = f'{{"decision":{decision_json(admission.decision)},{json.dumps(rest)[1:]}'
        axis, decision = admission.tightest()
        label = self._axis_label(policy, axis, decision)
        return self._answers.with_limits(200, label, decision, body, legacy)

    async def _release(self, lease_id: str, dropped: bool) -> bytes:
        await self._service.release(lease_id, dropped)
        return self._answers.document(200, {})

    async def _heartbeat(self, lease_ids: list[str]) -> bytes:
        beat = await self._service.heartbeat(lease_ids)
        fields = {
            "live_ids": beat.live_ids,
            "reclaimed_ids": beat.reclaimed_ids,
            "next_deadline": beat.next_deadline,
        }
        return self._answers.document(200, fields)

    def _run(self, work: Coroutine[Any, Any, bytes]) -> Answer:
        """Where nothing can wait, a coroutine runs to its end in one step."""
        if not self._at_hand:
            return work
        try:
            pending = work.send(None)
        except StopIteration as done:
            reply: bytes = done.value
            return reply
        return _later(work, pending)


async def _later(work: Coroutine[Any, Any, bytes], pending: Any) -> bytes:
    return await _resume(work, pending)


@types.coroutine
def _resume(work: Coroutine[Any, Any, bytes], pending: Any) -> Generator[Any, Any, bytes]:
    """Go on with work that has begun and waits for `pending`, from inside a task."""
    try:
        while True:
            try:
                value = yield pending
            except BaseException as error:  # noqa: PERF203 - each step may fail
                pending = work.throw(error)
            else:
                pending = work.send(value)
    except StopIteration as done:
        reply: bytes = done.value
        return reply
