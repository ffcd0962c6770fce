"""Every server that the scripts must run on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.wire.live import SERVERS, connected


@pytest.fixture(scope="session", params=SERVERS)
def client(request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    with connected(request.param) as client:
        yield client


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """A key that no other test uses."""
    name: str = request.node.nodeid
    return name
