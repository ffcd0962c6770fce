"""A reply that has arrived is used, even if the deadline passed while the process did not run."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import StoreUnavailableError, gcra, rate_limit
from penstock.stores.redis import RedisStore
from penstock.stores.redis import _sync_connections as sync_connections
from penstock.stores.redis._multiplexed import MultiplexedConnection
from tests.stores.redis.broken import BrokenServer, broken_server, resp

LOOPS = [asyncio.new_event_loop, pytest.importorskip("uvloop").new_event_loop]
YES = resp([1, 10, 9, 1_000, 0])
TIMEOUT_MS = 50


@pytest.fixture
def server() -> Iterator[BrokenServer]:
    with broken_server() as started:
        started.answer(YES)
        yield started


def store_on(server: BrokenServer) -> RedisStore:
    return RedisStore.from_url(f"redis://127.0.0.1:{server.port}", timeout_ms=TIMEOUT_MS)


def test_a_sync_call_that_is_stopped_past_its_deadline_uses_the_reply(
    server: BrokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock jumps ahead as soon as the request was sent and the reply has arrived."""
    store = store_on(server)
    limiter = rate_limit(gcra(10, 1_000), store=store)
    assert limiter.check("k")
    arrived = threading.Event()
    send = sync_connections._Connection.send

    def sending(self: Any, payload: bytes, deadline: float) -> None:
        send(self, payload, deadline)
        assert self._poll(5_000)
        arrived.set()

    def late() -> float:
        return time.monotonic() + (3_600 if arrived.is_set() else 0)

    monkeypatch.setattr(sync_connections._Connection, "send", sending)
    monkeypatch.setattr(sync_connections, "monotonic", late)
    assert limiter.check("k").remaining == 9
    store.close()


def test_a_sync_call_without_a_reply_ends_at_its_deadline(server: BrokenServer) -> None:
    store = store_on(server)
    limiter = rate_limit(gcra(10, 1_000), store=store)
    assert limiter.check("k")
    server.answer(b"")
    with pytest.raises(StoreUnavailableError, match=r"no reply from .* in time"):
        limiter.check("k")
    store.close()


@pytest.mark.parametrize("loop_factory", LOOPS, ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("call", ["acheck", "acheck_many", "apeek"])
def test_an_async_call_uses_the_reply_after_the_loop_was_blocked(
    server: BrokenServer, loop_factory: Any, call: str
) -> None:
    """The loop is blocked past the deadline while the reply is in the buffer of the socket."""
    replies = {
        b"1": YES,
        b"2": resp([10, 2, 9, 1_000, 0]),
    }

    def reply(words: list[bytes]) -> bytes:
        if words[0] == b"TIME":
            return resp([b"1700000000", b"0"])
        return resp(None) if call == "apeek" else replies[words[2]]

    server.answer(reply)

    async def main() -> None:
        store = store_on(server)
        limiter = rate_limit(gcra(10, 1_000), store=store)
        ask = getattr(limiter, call)
        argument: Any = ["a", "b"] if call == "acheck_many" else "k"
        await ask(argument)
        for _ in range(3):
            task = asyncio.ensure_future(ask(argument))
            await asyncio.sleep(0)
            time.sleep(3 * TIMEOUT_MS / 1000)
            assert await task
        await store.aclose()

    loop = loop_factory()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def test_expiring_reads_what_has_arrived_before_it_gives_up(server: BrokenServer) -> None:
    """As on loops that run timers before they read: the timer is called by hand."""

    async def main() -> None:
        store = store_on(server)
        limiter = rate_limit(gcra(10, 1_000), store=store)
        await limiter.acheck("k")
        found = [each for each in _connections(store) if each.takes_requests]
        (connection,) = found
        task = asyncio.ensure_future(limiter.acheck("k"))
        await asyncio.sleep(0)
        while not connection._poll(0):
            time.sleep(0.001)
        time.sleep(2 * TIMEOUT_MS / 1000)
        connection._expire()
        assert (await task).remaining == 9
        assert connection.takes_requests
        await store.aclose()

    asyncio.run(main())


def _connections(store: RedisStore) -> list[MultiplexedConnection]:
    return store._async._pool()._all()
