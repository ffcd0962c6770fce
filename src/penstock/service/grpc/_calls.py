"""The calls of the limiter and of charges: parse, ask the service, render.

Each is one message in and one out. Check, by far the most frequent call, is answered without a
coroutine if the store answers at once.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, TypeAlias, cast

from google.protobuf.message import Message

from ...core._decision import Decision
from ...core._errors import TooLargeError
from ...core._validation import reject
from ...wire import decision_message, fill, forecast_message
from ...wire.proto import rate_limiter_pb2 as pb
from ...wire.proto.rate_limiter_pb2_grpc import (
    CHARGES,
    CHARGES_METHODS,
    RATE_LIMITER,
    RATE_LIMITER_METHODS,
)
from .._core import Service
from .._deciding import Later, Then
from .._judging import Judgement
from ._dispatch import Unary
from ._open_calls import Places

__all__ = ["FOR_OPERATORS", "GrpcAnswers", "decisions"]

Reply: TypeAlias = "Message | Later[Message] | Coroutine[Any, Any, Message]"

# Calls that change counts without deciding a request.
FOR_OPERATORS = (f"/{CHARGES}/Pause", f"/{CHARGES}/Reset")


def decisions(service: Service, places: Places) -> dict[str, Unary]:
    """By the full name of the method."""
    answers = GrpcAnswers(service)
    observe = service.metrics.latency("grpc").observe
    made = {}
    calls = ((RATE_LIMITER, RATE_LIMITER_METHODS), (CHARGES, CHARGES_METHODS))
    for server, methods in calls:
        for name, (request, _) in methods.items():
            answer = answers.named(name)
            parse = partial(_parse, request.FromString)
            made[f"/{server}/{name}"] = Unary(parse, answer, places, observe)
    for name in FOR_OPERATORS:
        made[name].for_operators = True
    return made


MAX_FIELDS = 20_000
"""How many fields a message may have, those of its parts included. While it is parsed and read, no
other call is served."""

_REQUESTS = pb.CheckManyRequest.DESCRIPTOR.fields_by_name["requests"].number
_BYTES = 2


def _parse(parse: Callable[[bytes], Message], data: bytes) -> Message:
    # A field takes at least two bytes.
    if len(data) > 2 * MAX_FIELDS:
        _require_few_fields(data)
    return parse(data)


def _require_few_fields(data: bytes) -> None:
    """Reject a message with too many fields before it is parsed. One that is malformed is left to
    the parser."""
    fields, at, end = 0, 0, len(data)
    while at < end:
        fields += 1
        if fields > MAX_FIELDS:
            raise TooLargeError(
                f"a message may have at most {MAX_FIELDS} fields, those of its parts included; "
                "split the call"
            )
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _BYTES:
            size, at = _varint(data, at)
            # The parts of a batch are entered: their fields follow here.
            at += 0 if tag >> 3 == _REQUESTS else size
        elif kind == 0:
            _, at = _varint(data, at)
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            return


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for place in range(at, min(at + 10, len(data))):
        byte = data[place]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place + 1
        shift += 7
    return 0, len(data)


class GrpcAnswers:
    """The service in messages. A number of 0 was left out by the client, and means 1."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def named(self, call: str) -> Callable[[Any], Reply]:
        """The method for a call of the proto: CheckMany is check_many."""
        name = "".join(f"_{c.lower()}" if c.isupper() else c for c in call).lstrip("_")
        return cast("Callable[[Any], Reply]", getattr(self, name))

    def check(self, request: pb.CheckRequest) -> Reply:
        if self._has_limits(request):
            judged = self._service.judge(
                request.policy, _told(request), request.cost or 1, _costs(request)
            )
            return _judged(judged) if isinstance(judged, Judgement) else Then(judged, _judged)
        asked = self._service.decide(request.policy, request.key, request.cost or 1)
        return _decided(asked) if isinstance(asked, Decision) else Then(asked, _decided)

    def _has_limits(self, request: Any) -> bool:
        """Whether a request is for several limits: by its fields or, if these do not show it, by
        its policy."""
        if request.attributes or getattr(request, "costs", None):
            return True
        return self._service.entry(request.policy).judge is not None

    async def check_many(self, request: pb.CheckManyRequest) -> pb.CheckManyResponse:
        if request.requests or request.costs:
            return await self._judge_many(request)
        decisions = await self._service.check_many(
            request.policy, list(request.keys), request.cost or 1
        )
        response = pb.CheckManyResponse()
        for decision in decisions:
            fill(response.decisions.add(), decision)
        return response

    async def _judge_many(self, request: pb.CheckManyRequest) -> pb.CheckManyResponse:
        if request.keys:
            reject("requests and costs are asked without keys: a key is an attribute of a request")
        each = [_attributes(told.attributes) or {} for told in request.requests]
        response = pb.CheckManyResponse()
        for judged in await self._service.judge_many(
            request.policy, each, request.cost or 1, _costs(request)
        ):
            fill_verdict(response.verdicts.add(), judged)
        return response

    async def peek(self, request: pb.PeekRequest) -> pb.PeekResponse:
        if self._has_limits(request):
            response = pb.PeekResponse()
            fill_verdict(response, await self._service.peek_all(request.policy, _told(request)))
            return response
        decision = await self._service.peek(request.policy, request.key)
        return pb.PeekResponse(decision=decision_message(decision))

    async def forecast(self, request: pb.ForecastRequest) -> pb.ForecastResponse:
        cost = request.cost or 1
        if self._has_limits(request):
            forecast = await self._service.forecast_all(
                request.policy, _told(request), cost, _costs(request)
            )
        else:
            forecast = await self._service.forecast(request.policy, request.key, cost)
        return pb.ForecastResponse(forecast=forecast_message(forecast))

    async def debit(self, request: pb.DebitRequest) -> pb.DebitResponse:
        decision = await self._service.debit(request.policy, request.key, request.tokens or 1)
        return pb.DebitResponse(decision=decision_message(decision))

    async def admit(self, request: pb.AdmitRequest) -> pb.AdmitResponse:
        # `hold` and `value` belong to bidding policies, which other servers of this contract
        # have. They have no effect here, and `policy_denied`, the result of a bid, is never set.
        admission = await self._service.admit(request.policy, request.key, request.cost or 1)
        return pb.AdmitResponse(
            decision=decision_message(admission.decision),
            lease_id=admission.lease_id,
            lease_expires_at=admission.lease_expires_at,
            binding_axis=admission.binding_axis,
        )

    async def release(self, request: pb.ReleaseRequest) -> pb.ReleaseResponse:
        await self._service.release(request.lease_id, request.dropped)
        return pb.ReleaseResponse()

    async def heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        heartbeat = await self._service.heartbeat(list(request.lease_ids))
        return pb.HeartbeatResponse(
            live_ids=heartbeat.live_ids,
            reclaimed_ids=heartbeat.reclaimed_ids,
            next_deadline=heartbeat.next_deadline,
            degraded=heartbeat.degraded,
        )

    async def reserve(self, request: pb.ChargeRequest) -> pb.ChargeResponse:
        reserved = await self._service.reserve(
            request.policy,
            request.key or None,
            _attributes(request.attributes),
            request.cost or 1,
            request.max_wait_ms,
            _costs(request),
        )
        response = pb.ChargeResponse(
            charge_id=reserved.charge_id,
            charged_at=reserved.charged_at,
            starts_at=reserved.starts_at,
            ttl_ms=reserved.ttl_ms,
        )
        if isinstance(reserved.answer, Decision):
            fill(response.decision, reserved.answer)
        else:
            fill_verdict(response, reserved.answer)
        return response

    async def settle(self, request: pb.SettleRequest) -> pb.SettleResponse:
        actual: int | dict[str, int] = request.actual
        if request.by_limit or request.as_reserved:
            actual = _by_limit(request.by_limit)
        settled = await self._service.settlement(request.charge_id, actual)
        uncharged = [pb.LimitUnits(limit=name, units=n) for name, n in settled.uncharged.items()]
        return pb.SettleResponse(settled=settled.settled, uncharged=uncharged)

    async def cancel(self, request: pb.CancelRequest) -> pb.CancelResponse:
        return pb.CancelResponse(cancelled=await self._service.cancel(request.charge_id))

    async def renew(self, request: pb.RenewRequest) -> pb.RenewResponse:
        return pb.RenewResponse(held=await self._service.renew(request.charge_id))

    async def pause(self, request: pb.PauseRequest) -> pb.PauseResponse:
        await self._service.pause(
            request.policy,
            request.until_ms,
            request.key or None,
            _attributes(request.attributes),
            list(request.limits) or None,
        )
        return pb.PauseResponse()

    async def reset(self, request: pb.ResetRequest) -> pb.ResetResponse:
        await self._service.reset(
            request.policy,
            request.key or None,
            _attributes(request.attributes),
            list(request.limits) or None,
        )
        return pb.ResetResponse()


