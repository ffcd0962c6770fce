"""Fixtures of the tests of the service."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock import ManualClock, MemoryStore
from penstock.config import parse_policies
from penstock.service import Service, build_service
from tests.stores.redis.live import new_key, open_empty
from tests.support.helpers import NOW

from .reloads import World
from .several import FILE, serving


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture(params=["memory", "valkey"])
def nodes(request: pytest.FixtureRequest) -> Iterator[tuple[Service, Service, Any]]:
    """Two services that share a store, each with policies of its own."""
    clock = ManualClock(NOW)
    if request.param == "memory":
        store = MemoryStore(clock=clock)
        yield serving(store, clock), serving(store, clock), asyncio.run
        return
    one, other = open_empty("valkey"), open_empty("valkey")
    text = FILE.replace("version: 1", f"version: 1\ndefaults: {{prefix: {new_key()}}}")
    loop = asyncio.new_event_loop()
    with closing(loop):
        made = [
            build_service(parse_policies(text, "p.yaml"), store=store) for store in (one, other)
        ]
        yield made[0], made[1], loop.run_until_complete
        for service in made:
            loop.run_until_complete(service.aclose())
