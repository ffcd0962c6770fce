"""Settings that hold for every test."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# Deterministic, and patient with slow machines.
settings.register_profile(
    "penstock",
    deadline=None,
    derandomize=True,
    print_blob=False,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("penstock")


def pytest_report_header(config: pytest.Config) -> str:
    """Say which path is on."""
    from penstock import accelerated

    return f"penstock: {'native' if accelerated else 'interpreted'} path"
