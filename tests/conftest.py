"""Settings that hold for every test."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.servers.process import is_setting
from tests.support.effort import count
from tests.support.variables import remove_foreign

remove_foreign()
# What a developer's own shell says to `penstock serve` is not meant for the services of the tests.
for _name in filter(is_setting, list(os.environ)):
    del os.environ[_name]

# Deterministic, and patient with slow machines.
settings.register_profile(
    "penstock",
    deadline=None,
    derandomize=True,
    max_examples=count(40, 200),
    print_blob=False,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("penstock")


@pytest.fixture(autouse=True, scope="module")
def _no_settings_left_behind() -> Iterator[None]:
    """A setting of the service in this process would reach every command that a test runs."""
    yield
    assert list(filter(is_setting, os.environ)) == []


@pytest.fixture(autouse=True, scope="module")
def _garbage_of_drivers_stays_here(request: pytest.FixtureRequest) -> Iterator[None]:
    """A driver whose connection was cut leaves it to the collector, which complains in whatever
    test it happens to run. So it runs at the end of the files that cut connections."""
    yield
    if {"stores", "faults", "conformance", "queueing"} & set(request.path.parts):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()


# Files that take long, or wait long. They are begun first, so that no process is left with one of
# them at the end while the others have nothing to do. Those of changed figures come before all: a
# process numbers at most 32,767 figures (`accel/kernels.pxi`), which the fuzzers use up.
LONG = (
    "service/test_changed_figures.py",
    "strategies/test_changed_figures.py",
    "test_install.py",
    "conformance/test_conformance.py",
    "model/",
    "stores/test_edge.py",
    "queueing/test_interrupts.py",
    "stores/test_edge_several.py",
    "faults/",
    "service/http/test_openapi.py",
    "stores/redis/test_interrupts.py",
    "properties/test_lua_agrees.py",
    "strategies/",
    "accel/",
    "stores/postgres/",
    "service/",
    "leasing/",
    "test_typing.py",
    "tools/",
    "test_servers.py",
    "test_workflows.py",
    "test_examples.py",
    "integrations/",
    "stores/",
    "cli/",
    "queueing/",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, and else in the order in which they were found."""
    root = Path(__file__).parent

    def rank(item: pytest.Item) -> int:
        path = item.path.relative_to(root).as_posix() if root in item.path.parents else ""
        places = [place for place, name in enumerate(LONG) if path.startswith(name)]
        return places[0] if places else len(LONG)

    items.sort(key=rank)


def pytest_report_header(config: pytest.Config) -> str:
    """Say which path is on."""
    from penstock import accelerated

    return f"penstock: {'native' if accelerated else 'interpreted'} path"


def pytest_collection_finish() -> None:
    """What was imported and collected stays: the garbage collector, which tests call and which runs
    by itself, need not look at those million objects each time."""
    gc.collect()
    gc.freeze()
