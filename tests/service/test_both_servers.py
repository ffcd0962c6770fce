"""One limit behind every server: two service processes, HTTP and gRPC, one store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from penstock.wire.proto import rate_limiter_pb2 as pb
from penstock.wire.proto.rate_limiter_pb2_grpc import RateLimiterStub
from tests.servers import Valkey, require
from tests.service.http.serving import Client, Penstock

POLICIES = """
version: 1
limiters:
  fifty: {strategy: fixedWindow, limit: 50, window: 1h, anchor: first}
  model:
    tokenBudget: {budget: 1000, window: 30d}
    concurrency: {minLimit: 20, maxLimit: 20, leaseTtl: 1m}
"""


def test_two_services_and_both_servers_at_once_admit_exactly_the_limit(tmp_path: Path) -> None:
    """200 concurrent requests at a limit of 50, a quarter through each server of each process."""
    require("valkey")
    file = tmp_path / "penstock.yaml"
    file.write_text(POLICIES)
    with ExitStack() as stack:
        store = f"{stack.enter_context(Valkey()).url}?timeout_ms=20000"
        flags = ("--config", str(file), "--store", store, "--fail", "closed")
        services = [stack.enter_context(Penstock(*flags, grpc=True)) for _ in range(2)]
        channels = [
            stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{service.grpc_port}"))
            for service in services
        ]
        stubs = [RateLimiterStub(channel) for channel in channels]

        def ask(number: int) -> bool:
            which, over_http = number % 2, number % 4 < 2
            if not over_http:
                request = pb.CheckRequest(policy="fifty", key="k")
                reply = stubs[which].Check(request, timeout=20, wait_for_ready=True)
                return bool(reply.decision.allowed)
            client = Client(services[which].port, timeout=20)
            try:
                return client.post("/check", {"policy": "fifty", "key": "k"}).status == 200
            finally:
                client.close()

        with ThreadPoolExecutor(50) as crowd:
            assert sum(crowd.map(ask, range(200))) == 50


@pytest.mark.parametrize("kind", ["memory", "valkey"])
def test_an_estimate_beyond_the_budget_is_refused_over_http_and_grpc(
    tmp_path: Path, kind: str
) -> None:
    """Although some is left; what fits is let in, and charged when it is debited."""
    file = tmp_path / "penstock.yaml"
    file.write_text(POLICIES)
    with ExitStack() as stack:
        store = "memory://"
        if kind == "valkey":
            require("valkey")
            store = f"{stack.enter_context(Valkey()).url}?timeout_ms=20000"
        service = stack.enter_context(
            Penstock("--config", str(file), "--store", store, "--fail", "closed", grpc=True)
        )
        address = f"127.0.0.1:{service.grpc_port}"
        stub = RateLimiterStub(stack.enter_context(grpc.insecure_channel(address)))
        client = Client(service.port, timeout=20)
        stack.callback(client.close)

        def over_http(cost: int) -> tuple[bool, str, int]:
            told = client.post("/v1/admit", {"policy": "model", "key": "k", "cost": cost}).json
            return told["decision"]["allowed"], told["binding_axis"], told["decision"]["remaining"]

        def over_grpc(cost: int) -> tuple[bool, str, int]:
            request = pb.AdmitRequest(policy="model", key="k", cost=cost)
            told = stub.Admit(request, timeout=20, wait_for_ready=True)
            return told.decision.allowed, told.binding_axis, told.decision.remaining

        debited = client.post("/v1/debit", {"policy": "model", "key": "k", "tokens": 995})
        assert debited.json["decision"]["remaining"] == 5
        for admit in (over_http, over_grpc):
            assert admit(6) == (False, "cost", 5)
            assert admit(1_001) == (False, "cost", 5)
            assert admit(5) == (True, "", 5)
        stub.Debit(pb.DebitRequest(policy="model", key="k", tokens=5), timeout=20)
        for admit in (over_http, over_grpc):
            assert admit(1) == (False, "cost", 0)
