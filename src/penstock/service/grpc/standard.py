"""The two services that every gRPC server is expected to have: health and reflection.

Both have calls that stay open for as long as the client likes, and probes carry no token. So these
calls have places of their own, of which a stranger may take all without keeping out a call that
decides something; and they end by themselves when the server drains, so that they never hold it up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from ...wire.proto import POOL
from ...wire.proto.fleet_pb2_grpc import FLEET
from ...wire.proto.rate_limiter_pb2_grpc import RATE_LIMITER
from ..core import Service
from .calls import unary
from .errors import UnknownServiceError, refuse
from .places import Places

__all__ = ["HEALTH", "HEALTH_CHECK", "HEALTH_WATCH", "REFLECTION_INFO", "Health", "Reflection"]

HEALTH = "grpc.health.v1.Health"
HEALTH_CHECK = f"/{HEALTH}/Check"
HEALTH_WATCH = f"/{HEALTH}/Watch"
REFLECTION = "grpc.reflection.v1alpha.ServerReflection"
REFLECTION_INFO = f"/{REFLECTION}/ServerReflectionInfo"

Context = grpc.aio.ServicerContext[Any, Any]
_Status = health_pb2.HealthCheckResponse
_parse = health_pb2.HealthCheckRequest.FromString

_LOOK_EVERY_S = 1.0


class Health:
    """`grpc.health.v1`, for the whole ("") and by name: serving while the service is ready, as by
    `/ready`, and the server does not drain.

    `probes` holds Check to its times, and to no number: a probe that is refused when there are many
    would have a service restarted for being asked.
    """

    def __init__(
        self,
        service: Service,
        probes: Places,
        watches: Places,
        leaving: asyncio.Event,
        codes: Counter[str],
    ) -> None:
        self._service = service
        self._look: asyncio.Future[bool] | None = None
        self._look_again_at = 0.0
        self._probes = probes
        self._watches = watches
        self._leaving = leaving
        self._codes = codes
        self._known = ("", RATE_LIMITER, FLEET)

    def handlers(self) -> dict[str, Any]:
        check = unary(_parse, self._check, self._probes, _unseen, self._codes)
        return {
            HEALTH_CHECK: grpc.stream_unary_rpc_method_handler(check),
            HEALTH_WATCH: grpc.stream_stream_rpc_method_handler(self._watch),
        }

    async def _check(self, request: Any) -> Any:
        if request.service not in self._known:
            raise UnknownServiceError("there is no such service here")
        return self._message(request.service, await self._service.decides())

    async def _watch(self, _: object, context: Context) -> None:
        try:
            name = _parse(await self._watches.first_message(context)).service
        except Exception as error:
            await refuse(context, error, self._codes)
        told = None
        while True:
            leaving = self._leaving.is_set()
            message = self._message(name, await self._was_ready())
            if message != told:
                await context.write(message.SerializeToString())
                told = message
            if leaving:
                break
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), _LOOK_EVERY_S)
        self._codes["OK"] += 1

    async def _was_ready(self) -> bool:
        """Whether the service is ready, as of a moment ago: one look for all who watch."""
        now = asyncio.get_running_loop().time()
        if self._look is None or (self._look.done() and now >= self._look_again_at):
            self._look = asyncio.ensure_future(self._service.decides())
            self._look_again_at = now + _LOOK_EVERY_S
        # Who stops watching does not end it for the others.
        return await asyncio.shield(self._look)

    def _message(self, name: str, ready: bool) -> Any:
        if name not in self._known:
            return _Status(status=_Status.SERVICE_UNKNOWN)
        serving = ready and not self._leaving.is_set()
        return _Status(status=_Status.SERVING if serving else _Status.NOT_SERVING)


def _unseen(seconds: float) -> None:
    """The time that a probe takes says nothing about requests."""


class Reflection:
    """Tells a client without the protos what is served here."""

    def __init__(self, places: Places, leaving: asyncio.Event, codes: Counter[str]) -> None:
        self._places = places
        self._leaving = leaving
        self._codes = codes
        # Ours are in a pool of their own; the standard ones join them there.
        for file in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
            POOL.AddSerializedFile(file.serialized_pb)
        names = (RATE_LIMITER, FLEET, HEALTH, REFLECTION)
        self._servicer: Any = reflection.ReflectionServicer(names, POOL)

    def handlers(self) -> dict[str, Any]:
        return {REFLECTION_INFO: grpc.stream_stream_rpc_method_handler(self._info)}

    async def _info(self, requests: Any, context: Context) -> None:
        leaving = asyncio.ensure_future(self._leaving.wait())
        self._places.taken += 1
        try:
            while (raw := await _next(requests, leaving)) is not None:
                request = _reflection_request(raw)
                for response in self._servicer.ServerReflectionInfo(iter((request,)), context):
                    await context.write(response.SerializeToString())
            self._codes["OK"] += 1
        finally:
            self._places.taken -= 1
            leaving.cancel()


async def _next(requests: Any, leaving: asyncio.Future[Any]) -> bytes | None:
    """The next request; None after the last one, or once the server drains."""
    coming = asyncio.ensure_future(anext(requests, None))
    try:
        await asyncio.wait((coming, leaving), return_when=asyncio.FIRST_COMPLETED)
        return coming.result() if coming.done() else None
    finally:
        coming.cancel()


def _reflection_request(raw: bytes) -> Any:
    """Bytes that are no request become one that asks for nothing, and is answered so."""
    try:
        return reflection_pb2.ServerReflectionRequest.FromString(raw)
    except DecodeError:
        return reflection_pb2.ServerReflectionRequest()
