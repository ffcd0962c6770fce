"""Few HTTP calls for many tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from penstock.stores.cas import ConnectionFailedError, Read, Request
from penstock.stores.rest._store import RequestBatcher


class _Post:
    """Answers each request with its key, after a while; counts."""

    def __init__(self, delay_s: float = 0.02) -> None:
        self.delay_s = delay_s
        self.sizes: list[int] = []
        self.out = 0
        self.most_out = 0

    async def send(self, requests: Sequence[Request], deadline: float) -> list[Any]:
        self.sizes.append(len(requests))
        self.out += 1
        self.most_out = max(self.most_out, self.out)
        try:
            await asyncio.sleep(self.delay_s)
        finally:
            self.out -= 1
        if requests[0].key == "bad":
            raise ZeroDivisionError
        return [request.key for request in requests]


def _soon() -> float:
    return time.monotonic() + 10


def test_what_has_to_wait_goes_together() -> None:
    """A hundred tasks, four calls at a time, and everybody gets the answer that is theirs."""
    post = _Post()

    async def crowd() -> list[list[Any]]:
        batcher = RequestBatcher(post.send, most_calls=4, most_requests=32)
        return await asyncio.gather(*(batcher.ask([Read(f"k{n}")], _soon()) for n in range(100)))

    assert asyncio.run(crowd()) == [[f"k{n}"] for n in range(100)]
    assert post.most_out == 4
    assert len(post.sizes) <= 8


def test_a_call_is_never_larger_than_allowed() -> None:
    """More requests than fit are several calls, side by side."""
    post = _Post()

    async def ask() -> list[Any]:
        return await RequestBatcher(post.send, most_calls=16, most_requests=1).ask(
            [Read(f"k{n}") for n in range(5)], _soon()
        )

    assert asyncio.run(ask()) == [f"k{n}" for n in range(5)]
    assert post.sizes == [1] * 5
    assert post.most_out == 5


def test_who_was_not_sent_in_time_knows_it() -> None:
    """Ahead of the queue in doubt, in the queue not charged; the queue is left clean."""
    post = _Post(delay_s=0.5)

    async def ask() -> list[Any]:
        batcher = RequestBatcher(post.send, most_calls=1, most_requests=1)
        deadline = time.monotonic() + 0.05
        both = [batcher.ask([Read(key)], deadline) for key in ("sent", "queued")]
        answers = [answer for [answer] in await asyncio.gather(*both)]
        assert batcher.pending == 0
        return answers

    sent, queued = asyncio.run(ask())
    assert isinstance(sent, ConnectionFailedError)
    assert isinstance(queued, ConnectionFailedError)
    assert (sent.may_have_run, queued.may_have_run) == (True, False)


def test_a_fault_is_the_answer_of_its_call_alone() -> None:
    """The next call goes out all the same."""
    post = _Post()

    async def ask() -> list[Any]:
        batcher = RequestBatcher(post.send, most_calls=1, most_requests=1)
        asks = [batcher.ask([Read(key)], _soon()) for key in ("bad", "good")]
        return [answer for [answer] in await asyncio.gather(*asks)]

    bad, good = asyncio.run(ask())
    assert isinstance(bad, ZeroDivisionError)
    assert good == "good"
