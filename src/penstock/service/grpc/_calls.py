"""The eight calls: receive, parse, ask the service, render.

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
from collections.abc import Awaitable, Callable
from time import monotonic, perf_counter
from typing import Any, cast

import grpc
from google.protobuf.message import Message

from ...core._decision import Decision
from ...wire.messages import decision_message, fill, forecast_message
from ...wire.proto import rate_limiter_pb2 as pb
from ...wire.proto.rate_limiter_pb2_grpc import RATE_LIMITER, RATE_LIMITER_METHODS
from .._core import Service
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
    for name, (request, _) in RATE_LIMITER_METHODS.items():
        method = unary(request.FromString, answers.named(name), places, observe, codes)
        made[f"/{RATE_LIMITER}/{name}"] = grpc.stream_unary_rpc_method_handler(method)
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
        asked = self._service.decide(request.policy, request.key, request.cost or 1)
        response = pb.CheckResponse()
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
        decision = await self._service.peek(request.policy, request.key)
        return pb.PeekResponse(decision=decision_message(decision))

    async def forecast(self, request: pb.ForecastRequest) -> pb.ForecastResponse:
        forecast = await self._service.forecast(request.policy, request.key, request.cost or 1)
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
