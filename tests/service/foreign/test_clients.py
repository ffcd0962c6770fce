"""The service as the gRPC libraries of other languages meet it.

Each client is a small program that talks over one channel and tells what it saw. To build all of
them takes minutes: `make test-foreign` does, and `make test` runs those that are there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.service.grpc.serving import serving
from tools import foreign

FILE = """
version: 1
limiters:
  plenty: {strategy: fixedWindow, limit: 1000000, window: 1h, anchor: first}
"""
CANCELLED, DEADLINE_EXCEEDED, NOT_FOUND, RESOURCE_EXHAUSTED = 1, 4, 5, 8


def _java(libraries: Path) -> list[str]:
    return ["java", "-cp", os.pathsep.join((f"{libraries}/*", str(libraries))), "Client"]


CLIENTS = {
    "grpc-go": (foreign.GO_CLIENT, lambda path: [str(path)]),
    "tonic": (foreign.RUST_CLIENT, lambda path: [str(path)]),
    "grpc-java": (foreign.JAVA_CLIENT, _java),
}


def ready(program: foreign.Program) -> Path:
    if not program.ready:
        pytest.skip(f"{program.target.name} is not built; make test-foreign does it")
    return program.target


def ask(words: list[str], port: int) -> Any:
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not on this machine")
    done = subprocess.run(
        [*words, f"127.0.0.1:{port}"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_is_served_on_one_channel(name: str) -> None:
    """Decisions, compressed too; refusals with their details; health, watched until the stream is
    cancelled or its deadline has come, which frees its place; and what there is, by reflection."""
    program, words = CLIENTS[name]
    path = ready(program)
    with serving(FILE, "memory://", max_streams=2) as port:
        found = ask(words(path), port)
    decisions = [found[call]["decision"] for call in ("check", "gzip", "last")]
    assert [decision["allowed"] for decision in decisions] == [True] * 3
    assert [decision["remaining"] for decision in decisions] == ["999999", "999998", "999997"]
    assert found["unknown"]["code"] == NOT_FOUND
    assert found["unknown"]["text"].startswith("there is no policy 'nope'")
    assert {found["health"], found["watch"], found["again"]} == {"SERVING"}
    assert found["refused"]["code"] == RESOURCE_EXHAUSTED
    assert 500 <= found["refused"]["retry_ms"] < 1_500
    assert found["deadline"] == DEADLINE_EXCEEDED
    # To tonic a cancelled stream is one that is gone.
    assert found.get("cancelled", CANCELLED) == CANCELLED
    services = {"throttlekit.v1.RateLimiter", "grpc.health.v1.Health"}
    assert services <= set(found["services"])
