"""The calls of the limiter and of charges: receive, parse, ask the service, render.

Each is one message in and one out. To the library they are declared as streams of messages coming
in, since of a single message it takes the reception, the parsing and the failures of both upon
itself: bytes that are no message end as UNKNOWN with a traceback, and a call whose message never
comes is kept for ever. Here the first is INVALID_ARGUMENT, and the second has a time to come.

A call whose deadline has passed by the time its turn comes is refused before it can spend
anything: under load that is when nobody waits for the answer any more. A caller who cancels
cancels the coroutine, and with it the wait for the store.
"""

from __future__ import annotations

from asyncio import CancelledError, Task, current_task
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from time import monotonic, perf_counter
from typing import Any, cast

import grpc
from google.protobuf.message import Message

from ...core._decision import Decision
from ...wire import decision_message, fill, forecast_message
from ...wire.proto import rate_limiter_pb2 as pb
from ...wire.proto.rate_limiter_pb2_grpc import (
    CHARGES,
    CHARGES_METHODS,
    RATE_LIMITER,
    RATE_LIMITER_METHODS,
)
from .._core import Service
from .._several import Judgement
from ._errors import DeadlineError, refuse
from ._places import Places, required

__all__ = ["GrpcAnswers", "handlers", "unary"]

Context = grpc.aio.ServicerContext[Any, Any]
Answer = Callable[[Any], Awaitable[Message]]
Method = Callable[[object, Context], Awaitable[bytes]]


def handlers(service: Service, places: Places) -> dict[str, Any]:
    """What the library calls, by the full name of the method."""
    answers = GrpcAnswers(service)
    observe = service.metrics.latency("grpc").observe
    codes = service.metrics.grpc.codes
    made = {}
    calls = ((RATE_LIMITER, RATE_LIMITER_METHODS), (CHARGES, CHARGES_METHODS))
    for server, methods in calls:
        for name, (request, _) in methods.items():
            method = unary(request.FromString, answers.named(name), places, observe, codes)
            made[f"/{server}/{name}"] = grpc.stream_unary_rpc_method_handler(method)
    return made


def unary(
    parse: Callable[[bytes], Any],
    answer: Answer,
    places: Places,
    observe: Callable[[float], None],
    codes: Counter[str],
) -> Method:
    """One coroutine for all of a call: each further one would cost Check a percent or two. It runs
    in a task of its own, which ends when the library has sent the reply."""
    waiting, answering, leave = places.waiting, places.answering, places.leave

    async def method(_: object, context: Context) -> bytes:
        task = cast("Task[Any]", current_task())
        waiting[task] = monotonic()
        places.taken += 1
        task.add_done_callback(leave)
        try:
            try:
                raw = await context.read()
            except CancelledError:
                if task in waiting:
                    raise
                raise places.too_late() from None
            finally:
                waiting.pop(task, None)
            began = perf_counter()
            request = parse(required(raw))
            if context.time_remaining() == 0:
                raise DeadlineError("the deadline passed before the call could be answered")
            response = (await answer(request)).SerializeToString()
        except Exception as error:
            await refuse(context, error, codes)
        observe(perf_counter() - began)
        codes["OK"] += 1
        answering[task] = monotonic(), context
        return response

    return method


class GrpcAnswers:
    """The service, asked in messages. Numbers that are 0 were left out, and mean 1."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def named(self, call: str) -> Answer:
        """The method for a call of the proto: CheckMany is check_many."""
        name = "".join(f"_{c.lower()}" if c.isupper() else c for c in call).lstrip("_")
        return cast(Answer, getattr(self, name))

    async def check(self, request: pb.CheckRequest) -> pb.CheckResponse:
        response = pb.CheckResponse()
        if request.attributes:
            judged = self._service.judge(request.policy, _told(request), request.cost or 1)
            fill_verdict(response, judged if isinstance(judged, Judgement) else await judged())
            return response
        asked = self._service.decide(request.policy, request.key, request.cost or 1)
        fill(response.decision, asked if isinstance(asked, Decision) else await asked())
        return response

    async def check_many(self, request: pb.CheckManyRequest) -> pb.CheckManyResponse:
        decisions = await self._service.check_many(
            request.policy, list(request.keys), request.cost or 1
        )
        response = pb.CheckManyResponse()
        for decision in decisions:
            fill(response.decisions.add(), decision)
        return response

    async def peek(self, request: pb.PeekRequest) -> pb.PeekResponse:
        if request.attributes:
            response = pb.PeekResponse()
            fill_verdict(response, await self._service.peek_all(request.policy, _told(request)))
            return response
        decision = await self._service.peek(request.policy, request.key)
        return pb.PeekResponse(decision=decision_message(decision))

    async def forecast(self, request: pb.ForecastRequest) -> pb.ForecastResponse:
        cost = request.cost or 1
        if request.attributes:
            forecast = await self._service.forecast_all(request.policy, _told(request), cost)
        else:
            forecast = await self._service.forecast(request.policy, request.key, cost)
        return pb.ForecastResponse(forecast=forecast_message(forecast))

    async def debit(self, request: pb.DebitRequest) -> pb.DebitResponse:
        decision = await self._service.debit(request.policy, request.key, request.tokens or 1)
        return pb.DebitResponse(decision=decision_message(decision))

    async def admit(self, request: pb.AdmitRequest) -> pb.AdmitResponse:
        # `hold` and `value` are terms of a bidding policy, which other servers of this contract
        # have: without effect here, as `policy_denied`, which tells of a bid, is never set.
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
        )

    async def reserve(self, request: pb.ChargeRequest) -> pb.ChargeResponse:
        reserved = await self._service.reserve(
            request.policy,
            request.key or None,
            _attributes(request.attributes),
            request.cost or 1,
            request.max_wait_ms,
        )
        response = pb.ChargeResponse(charge_id=reserved.charge_id, starts_at=reserved.starts_at)
        if isinstance(reserved.answer, Decision):
            fill(response.decision, reserved.answer)
        else:
            fill_verdict(response, reserved.answer)
        return response

    async def settle(self, request: pb.SettleRequest) -> pb.SettleResponse:
        actual: int | dict[str, int] = request.actual
        if request.by_limit or request.as_reserved:
            actual = {each.limit: each.units for each in request.by_limit}
        settled = await self._service.settle(request.charge_id, actual)
        return pb.SettleResponse(settled=settled)

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


def _told(request: Any) -> dict[str, Any]:
    """The attributes, of which a key is one."""
    told = _attributes(request.attributes) or {}
    return told | {"key": request.key} if request.key else told
