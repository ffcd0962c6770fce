"""Fixtures of the tests of leases: a service with its node, and a store that is far away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock import ManualClock
from tests.leasing.far import FarStore, ServerClock
from tests.leasing.server import START, InProcessServer, opened

from .clients import MINUTE, CountingStore
from .tiers import START as WINDOW_START


@pytest.fixture
def node() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


@pytest.fixture
def server(store: CountingStore, node: ManualClock) -> Iterator[InProcessServer]:
    # The service's clock shows another time of day, and runs with the node's.
    with opened(store, ServerClock(node, 7_777 * MINUTE)) as running:
        yield running


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(WINDOW_START)


@pytest.fixture
def far(clock: ManualClock) -> FarStore:
    return FarStore(clock)
