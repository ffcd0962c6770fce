"""`penstock serve` itself, in processes of its own, as an existing client meets it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from tests.servers import Valkey, require
from tests.servers.process import Port
from tests.service.grpc.servers import existing, run
from tests.service.grpc.serving import serving

LIMIT = 1_000_000
FILE = f"""
version: 1
limiters:
  plenty: {{strategy: fixedWindow, limit: {LIMIT}, window: 1h, anchor: first, fail: error}}
"""

SERVE = """
import json, sys
from penstock.service._options import ServeOptions
from penstock.service._supervisor import serve
if __name__ == "__main__":
    sys.exit(serve(ServeOptions(**json.loads(sys.argv[1]))))
"""


@contextmanager
def served(folder: Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A running `serve`; stopped with the block if it was not before."""
    script, config = folder / "serve_it.py", folder / "penstock.yaml"
    script.write_text(SERVE)
    config.write_text(FILE)
    told = json.dumps({"http_port": 0, "config": str(config), **options})
    command = [sys.executable, str(script), told]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as it:
        try:
            assert it.stdout is not None
            assert "penstock serves" in it.stdout.readline()
            yield it
        finally:
            it.terminate()
            it.communicate(timeout=20)


def spent(port: int) -> int:
    """What the store holds against the key, by a service that was not there before."""

    async def ask() -> int:
        pb, stub = existing()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            reply = await stub(channel).Peek(pb.PeekRequest(policy="plenty", key="shared"))
            return LIMIT - int(reply.decision.remaining)

    return int(run(ask()))


async def knock(port: int, heard: Counter[str], stop: asyncio.Event) -> None:
    """Ask over a connection of its own until told that the service is gone."""
    pb, stub = existing()
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        check = stub(channel).Check
        while not stop.is_set():
            try:
                reply = await check(pb.CheckRequest(policy="plenty", key="shared"), timeout=20)
            except grpc.aio.AioRpcError as error:
                heard[error.code().name] += 1
                return
            heard["allowed" if reply.decision.allowed else "denied"] += 1


@pytest.mark.parametrize("workers", [1, 2])
def test_a_signal_under_load_leaves_no_admitted_call_unanswered(
    tmp_path: Path, workers: int
) -> None:
    """What the store has counted, callers have heard of, to the last one."""
    require("valkey")

    async def scenario(process: subprocess.Popen[str], port: int) -> Counter[str]:
        heard: Counter[str] = Counter()
        stop = asyncio.Event()
        knocks = asyncio.gather(*(knock(port, heard, stop) for _ in range(12)))
        await asyncio.sleep(0.4)
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(knocks, 20)
        return heard

    with Valkey() as server:
        held = Port()
        # Only the number is wanted: the service has to take the port for itself.
        port = held.number
        held.release()
        with served(tmp_path, store=server.patient_url, grpc_port=port, workers=workers) as process:
            heard = run(scenario(process, port))
            assert process.wait(20) == 0
        with serving(FILE, server.patient_url) as again:
            assert heard["allowed"] == spent(again) > 0
    assert heard["UNAVAILABLE"] == 12, heard


def test_a_probe_finds_the_service_up_and_a_token_keeps_strangers_out(tmp_path: Path) -> None:
    """The flags reach the server: the health service is open, the calls are not."""
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")

    async def scenario(port: int) -> None:
        pb, stub = existing()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            probe = channel.unary_unary("/grpc.health.v1.Health/Check")
            answer = health_pb2.HealthCheckResponse.FromString(await probe(b""))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            request = pb.CheckRequest(policy="plenty", key="a")
            with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
                await stub(channel).Check(request)
            bearer = (("authorization", f"Bearer {token.read_text().strip()}"),)
            reply = await stub(channel).Check(request, metadata=bearer)
            assert reply.decision.remaining == LIMIT - 1

    held = Port()
    port = held.number
    held.release()
    with served(tmp_path, grpc_port=port, token_file=str(token)):
        run(scenario(port))
