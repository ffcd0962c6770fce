"""Every golden vector over a real connection: what the oracle says is what arrives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock import ManualClock
from penstock.config import PolicyFile, PolicySpec
from tests.servers import Valkey, require
from tests.service.grpc.servers import run, visiting
from tools.wire.convert import strategy_of

VECTORS = Path(__file__).resolve().parents[3] / "wire" / "vectors" / "golden-vectors.json"
SUITES = json.loads(VECTORS.read_text())["suites"]


def policies() -> PolicyFile:
    """One policy per suite."""
    named = {suite["name"]: suite["strategy"] for suite in SUITES}
    return PolicyFile(
        {
            name: PolicySpec(name, strategy_of(strategy["kind"], strategy["options"]))
            for name, strategy in named.items()
        }
    )


async def replay(name: str, **service: Any) -> int:
    """Ask what each vector asks, at its instant; returns how many were asked."""
    async with visiting(name, config=policies(), **service) as visit:
        clock: ManualClock = visit.clock
        asked = 0
        for suite in SUITES:
            for number, op in enumerate(suite["ops"]):
                clock.set(op["now"])
                got = await visit.check(suite["name"], suite["key"], op["cost"])
                answer = {
                    "allowed": got.allowed,
                    "limit": got.limit,
                    "remaining": got.remaining,
                    "resetAt": got.reset_at,
                    "retryAfterMs": got.retry_after_ms,
                }
                assert answer == op["expect"], f"{suite['name']}[{number}]"
                asked += 1
        return asked


def test_the_vectors_come_out_as_the_oracle_has_them() -> None:
    """The clock is one that a test hands to the service; no flag or variable can."""
    assert run(replay("existing")) == sum(len(suite["ops"]) for suite in SUITES)


def test_the_vectors_come_out_the_same_on_a_shared_store() -> None:
    """The same replay with the counts in a real server."""
    require("valkey")
    with Valkey() as server:
        assert run(replay("ours", store_url=server.patient_url)) > 500


@pytest.mark.parametrize("suite", SUITES[:1])
def test_a_vector_that_is_wrong_would_be_found(suite: dict[str, Any]) -> None:
    """The comparison is not vacuous."""
    expect = suite["ops"][0]["expect"]
    expect["remaining"] += 1
    try:
        with pytest.raises(AssertionError, match="cold-burst"):
            run(replay("ours"))
    finally:
        expect["remaining"] -= 1
