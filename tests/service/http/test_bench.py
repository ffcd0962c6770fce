"""What the measurement of the server calls a miss."""

from __future__ import annotations

from typing import Any

import pytest

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
