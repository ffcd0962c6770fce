"""Fixtures of the Redis tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.stores.redis import RedisStore
from tests.servers import RedisServer
from tests.stores.redis.live import PATIENT_MS, new_key, running, url_of


@pytest.fixture(params=["valkey", "redis8"])
def server(request: pytest.FixtureRequest) -> RedisServer:
    found: RedisServer = running(request.param)
    return found


@pytest.fixture(params=["valkey", "redis8", "cluster"])
def store(request: pytest.FixtureRequest) -> Iterator[RedisStore]:
    """A patient store on each kind of server."""
    opened = RedisStore.from_url(url_of(request.param), timeout_ms=PATIENT_MS)
    yield opened
    opened.close()


@pytest.fixture
def key() -> str:
    """A key that no other test uses."""
    return new_key()
