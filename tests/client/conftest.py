"""The service that these tests share, and the ways to ask it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.client.asking import WAYS, Asked, asking
from tests.client.serving import RunningService, still


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    with still() as running:
        yield running


_names = iter(range(10**6))


@pytest.fixture
def key() -> str:
    """One that nobody has used."""
    return f"k{next(_names)}"


@pytest.fixture(params=WAYS, ids=lambda pair: "-".join(pair))
def way(request: pytest.FixtureRequest) -> tuple[str, str]:
    pair: tuple[str, str] = request.param
    return pair


@pytest.fixture
def ask(service: RunningService, way: tuple[str, str]) -> Iterator[Callable[..., Asked]]:
    """Makes limiters for policies of the service."""
    opened = []

    def make(policy: str, **options: Any) -> Asked:
        manager = asking(service.url(way[0]), policy, way[1], **options)
        opened.append(manager)
        return manager.__enter__()

    yield make
    for manager in opened:
        manager.__exit__(None, None, None)
