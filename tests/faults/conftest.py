"""Fixtures of the tests of faults: who calls, and a server to be hurt."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import Valkey, require

from .redis_calls import Either


@pytest.fixture(params=["sync", "async"])
def either(request: pytest.FixtureRequest) -> Iterator[Either]:
    found = Either(request.param)
    yield found
    found.close()


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    """A server of the test's own, to be hurt."""
    require("valkey")
    with Valkey() as server:
        yield server
