"""Open servers for tests, and two kinds of client that knock: ours, and one that was there before.

The second is compiled by the usual compiler from a proto written down from the contract, and is
loaded beside ours in the same process.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest

from penstock import ManualClock, Store
from penstock.service import Service
from penstock.service.grpc import GrpcServer, open_grpc
from penstock.wire.proto import rate_limiter_pb2, rate_limiter_pb2_grpc
from tests.service.worlds import service_on

R = TypeVar("R")

CONTRACT = Path(__file__).parent / "contract"
CALL = "/throttlekit.v1.RateLimiter/"

CLIENTS = ("ours", "existing")


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    atexit.register(loop.close)
    return loop


def run(scenario: Coroutine[Any, Any, R]) -> R:
    """Run to the end, but not for ever. All on one event loop: the library has one queue for the
    whole process, and trips over what is left in it for a loop that was closed."""
    return _loop().run_until_complete(asyncio.wait_for(scenario, 30))


@cache
def existing() -> tuple[Any, Any]:
    """The messages and the stub of a client that knows the contract and not this project."""
    source = "throttlekit/v1/throttlekit.proto"
    with tempfile.TemporaryDirectory() as folder:
        outputs = [f"--python_out={folder}", f"--grpc_python_out={folder}"]
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{CONTRACT}", *outputs, source]
        subprocess.run(command, check=True)
        sys.path.insert(0, folder)
        try:
            messages = importlib.import_module("throttlekit.v1.throttlekit_pb2")
            calls = importlib.import_module("throttlekit.v1.throttlekit_pb2_grpc")
        finally:
            sys.path.remove(folder)
    return messages, calls.RateLimiterStub


def client(name: str) -> tuple[Any, Any]:
    if name == "existing":
        return existing()
    return rate_limiter_pb2, rate_limiter_pb2_grpc.RateLimiterAsyncStub


@dataclass
class Visit:
    """A service behind an open server, and a client in front of it."""

    service: Service
    clock: ManualClock
    server: GrpcServer
    channel: grpc.aio.Channel
    pb: Any
    stub: Any

    def raw(self, call: str) -> Any:
        """A call that sends and receives bytes."""
        return self.channel.unary_unary(CALL + call)

    async def check(self, policy: str = "api", key: str = "a", cost: int = 0, **call: Any) -> Any:
        request = self.pb.CheckRequest(policy=policy, key=key, cost=cost)
        return (await self.stub.Check(request, **call)).decision


@asynccontextmanager
async def visiting(
    name: str = "ours",
    store: Store | None = None,
    server: dict[str, Any] | None = None,
    **service: Any,
) -> AsyncIterator[Visit]:
    """A client of the policies in `tests.service.worlds`, on a clock that is moved by hand."""
    served, clock = service_on(store, **service)
    pb, stub = client(name)
    await served.start()
    try:
        opened = await open_grpc(served, port=0, **(server or {}))
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{opened.port}") as channel:
                yield Visit(served, clock, opened, channel, pb, stub(channel))
        finally:
            await opened.drain(0)
    finally:
        await served.aclose()


async def status(call: Any) -> tuple[grpc.StatusCode, str]:
    """What a call fails with."""
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    return failed.value.code(), failed.value.details() or ""


async def code_of(call: Any) -> grpc.StatusCode:
    """What a call ends with."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK
