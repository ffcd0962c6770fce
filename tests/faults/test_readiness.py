"""Whether a service is ready while its store is stopped: that is up to the fail modes, and both
servers say the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from tests.servers import NotReady, Valkey, eventually, require
from tests.service.http.serving import Client, Penstock

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

LIMIT = "strategy: fixedWindow, limit: 50, window: 1h"
FILES = {
    "open": f"a: {{{LIMIT}}}",
    "closed": f"a: {{{LIMIT}, fail: closed}}\n  b: {{{LIMIT}}}",
    "error": f"a: {{{LIMIT}}}\n  b: {{{LIMIT}, fail: error}}",
    "slots": "a: {concurrency: {minLimit: 2, maxLimit: 2}, fail: error}",
}
READY_WITHOUT_STORE = {"open": True, "closed": True, "error": True, "slots": False}


class Probed:
    """A service, and what its probes see."""

    def __init__(self, stack: ExitStack, service: Penstock) -> None:
        self.service = service
        channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{service.grpc_port}"))
        self.health = HealthStub(channel)  # type: ignore[no-untyped-call]

    def get(self, path: str) -> tuple[int, Any]:
        client = Client(self.service.port)
        try:
            reply = client.get(path)
            return reply.status, reply.json
        finally:
            client.close()

    def status(self, name: str = "") -> int:
        request = health_pb2.HealthCheckRequest(service=name)
        return int(self.health.Check(request, timeout=10, wait_for_ready=True).status)

    def has_store(self) -> None:
        if self.get("/ready?store=1")[0] != 200:
            raise NotReady("no store")

    def agree_on(self, ready: bool, store: bool) -> None:
        """Every probe says so, and the store's state is told whatever the status is."""
        status, body = self.get("/ready")
        assert (status, body["ready"]) == (200 if ready else 503, ready)
        assert (body["store_reachable"], body["store_full"]) == (store, False)
        strict, body = self.get("/ready?store=1")
        assert (strict, body["ready"]) == (200 if ready and store else 503, ready and store)
        for name in ("", "throttlekit.v1.RateLimiter"):
            assert self.status(name) == (SERVING if ready else NOT_SERVING)
        assert self.get("/health")[0] == 200


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as held:
        yield held


def test_readiness_follows_the_fail_modes_on_both_servers(stack: ExitStack, tmp_path: Path) -> None:
    """Open and closed policies decide without their store; those that answer with an error do not,
    be they of slots alone, and take the service out, until the store is back, if there are no
    others."""
    require("valkey")
    valkey = stack.enter_context(Valkey())
    probed: dict[str, Probed] = {}
    for name, policies in FILES.items():
        file = tmp_path / f"{name}.yaml"
        file.write_text(f"version: 1\nlimiters:\n  {policies}\n")
        flags = ("--config", str(file), "--store", f"{valkey.url}?timeout_ms=2000")
        probed[name] = Probed(stack, stack.enter_context(Penstock(*flags, grpc=True)))
    request = health_pb2.HealthCheckRequest(service="")
    watched = {name: one.health.Watch(request, timeout=120) for name, one in probed.items()}
    for name, one in probed.items():
        one.agree_on(ready=True, store=True)
        assert next(watched[name]).status == SERVING
    valkey.kill()
    for name, one in probed.items():
        one.agree_on(ready=READY_WITHOUT_STORE[name], store=False)
    # Who watches hears of a change, and of nothing else.
    assert next(watched["slots"]).status == NOT_SERVING
    valkey.restart()
    for one in probed.values():
        eventually(one.has_store, within=20, what="the store is back")
        one.agree_on(ready=True, store=True)
    assert next(watched["slots"]).status == SERVING
    for watch in watched.values():
        watch.cancel()
