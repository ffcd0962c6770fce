"""Every golden vector, replayed over real HTTP, equals what the oracle answered.

The clock is the test's: a server has one to be moved only where the code that makes it passes one
in. There is no flag and no variable for it, and `penstock serve` has no way to it.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from penstock import ManualClock
from penstock.cli import _serve as serve
from penstock.config import PolicySpec
from penstock.service._options import ServeOptions
from tools.wire.convert import strategy_of

from .serving import Client, InProcessServer

ROOT = Path(__file__).resolve().parents[3]
SUITES: list[dict[str, Any]] = json.loads((ROOT / "wire/vectors/golden-vectors.json").read_text())[
    "suites"
]
NAMES = {
    "allowed": "allowed",
    "limit": "limit",
    "remaining": "remaining",
    "resetAt": "reset_at",
    "retryAfterMs": "retry_after_ms",
}


def policy(suite: dict[str, Any]) -> PolicySpec:
    strategy = suite["strategy"]
    return PolicySpec(suite["name"], strategy_of(strategy["kind"], strategy["options"]))


@pytest.mark.parametrize("path", ["/check", "/v1/check"])
def test_every_vector_is_answered_as_by_the_oracle(path: str) -> None:
    """Field for field, and with the status that goes with it."""
    clock = ManualClock(SUITES[0]["ops"][0]["now"])
    with InProcessServer(policies=[policy(suite) for suite in SUITES], clock=clock) as server:
        client = Client(server.port)
        for suite in SUITES:
            for number, op in enumerate(suite["ops"]):
                clock.set(op["now"])
                asked = {"policy": suite["name"], "key": suite["key"], "cost": op["cost"]}
                reply = client.post(path, asked)
                expected = {NAMES[name]: value for name, value in op["expect"].items()}
                found = reply.json if path == "/check" else reply.json["decision"]
                assert found == expected, (suite["name"], number)
                denied = 429 if path == "/check" else 200
                assert reply.status == (200 if expected["allowed"] else denied)
                assert ("retry-after" in reply.headers) is not expected["allowed"]
        client.close()


def test_nobody_can_move_the_clock_of_a_server() -> None:
    """No option and no flag has to do with time, but for the deadline of a stop."""
    parser = argparse.ArgumentParser()
    serve.configure(parser)
    flags = {action.dest for action in parser._actions}
    options = {field.name for field in fields(ServeOptions)}
    for name in flags | options:
        assert not any(word in name for word in ("clock", "now", "time", "test", "replay"))