def _decided(decision: Decision) -> pb.CheckResponse:
    response = pb.CheckResponse()
    fill(response.decision, decision)
    return response


def _judged(judged: Judgement) -> pb.CheckResponse:
    response = pb.CheckResponse()
    fill_verdict(response, judged)
    return response


def fill_verdict(response: Any, judged: Judgement) -> None:
    """Copy a verdict into the response of any call that has one."""
    verdict = judged.verdict
    fill(response.decision, verdict.decision)
    enforced = verdict.enforced
    for name, decision in verdict.limits.items():
        limit = response.limits.add(name=name, shadow=name not in enforced)
        fill(limit.decision, decision)
    response.binding = verdict.binding
    response.violated.extend(verdict.violated)
    response.shadowed.extend(verdict.shadowed)


def _attributes(given: Iterable[pb.Attribute]) -> dict[str, Any] | None:
    """None if there are none. The last of a name counts, as in a map of protobuf."""
    return {each.name: each.text or each.number for each in given} or None


def _by_limit(given: Iterable[pb.LimitUnits]) -> dict[str, int]:
    return {each.limit: each.units for each in given}


def _costs(request: Any) -> dict[str, int] | None:
    """None if there are none."""
    return _by_limit(request.costs) or None


def _told(request: Any) -> dict[str, Any]:
    """The attributes, of which a key is one."""
    told = _attributes(request.attributes) or {}
    return told | {"key": request.key} if request.key else told
