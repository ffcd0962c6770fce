"""Settings that hold for every test."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# What a developer's own shell says to `penstock serve` is not meant for the services of the tests.
for _name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
    if _name not in ("PENSTOCK_NO_NATIVE", "PENSTOCK_PURE"):
        del os.environ[_name]

# Deterministic, and patient with slow machines.
settings.register_profile(
    "penstock",
    deadline=None,
    derandomize=True,
    print_blob=False,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("penstock")


@pytest.fixture(autouse=True, scope="module")
def _no_settings_left_behind() -> Iterator[None]:
    """A setting of the service in this process would reach every service that a test starts."""
    yield
    left = [name for name in os.environ if name.startswith("PENSTOCK_")]
    assert set(left) <= {"PENSTOCK_NO_NATIVE", "PENSTOCK_PURE"}


def pytest_report_header(config: pytest.Config) -> str:
    """Say which path is on."""
    from penstock import accelerated

    return f"penstock: {'native' if accelerated else 'interpreted'} path"
