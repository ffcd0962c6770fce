"""The golden vectors through the store itself, not only through its scripts."""

from __future__ import annotations

import pytest

from tests.stores.redis.live import open_empty
from tests.stores.replay import assert_vectors_hold, assert_vectors_hold_async
from tests.support.helpers import run


@pytest.mark.parametrize("name", ["valkey", "redis8", "cluster"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_golden_vectors_hold(name: str, mode: str) -> None:
    """Every suite, all five fields, on every kind of server."""
    store = open_empty(name)

    async def main() -> None:
        await assert_vectors_hold_async(store)
        await store.aclose()

    if mode == "sync":
        assert_vectors_hold(store)
    else:
        run(main())
    store.close()
