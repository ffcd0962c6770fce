"""The service as the gRPC upstream of a real Envoy: what the proxy's own HTTP/2 makes of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from grpc_status import rpc_status

from penstock.wire.proto import rate_limiter_pb2 as pb
from penstock.wire.proto.rate_limiter_pb2_grpc import RateLimiterStub
from tests.servers import require
from tests.servers.envoy import Envoy
from tests.service.grpc.serving import serving

from .test_clients import FILE

RATE_LIMITER = "throttlekit.v1.RateLimiter"
SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.fixture(scope="module")
def envoy() -> Iterator[Envoy]:
    """It asks the health of the service by itself before it lets anyone through."""
    require("envoy")
    with serving(FILE, "memory://", max_streams=2) as port, Envoy(port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def channel(envoy: Envoy) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{envoy.port}") as opened:
        yield opened


def check(channel: grpc.Channel, policy: str = "plenty", **options: Any) -> Any:
    request = pb.CheckRequest(policy=policy, key="one", cost=1)
    return RateLimiterStub(channel).Check(request, timeout=60, **options)


def watch(channel: grpc.Channel, timeout: float = 60) -> Any:
    request = health_pb2.HealthCheckRequest(service=RATE_LIMITER)
    return health_pb2_grpc.HealthStub(channel).Watch(request, timeout=timeout)


def test_decisions_are_made_through_the_proxy(channel: grpc.Channel) -> None:
    """Compressed ones, too, and many at a time, of which none is lost or made twice."""
    first = check(channel).decision.remaining
    gzipped = check(channel, compression=grpc.Compression.Gzip).decision.remaining
    assert first - gzipped == 1
    request = pb.CheckRequest(policy="plenty", key="one", cost=1)
    calls = [RateLimiterStub(channel).Check.future(request, timeout=60) for _ in range(300)]
    remaining = [call.result().decision.remaining for call in calls]
    assert sorted(remaining, reverse=True) == list(range(gzipped - 1, gzipped - 301, -1))


def test_refusals_come_through_with_all_that_they_say(channel: grpc.Channel) -> None:
    """Errors without a body, and the details of the status."""
    with pytest.raises(grpc.RpcError) as unknown:
        check(channel, policy="nope")
    assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
    assert "there is no policy 'nope'" in unknown.value.details()
    held = [_watched(channel, 60) for _ in range(2)]
    with pytest.raises(grpc.RpcError) as refused:
        next(watch(channel))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    told = rpc_status.from_call(refused.value)
    assert told is not None
    assert [detail.type_url.rpartition("/")[2] for detail in told.details] == [
        "google.rpc.RetryInfo"
    ]
    for stream in held:
        stream.cancel()


def test_streams_end_by_their_deadline_or_when_they_are_cancelled(channel: grpc.Channel) -> None:
    """And their places are free again, as soon as the proxy has passed it on."""
    late, cancelled = _watched(channel, 2), _watched(channel, 60)
    cancelled.cancel()
    with pytest.raises(grpc.RpcError) as gone:
        next(cancelled)
    assert gone.value.code() is grpc.StatusCode.CANCELLED
    with pytest.raises(grpc.RpcError) as ended:
        next(late)
    assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    _watched(channel, 60).cancel()


def _watched(channel: grpc.Channel, timeout: float) -> Any:
    """A stream that has a place, which one before it may not have left yet."""
    deadline = time.monotonic() + 30
    while True:
        stream = watch(channel, timeout)
        try:
            assert next(stream).status == SERVING
            return stream
        except grpc.RpcError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_health_and_reflection_are_asked_through_the_proxy(channel: grpc.Channel) -> None:
    asked = health_pb2.HealthCheckRequest(service=RATE_LIMITER)
    assert health_pb2_grpc.HealthStub(channel).Check(asked, timeout=60).status == SERVING
    told = ProtoReflectionDescriptorDatabase(channel)
    assert RATE_LIMITER in told.get_services()
    file = told.FindFileContainingSymbol(RATE_LIMITER)
    assert "CheckRequest" in [message.name for message in file.message_type]


def test_the_answers_of_the_service_break_no_rule_that_the_proxy_knows(
    envoy: Envoy, channel: grpc.Channel
) -> None:
    """By the proxy's own counts."""
    check(channel)
    counts = envoy.stats("cluster.penstock")
    assert counts["cluster.penstock.upstream_cx_protocol_error"] == 0
    assert counts["cluster.penstock.http2.rx_messaging_error"] == 0
    assert counts["cluster.penstock.health_check.success"] > 0
