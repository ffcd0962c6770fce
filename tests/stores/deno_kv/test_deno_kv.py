"""What only DenoKvStore has: the limits of Deno KV, and the program's own settings."""

from __future__ import annotations

import time
from typing import Any

import pytest

from penstock import ConfigInvalidError, Decision, Outcome, StoreUnavailableError, Strategy, gcra
from penstock.core._transform import checking
from tests.servers import Deno, require
from tests.stores import edge

NOW = 1_700_000_000_000


class Bulky(Strategy):
    """A state of as many characters as the cost."""

    def check(self, state: Any, now: int, cost: int) -> Outcome[Decision]:
        return Outcome("x" * cost, Decision(True, 1, 0, now, 0), 60_000, True)


def test_the_largest_state_that_is_let_through_is_taken() -> None:
    """64 KiB with all around it; one more is refused before it is sent."""
    store = edge.open_empty("deno-kv")
    bulky = checking(Bulky())
    size = len('{"v":1,"strategy":"Bulky","expires_at":1700000060000,"state":""}')
    for _ in range(10):
        # Ten times, for a version of full length.
        assert store.apply("k", bulky, NOW, store.max_record_bytes - size)
    with pytest.raises(ConfigInvalidError, match="65001 bytes"):
        store.apply("k", bulky, NOW, store.max_record_bytes - size + 1)
    store.close()


def test_a_key_of_zero_bytes_fits() -> None:
    """They take two bytes each in a key of Deno KV."""
    store = edge.open_empty("deno-kv")
    for length in (899, 900, 4096):
        assert store.apply("\0" * length, checking(gcra(10, 1_000)), NOW, 1).remaining == 9
    store.close()


def test_a_program_without_a_token_serves_nobody() -> None:
    """It is never open by mistake."""
    require("deno")

    class Open(edge.DenoKv):
        def popen_options(self) -> dict[str, Any]:
            options = super().popen_options()
            del options["env"]["PENSTOCK_TOKEN"]
            return options

    with Open() as server:
        assert isinstance(server, Deno)
        store = edge.opened(edge.url_of("deno-kv", server.port, timeout_ms=2_000))
        with pytest.raises(StoreUnavailableError, match="PENSTOCK_TOKEN is not set"):
            store.apply("k", checking(gcra(10, 1_000)), NOW, 1)
        store.close()


def test_many_writers_in_processes_of_their_own_share_one_key() -> None:
    """Stamps are checked: of two stores that take turns, neither loses a write."""
    url = edge.url_of("deno-kv")
    stores = [edge.opened(url), edge.opened(url)]
    check = checking(gcra(100, 86_400_000))
    start = time.monotonic()
    for number in range(40):
        assert stores[number % 2].apply("k", check, NOW, 1).remaining == 99 - number
    assert time.monotonic() - start < 20
    for store in stores:
        store.close()
