"""Settings that hold for every test."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.servers.process import is_setting

# What a developer's own shell says to `penstock serve` is not meant for the services of the tests.
for _name in filter(is_setting, list(os.environ)):
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
    """A setting of the service in this process would reach every command that a test runs."""
    yield
    assert list(filter(is_setting, os.environ)) == []


def pytest_report_header(config: pytest.Config) -> str:
    """Say which path is on."""
    from penstock import accelerated

    return f"penstock: {'native' if accelerated else 'interpreted'} path"
