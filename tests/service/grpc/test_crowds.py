"""Many calls at once: within the bounds each is answered, beyond them each is told to come back."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from penstock.wire.proto import rate_limiter_pb2 as pb
from tests.service.grpc.servers import CALL, run, visiting
from tests.service.grpc.serving import serving
from tests.service.grpc.test_bounds import SlowStore, until

POLICIES = """
version: 1
limiters:
  plenty: {strategy: tokenBucket, capacity: 1000000, refillPerSec: 1000000}
"""
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
REQUEST = pb.CheckRequest(policy="plenty", key="k").SerializeToString()
ALONE = [("grpc.use_local_subchannel_pool", 1)]


async def crowd(port: int, channels: int, calls: int) -> Counter[str]:
    """How so many calls on so many connections end, all begun at once."""
    ends: Counter[str] = Counter()

    async def ask(channel: grpc.aio.Channel) -> None:
        try:
            await channel.unary_unary(CALL + "Check")(REQUEST, timeout=60)
        except grpc.aio.AioRpcError as error:
            ends[f"{error.code().name}: {error.details()}"] += 1
        else:
            ends["OK"] += 1

    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(
                grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=ALONE)
            )
            for _ in range(channels)
        ]
        await asyncio.gather(*(channel.channel_ready() for channel in opened))
        await asyncio.gather(*(ask(channel) for channel in opened for _ in range(calls)))
    return ends


@pytest.mark.parametrize(("channels", "calls"), [(20, 200), (1, 1_000), (100, 32)])
def test_no_call_of_a_crowd_is_cut_off(channels: int, calls: int) -> None:
    """Those that the connection has no room for wait at the client, the others at the server."""
    with serving(POLICIES, "memory://") as port:
        for _ in range(2):
            assert run(crowd(port, channels, calls)) == {"OK": channels * calls}


async def refused(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    return failed.value


def test_calls_beyond_the_bound_are_told_when_to_come_back_and_counted() -> None:
    """All of them, and not all at the same time."""

    async def scenario() -> None:
        store = SlowStore()
        async with visiting(store=store, server={"max_concurrent": 10}) as visit:
            held = [asyncio.ensure_future(visit.check(key=str(n))) for n in range(10)]
            await until(lambda: store.waiting == 10)
            errors = await asyncio.gather(*(refused(visit.check()) for _ in range(500)))
            assert {error.code() for error in errors} == {EXHAUSTED}
            delays = [pushback_ms(error) for error in errors]
            assert all(500 <= delay <= 1_500 for delay in delays)
            assert len(set(delays)) > 10
            assert [retry_info_ms(error) for error in errors] == delays
            counted = visit.service.snapshot()
            assert counted.grpc_shed == 500
            assert counted.grpc_codes == {"RESOURCE_EXHAUSTED": 500}
            store.gate.set()
            await asyncio.gather(*held)

    run(scenario())


def pushback_ms(error: grpc.aio.AioRpcError) -> int:
    return int(dict(error.trailing_metadata())["grpc-retry-pushback-ms"])


def retry_info_ms(error: grpc.aio.AioRpcError) -> int:
    """As a program finds it with the usual library, which checks code and text as well."""
    status = rpc_status.from_call(error)
    assert status is not None
    [detail] = status.details
    info = error_details_pb2.RetryInfo()
    assert detail.Unpack(info)
    return int(info.retry_delay.ToMilliseconds())


RETRYING = json.dumps(
    {
        "methodConfig": [
            {
                "name": [{}],
                "retryPolicy": {
                    "maxAttempts": 3,
                    "initialBackoff": "30s",
                    "maxBackoff": "30s",
                    "backoffMultiplier": 1,
                    "retryableStatusCodes": ["RESOURCE_EXHAUSTED"],
                },
            }
        ]
    }
)


def test_a_client_with_a_retry_policy_comes_back_by_itself() -> None:
    """When it was told to, and not when its own policy would have said."""

    async def scenario() -> None:
        store = SlowStore()
        async with visiting(store=store, server={"max_concurrent": 1}) as visit:
            target = f"127.0.0.1:{visit.server.port}"
            options = [("grpc.service_config", RETRYING), *ALONE]
            async with grpc.aio.insecure_channel(target, options=options) as channel:
                held = asyncio.ensure_future(visit.check(key="held"))
                await until(lambda: store.waiting == 1)
                request = pb.CheckRequest(policy="api", key="a").SerializeToString()
                call = channel.unary_unary(CALL + "Check")(request)
                await until(lambda: visit.service.snapshot().grpc_shed == 1)
                store.gate.set()
                await held
                answer = pb.CheckResponse.FromString(await asyncio.wait_for(call, 20))
                assert answer.decision.allowed

    run(scenario())
