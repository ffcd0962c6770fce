"""The two services that every gRPC server is expected to have: health and reflection.

Both have calls that stay open for as long as the client likes. Each takes a place for as long, and
they end by themselves when the door drains, so that they never hold it up.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from ...wire.proto import POOL
from ...wire.proto.fleet_pb2_grpc import FLEET
from ...wire.proto.rate_limiter_pb2_grpc import RATE_LIMITER
from .errors import refuse
from .places import Places

__all__ = ["HEALTH", "Health", "Reflection"]

HEALTH = "grpc.health.v1.Health"
REFLECTION = "grpc.reflection.v1alpha.ServerReflection"

Context = grpc.aio.ServicerContext[Any, Any]
_Status = health_pb2.HealthCheckResponse


class Health:
    """`grpc.health.v1`: serving until the door drains, as a whole ("") and by name."""

    def __init__(self, places: Places, leaving: asyncio.Event) -> None:
        self._places = places
        self._leaving = leaving
        self._known = ("", RATE_LIMITER, FLEET)

    def handlers(self) -> dict[str, Any]:
        return {
            f"/{HEALTH}/Check": grpc.unary_unary_rpc_method_handler(self._check),
            f"/{HEALTH}/Watch": grpc.unary_stream_rpc_method_handler(self._watch),
        }

    async def _check(self, raw: bytes, context: Context) -> bytes:
        if (name := await _service_name(raw, context)) not in self._known:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service here")
        return self._message(name)

    async def _watch(self, raw: bytes, context: Context) -> None:
        if self._places.taken >= self._places.limit:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls are at work")
        name = await _service_name(raw, context)
        self._places.taken += 1
        try:
            await context.write(self._message(name))
            if not self._leaving.is_set():
                await self._leaving.wait()
                await context.write(self._message(name))
        finally:
            self._places.taken -= 1

    def _message(self, name: str) -> bytes:
        if name not in self._known:
            status = _Status.SERVICE_UNKNOWN
        else:
            status = _Status.NOT_SERVING if self._leaving.is_set() else _Status.SERVING
        message: bytes = _Status(status=status).SerializeToString()
        return message


async def _service_name(raw: bytes, context: Context) -> str:
    try:
        name: str = health_pb2.HealthCheckRequest.FromString(raw).service
    except DecodeError as error:
        await refuse(context, error)
    return name


class Reflection:
    """Tells a client without the protos what is served here."""

    def __init__(self, places: Places, leaving: asyncio.Event) -> None:
        self._places = places
        self._leaving = leaving
        # Ours are in a pool of their own; the standard ones join them there.
        for file in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
            POOL.AddSerializedFile(file.serialized_pb)
        names = (RATE_LIMITER, FLEET, HEALTH, REFLECTION)
        self._servicer: Any = reflection.ReflectionServicer(names, POOL)

    def handlers(self) -> dict[str, Any]:
        handler = grpc.stream_stream_rpc_method_handler(self._info)
        return {f"/{REFLECTION}/ServerReflectionInfo": handler}

    async def _info(self, requests: Any, context: Context) -> None:
        leaving = asyncio.ensure_future(self._leaving.wait())
        self._places.taken += 1
        try:
            while (raw := await _next(requests, leaving)) is not None:
                request = _reflection_request(raw)
                for response in self._servicer.ServerReflectionInfo(iter((request,)), context):
                    await context.write(response.SerializeToString())
        finally:
            self._places.taken -= 1
            leaving.cancel()


async def _next(requests: Any, leaving: asyncio.Future[Any]) -> bytes | None:
    """The next request; None after the last one, or once the door drains."""
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
