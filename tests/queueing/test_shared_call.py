"""One answer for all who ask the same, and never one from before they asked."""

from __future__ import annotations

import asyncio

import pytest

from penstock._queueing.tasks import SharedCall


class Made:
    """Numbers, each made when the test says so."""

    def __init__(self) -> None:
        self.count = 0
        self.at_once = 0
        self.ready = asyncio.Event()

    async def make(self) -> int:
        self.count += 1
        self.at_once += 1
        number = self.count
        await self.ready.wait()
        self.at_once -= 1
        assert self.at_once == 0
        return number


def test_who_asks_while_it_is_being_made_gets_the_next_one() -> None:
    """All of them the same, and one at a time."""

    async def scenario() -> None:
        made = Made()
        call = SharedCall(made.make)
        first = [asyncio.create_task(call()) for _ in range(5)]
        while not made.count:
            await asyncio.sleep(0)
        later = [asyncio.create_task(call()) for _ in range(50)]
        await asyncio.sleep(0.01)
        assert made.count == 1
        made.ready.set()
        assert await asyncio.gather(*first) == [1] * 5
        assert await asyncio.gather(*later) == [2] * 50
        assert await call() == 3

    asyncio.run(scenario())


def test_who_gives_up_waiting_does_not_end_it_for_the_others() -> None:
    """A client may leave at any time."""

    async def scenario() -> None:
        made = Made()
        call = SharedCall(made.make)
        one, two = asyncio.create_task(call()), asyncio.create_task(call())
        await asyncio.sleep(0.01)
        one.cancel()
        made.ready.set()
        assert await two == 1
        with pytest.raises(asyncio.CancelledError):
            await one

    asyncio.run(scenario())


def test_a_failure_is_told_to_all_and_the_next_is_made_all_the_same() -> None:
    """It is not remembered."""
    failures = [ZeroDivisionError()]

    async def make() -> str:
        if failures:
            raise failures.pop()
        return "good"

    async def scenario() -> None:
        call = SharedCall(make)
        for answer in await asyncio.gather(call(), call(), return_exceptions=True):
            assert isinstance(answer, ZeroDivisionError)
        assert await call() == "good"

    asyncio.run(scenario())
