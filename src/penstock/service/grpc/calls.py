"""The eight calls: receive, parse, ask the service, render.

Each is one message in and one out. To the library they are declared as streams of messages coming
in, since of a single message it takes the reception, the parsing and the failures of both upon
itself: bytes that are no message end as UNKNOWN with a traceback, and a call whose message never
comes is kept for ever. Here the first is INVALID_ARGUMENT and the second has `ARRIVAL_S` to come.

A call whose deadline has passed by the time its turn comes is refused before it can spend
anything: under load that is when nobody waits for the answer any more. A caller who cancels
cancels the coroutine, and with it the wait for the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any, cast

import grpc
from google.protobuf.message import Message

from ...core.errors import ConfigInvalidError, PenstockError
from ...wire.messages import decision_message, fill, forecast_message
from ...wire.proto import rate_limiter_pb2 as pb
from ...wire.proto.rate_limiter_pb2_grpc import RATE_LIMITER, RATE_LIMITER_METHODS
from ..core import Service
from .errors import DeadlineError, refuse

__all__ = ["ARRIVAL_S", "Answers", "handlers"]

ARRIVAL_S = 10.0
"""How long the message of a call may take to arrive."""

Context = grpc.aio.ServicerContext[Any, Any]
Answer = Callable[[Any], Awaitable[Message]]
Method = Callable[[object, Context], Awaitable[bytes]]


def handlers(service: Service, arrival_s: float = ARRIVAL_S) -> dict[str, Any]:
    """What the library calls, by the full name of the method."""
    answers = Answers(service)
    observe = service.metrics.latency("grpc").observe
    return {
        f"/{RATE_LIMITER}/{name}": grpc.stream_unary_rpc_method_handler(
            _method(request.FromString, answers.named(name), observe, arrival_s)
        )
        for name, (request, _) in RATE_LIMITER_METHODS.items()
    }


def _method(
    parse: Callable[[bytes], Any],
    answer: Answer,
    observe: Callable[[float], None],
    arrival_s: float,
) -> Method:
    async def method(_: object, context: Context) -> bytes:
        try:
            raw = await _message(context, arrival_s)
            began = perf_counter()
            request = parse(raw)
            if context.time_remaining() == 0:
                raise DeadlineError("the deadline passed before the call could be answered")
            response = (await answer(request)).SerializeToString()
        except Exception as error:
            await refuse(context, error)
        observe(perf_counter() - began)
        return response

    return method


async def _message(context: Context, arrival_s: float) -> bytes:
    """The message of the call, in time."""
    task = asyncio.current_task()
    assert task is not None
    late = _Late(task)
    timer = task.get_loop().call_later(arrival_s, late)
    try:
        raw = await context.read()
    except asyncio.CancelledError:
        if not late.passed:
            raise
        raise DeadlineError(f"the request did not arrive within {arrival_s:g} s") from None
    finally:
        timer.cancel()
    if not isinstance(raw, bytes):
        raise ConfigInvalidError("the call came without a message")
    return raw


class _Late:
    """Cancels a task, and remembers that it was not the caller who did."""

    __slots__ = ("passed", "task")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.passed = False

    def __call__(self) -> None:
        self.passed = True
        self.task.cancel()


class Answers:
    """The service, asked in messages. Numbers that are 0 were left out, and mean 1."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._checker = service.checker

    def named(self, call: str) -> Answer:
        """The method for a call of the proto: CheckMany is check_many."""
        name = "".join(f"_{c.lower()}" if c.isupper() else c for c in call).lstrip("_")
        return cast(Answer, getattr(self, name))

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
