"""The eight calls: parse, ask the service, render.

Messages come and go as bytes, and are parsed here rather than by the library, which would answer
UNKNOWN and log a traceback for bytes that are no message. An answer is a coroutine from request to
response; `unary` makes a method of it, with the errors and the clock watched in one place.

A call whose deadline has passed by the time its turn comes is refused before it can spend
anything: under load that is when nobody waits for the answer any more. A caller who cancels
cancels the coroutine, and with it the wait for the store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from ...core.errors import PenstockError
from ...wire.messages import decision_message, fill, forecast_message
from ...wire.proto import rate_limiter_pb2 as pb
from ...wire.proto.rate_limiter_pb2_grpc import RATE_LIMITER, RATE_LIMITER_METHODS
from ..core import Service
from .errors import DeadlineError, refuse

__all__ = ["Answers", "methods"]

Context = grpc.aio.ServicerContext[Any, Any]
Method = Callable[[bytes, Context], Awaitable[bytes]]
Request = TypeVar("Request", bound=Message)


def methods(service: Service) -> dict[str, Method]:
    """What answers each call, by its full name."""
    answers = Answers(service)
    observe = service.metrics.latency("grpc").observe
    return {
        f"/{RATE_LIMITER}/{name}": unary(request.FromString, answers.named(name), observe)
        for name, (request, _) in RATE_LIMITER_METHODS.items()
    }


def unary(
    parse: Callable[[bytes], Any],
    answer: Callable[[Any], Awaitable[Message]],
    observe: Callable[[float], None],
) -> Method:
    async def method(raw: bytes, context: Context) -> bytes:
        began = perf_counter()
        try:
            request = parse(raw)
            if context.time_remaining() == 0:
                raise DeadlineError("the deadline passed before the call could be answered")
            response = (await answer(request)).SerializeToString()
        except Exception as error:
            await refuse(context, error)
        finally:
            observe(perf_counter() - began)
        return response

    return method


class Answers:
    """The service, asked in messages. Numbers that are 0 were left out, and mean 1."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._checker = service.checker

    def named(self, call: str) -> Callable[[Any], Awaitable[Message]]:
        """The method for a call of the proto: CheckMany is check_many."""
        name = "".join(f"_{c.lower()}" if c.isupper() else c for c in call).lstrip("_")
        answer: Callable[[Any], Awaitable[Message]] = getattr(self, name)
        return answer

    async def check(self, request: pb.CheckRequest) -> pb.CheckResponse:
        policy, key, cost = request.policy, request.key, request.cost or 1
        check = self._checker(policy)
        if check is None:
            decision = await self._service.check(policy, key, cost)
        else:
            try:
                decision = check(key, cost)
            except PenstockError:
                # The long way round knows what the policy answers in place of an error.
                decision = await self._service.check(policy, key, cost)
        response = pb.CheckResponse()
        fill(response.decision, decision)
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
        decision = await self._service.peek(request.policy, request.key)
        return pb.PeekResponse(decision=decision_message(decision))

    async def forecast(self, request: pb.ForecastRequest) -> pb.ForecastResponse:
        forecast = await self._service.forecast(request.policy, request.key, request.cost or 1)
        return pb.ForecastResponse(forecast=forecast_message(forecast))

    async def debit(self, request: pb.DebitRequest) -> pb.DebitResponse:
        decision = await self._service.debit(request.policy, request.key, request.tokens or 1)
        return pb.DebitResponse(decision=decision_message(decision))

    async def admit(self, request: pb.AdmitRequest) -> pb.AdmitResponse:
        admission = await self._service.admit(
            request.policy,
            request.key,
            cost=request.cost or 1,
            hold=request.hold or 1,
            value=request.value,
        )
        return pb.AdmitResponse(
            decision=decision_message(admission.decision),
            lease_id=admission.lease_id,
            lease_expires_at=admission.lease_expires_at,
            binding_axis=admission.binding_axis,
            policy_denied=admission.policy_denied,
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
