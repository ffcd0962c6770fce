"""The golden vectors, on every executor there is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redis

from penstock import ManualClock, rate_limit
from penstock.core._transform import checking
from penstock.stores.memory._table import Table
from tests.wire.live import check_all
from tools.wire.convert import decision_fields, strategy_of
from tools.wire.manifest import published

VECTORS = json.loads(
    (Path(__file__).resolve().parents[2] / "wire/vectors/golden-vectors.json").read_text()
)
SUITES: list[dict[str, Any]] = VECTORS["suites"]

each_suite = pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite["name"])


def _strategy(suite: dict[str, Any]) -> Any:
    return strategy_of(**suite["strategy"])


@each_suite
def test_the_interpreted_path_answers_as_written(suite: dict[str, Any]) -> None:
    """The table in plain Python, with logical expiry."""
    table, transform = Table(None, None, True), checking(_strategy(suite))
    for op in suite["ops"]:
        decision = table.apply(suite["key"], transform, op["now"], op["cost"])
        assert decision_fields(decision) == op["expect"], op


@each_suite
def test_the_limiter_answers_as_written(suite: dict[str, Any]) -> None:
    """A limiter as users have it, compiled where that path is on."""
    clock = ManualClock()
    limiter = rate_limit(_strategy(suite), clock=clock)
    for op in suite["ops"]:
        clock.set(op["now"])
        assert decision_fields(limiter.check(suite["key"], op["cost"])) == op["expect"], op


def test_lua_answers_as_written(client: redis.Redis) -> None:
    """The scripts, on a real server."""
    requests = [
        (suite["key"], _strategy(suite), op["now"], op["cost"])
        for suite in SUITES
        for op in suite["ops"]
    ]
    expected = [tuple(map(int, op["expect"].values())) for suite in SUITES for op in suite["ops"]]
    assert check_all(client, requests) == expected


def test_the_vectors_cover_what_they_promise() -> None:
    """Every kind meets every situation in which executors could part."""
    names = [suite["name"] for suite in SUITES]
    assert len(set(names)) == len(names)
    for kind in {source.strategy for source in published()}:
        of_kind = [suite for suite in SUITES if suite["strategy"]["kind"] == kind]
        ops = [op for suite in of_kind for op in suite["ops"]]
        for situation in ("cold-burst", "cost-above-one", "above-the-ceiling", "rollover"):
            assert any(situation in suite["name"] for suite in of_kind), (kind, situation)
        assert any("backward-jump" in suite["name"] for suite in of_kind)
        assert {op["expect"]["allowed"] for op in ops} == {True, False}
        assert any(len(str(op["now"])) == 13 for op in ops)
    options = [suite["strategy"]["options"] for suite in SUITES]
    assert {option.get("anchor") for option in options} >= {"epoch", "first"}
    assert {option.get("buckets") for option in options} >= {1, 10}


def test_the_expected_fields_stand_in_the_order_of_the_reply() -> None:
    """A client may compare by name or by place."""
    for suite in SUITES:
        assert suite["primitive"] == "rate"
        for op in suite["ops"]:
            assert list(op["expect"]) == VECTORS["decisionFields"]
