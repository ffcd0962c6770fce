"""Steps that are begun, and told by a call: the same answers as those that are awaited."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock import StoreUnavailableError, fixed_window, gcra
from penstock.core._steps import Step
from penstock.core._transform import checking
from penstock.stores.redis import RedisStore
from tests.servers import FaultProxy, RedisServer
from tests.stores.redis.live import PATIENT_MS, SPAN_MS, new_key, running

FIVE = checking(fixed_window(5, SPAN_MS))
TEN = checking(gcra(10, SPAN_MS))


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[RedisStore]:
    store = RedisStore.from_url(url, timeout_ms=PATIENT_MS)
    try:
        yield store
    finally:
        await store.aclose()


def begun(store: RedisStore, *steps: Step) -> asyncio.Future[Any]:
    """What is told, as a future."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def told(result: Any, error: BaseException | None) -> None:
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    assert store.begin is not None
    store.begin(steps, 0, told)
    assert not future.done()
    return future


def test_it_decides_as_if_awaited(server: RedisServer) -> None:
    """One step or several, on a connection that is there or not yet, with scripts that the server
    knows or does not."""
    key, other = new_key(), new_key()

    async def main() -> None:
        async with opened(server.url) as store:
            server.call("SCRIPT", "FLUSH")
            first = await begun(store, Step(key, FIVE))
            assert (first.allowed, first.remaining) == (True, 4)
            assert (await store.aapply(key, FIVE, 0, 1)).remaining == 3
            several = await begun(store, Step(key, FIVE), Step(other, TEN))
            assert [decision.remaining for decision in several] == [2, 9]
            rest = [begun(store, Step(key, FIVE)) for _ in range(40)]
            assert [(await each).allowed for each in rest] == [True, True] + [False] * 38

    asyncio.run(main())


def test_who_is_told_may_ask_again_at_once() -> None:
    """From within the call, as a client's next request does."""
    key = new_key()

    async def main() -> None:
        async with opened(running("valkey").url) as store:
            left, over = [], asyncio.Event()

            def told(decision: Any, error: BaseException | None) -> None:
                assert error is None
                left.append(decision.remaining)
                if decision.allowed:
                    store.begin((Step(key, FIVE),), 0, told)  # type: ignore[misc]
                else:
                    over.set()

            await begun(store, Step(new_key(), FIVE))
            store.begin((Step(key, FIVE),), 0, told)  # type: ignore[misc]
            await asyncio.wait_for(over.wait(), 20)
            assert left == [4, 3, 2, 1, 0, 0]

    asyncio.run(main())


def test_a_call_that_fails_is_no_matter_of_the_others() -> None:
    """What is told raises: the replies behind it still find who asked."""

    async def main() -> None:
        complaints: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
        async with opened(running("valkey").url) as store:
            await begun(store, Step(new_key(), FIVE))

            def fail(*_: Any) -> None:
                raise ValueError("of its own")

            store.begin((Step(new_key(), FIVE),), 0, fail)  # type: ignore[misc]
            others = [begun(store, Step(new_key(), FIVE)) for _ in range(3)]
            assert [(await each).remaining for each in others] == [4, 4, 4]
        assert [str(told["exception"]) for told in complaints] == ["of its own"]

    asyncio.run(main())


def test_all_that_wait_are_told_of_a_lost_connection() -> None:
    """They may have been charged; who asks again then is asked on another connection."""

    async def main(proxy: FaultProxy) -> None:
        async with opened(f"redis://127.0.0.1:{proxy.port}") as store:
            await begun(store, Step(new_key(), FIVE))
            again: list[asyncio.Future[Any]] = []
            errors: list[BaseException | None] = []

            def told(_: Any, error: BaseException | None) -> None:
                errors.append(error)
                again.append(begun(store, Step(new_key(), FIVE)))

            proxy.swallow()
            for _ in range(3):
                store.begin((Step(new_key(), FIVE),), 0, told)  # type: ignore[misc]
            await asyncio.sleep(0.05)
            proxy.restore()
            while len(errors) < 3:
                await asyncio.sleep(0.01)
            assert all(isinstance(error, StoreUnavailableError) for error in errors)
            assert "may have been charged" in str(errors[0])
            assert [(await each).remaining for each in again] == [4, 4, 4]

    with FaultProxy(running("valkey").port) as proxy:
        asyncio.run(asyncio.wait_for(main(proxy), 60))


def test_a_server_that_is_not_there_is_told() -> None:
    async def main() -> None:
        async with opened("redis://127.0.0.1:1") as store:
            with pytest.raises(StoreUnavailableError, match="was not charged"):
                await begun(store, Step(new_key(), FIVE))

    asyncio.run(main())
