"""What every gRPC server is expected to have: health and reflection."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from penstock.wire.proto import rate_limiter_pb2 as pb
from tests.service.grpc.servers import Visit, code_of, run, status, visiting

RATE_LIMITER = "throttlekit.v1.RateLimiter"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN

HEALTH = (
    health_pb2.HealthCheckRequest.SerializeToString,
    health_pb2.HealthCheckResponse.FromString,
)
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


def health(visit: Visit, name: str) -> Any:
    call = visit.channel.unary_unary("/grpc.health.v1.Health/Check", *HEALTH)
    return call(health_pb2.HealthCheckRequest(service=name))


def watch(visit: Visit, name: str) -> Any:
    call = visit.channel.unary_stream("/grpc.health.v1.Health/Watch", *HEALTH)
    return call(health_pb2.HealthCheckRequest(service=name))


async def reflected(visit: Visit, *requests: bytes) -> list[Any]:
    call = visit.channel.stream_stream(REFLECTION)
    replies = [reply async for reply in call(iter(requests))]
    return [reflection_pb2.ServerReflectionResponse.FromString(reply) for reply in replies]


def test_the_health_service_answers_for_the_whole_and_by_name() -> None:
    """As probes and load balancers ask it; a name that is not served is not found."""

    async def scenario() -> None:
        async with visiting() as visit:
            for name in ("", RATE_LIMITER):
                assert (await health(visit, name)).status == SERVING
            assert (await status(health(visit, "nope")))[0] is grpc.StatusCode.NOT_FOUND
            bad = visit.channel.unary_unary("/grpc.health.v1.Health/Check")
            assert await code_of(bad(b"\xff")) is grpc.StatusCode.INVALID_ARGUMENT

    run(scenario())


def test_who_watches_the_health_hears_of_the_drain_and_does_not_hold_it_up() -> None:
    """The stream ends by itself, long before the drain's deadline."""

    async def scenario() -> None:
        async with visiting() as visit:
            watched, unknown = watch(visit, RATE_LIMITER), watch(visit, "nope")
            assert (await watched.read()).status == SERVING
            assert (await unknown.read()).status == UNKNOWN
            # The client forgets messages that it was not asked for before the end of the stream.
            heard = asyncio.ensure_future(watched.read())
            await asyncio.sleep(0)
            await asyncio.wait_for(visit.server.drain(20), 5)
            assert (await heard).status == NOT_SERVING
            assert await watched.read() is grpc.aio.EOF
            assert await watched.code() is grpc.StatusCode.OK

    run(scenario())


def test_reflection_tells_a_client_all_it_needs() -> None:
    """The services, and the proto with every message and call."""

    async def scenario() -> None:
        async with visiting() as visit:
            listing = reflection_pb2.ServerReflectionRequest(list_services="")
            symbol = reflection_pb2.ServerReflectionRequest(file_containing_symbol=RATE_LIMITER)
            listed, found = await reflected(
                visit, listing.SerializeToString(), symbol.SerializeToString()
            )
            names = [service.name for service in listed.list_services_response.service]
            assert {RATE_LIMITER, "grpc.health.v1.Health"} <= set(names)
            [file] = found.file_descriptor_response.file_descriptor_proto
            ours = FileDescriptorProto()
            pb.DESCRIPTOR.CopyToProto(ours)
            assert FileDescriptorProto.FromString(file) == ours

    run(scenario())


def test_reflection_survives_bytes_that_are_no_request() -> None:
    """It says that the argument is invalid, on the same stream."""

    async def scenario() -> None:
        async with visiting() as visit:
            good = reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()
            bad, after = await reflected(visit, b"\xff\xff", good)
            assert bad.error_response.error_code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
            assert after.list_services_response.service

    run(scenario())


def test_an_idle_reflection_stream_does_not_hold_up_the_drain() -> None:
    """A console left open somewhere must not cost the whole deadline."""

    async def scenario() -> None:
        async with visiting() as visit:
            stream = visit.channel.stream_stream(REFLECTION)()
            listing = reflection_pb2.ServerReflectionRequest(list_services="")
            await stream.write(listing.SerializeToString())
            await stream.read()
            await asyncio.wait_for(visit.server.drain(20), 5)

    run(scenario())
