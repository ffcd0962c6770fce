"""What the measurement of the server calls a miss."""

from __future__ import annotations

from typing import Any

import pytest

from bench import wire_peers
from bench.http_paths import missed


def report(
    fastapi: float, uvicorn: float, tail: float, redis: float | None, differing: float = 1.8
) -> dict[str, Any]:
    return {
        "rate_ratio": {"fastapi": fastapi, "uvicorn": uvicorn},
        "rate_over_uvicorn": {"same": uvicorn, "traced": differing, "clients": differing},
        "half_peak": {"penstock": {"p99_over_p50": tail}},
        "redis_over_uvicorn": redis,
    }


@pytest.mark.parametrize(
    ("measured", "names"),
    [
        (report(3.0, 1.8, 4.9, 0.5), []),
        (report(2.9, 1.8, 4.9, 0.5), ["rate_over_fastapi"]),
        (report(3.0, 1.7, 5.0, 0.5), ["rate_over_uvicorn", "p99_over_p50"]),
        (report(3.0, 1.8, 4.9, 0.49), ["redis_over_uvicorn"]),
        (report(3.0, 1.8, 4.9, None), []),
        (report(3.0, 1.8, 4.9, 0.5, 1.7), ["traced_over_uvicorn", "clients_over_uvicorn"]),
    ],
)
def test_a_target_is_missed_by_what_was_measured(
    measured: dict[str, Any], names: list[str]
) -> None:
    """And not by what could not be."""
    assert missed(measured) == names


@pytest.mark.parametrize(
    ("row", "measured", "kept"),
    [
        ("grpc-8x8", 1.2, True),
        ("grpc-8x8", 1.19, False),
        ("grpc-one", 1.1, True),
        ("grpc-one", 1.11, False),
    ],
)
def test_a_rate_has_a_lower_bound_and_a_time_an_upper_one(
    row: str, measured: float, kept: bool
) -> None:
    [found] = [one for one in wire_peers.ROWS if one.name == row]
    assert found.kept(measured) is kept


def test_of_a_row_without_its_peer_nothing_is_missed() -> None:
    missed_row = {"servers": {}, "target": {"at_least": 1.1, "kept": False}}
    kept_row = {"servers": {}, "target": {"at_most": 3.0, "kept": True}}
    rows = {"http": missed_row, "http-tail": kept_row, "grpc-8x8": {"servers": {}}, "idle": None}
    assert wire_peers.missed({"rows": rows}) == ["http"]
