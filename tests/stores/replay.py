"""The golden vectors, put to any store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from penstock import Store
from penstock.core._transform import checking
from tools.wire.convert import decision_fields, strategy_of

VECTORS = Path(__file__).resolve().parents[2] / "wire" / "vectors" / "golden-vectors.json"


def read_suites() -> list[dict[str, Any]]:
    suites: list[dict[str, Any]] = json.loads(VECTORS.read_text())["suites"]
    return suites


def assert_vectors_hold(store: Store, suites: list[dict[str, Any]] | None = None) -> None:
    """Every suite, or those, through the sync calls."""
    for suite in read_suites() if suites is None else suites:
        check, key = checking(strategy_of(**suite["strategy"])), f"vector:{suite['name']}"
        for op in suite["ops"]:
            decision = store.apply(key, check, op["now"], op["cost"])
            assert decision_fields(decision) == op["expect"], (suite["name"], op)


async def assert_vectors_hold_async(store: Store) -> None:
    """Every suite, through the async calls."""
    for suite in read_suites():
        check, key = checking(strategy_of(**suite["strategy"])), f"vector:{suite['name']}"
        for op in suite["ops"]:
            decision = await store.aapply(key, check, op["now"], op["cost"])
            assert decision_fields(decision) == op["expect"], (suite["name"], op)
