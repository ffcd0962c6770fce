"""Batches for the tasks of a loop, and tasks that wait for what threads do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock._queueing import Batch, LateError, QueuedCall, tasks
from penstock._queueing.tasks import Pump
from tests.support.helpers import run


class Asked(QueuedCall):
    """A call whose answer is a word."""

    __slots__ = ("answer",)

    def __init__(self, timeout_s: float = 5.0) -> None:
        super().__init__(time.monotonic() + timeout_s)
        self.answer: str | None = None

    def is_answered(self) -> bool:
        return self.answer is not None or self.error is not None


class Server:
    """Answers batches after a moment, or does what it is told instead."""

    def __init__(self, most_calls: int = 9, most_batches: int = 1) -> None:
        self.sizes: list[int] = []
        self.out = self.most_out = 0
        self.meanwhile: Callable[[list[Asked]], Any] = lambda _calls: None
        self.gate: asyncio.Event | None = None
        self.pump: Pump[Asked] = Pump(
            self._serve, _failed, most_calls=most_calls, most_batches=most_batches
        )
        self._most = most_calls

    async def _serve(self, batch: Batch[Asked]) -> None:
        calls = batch.take(self._most)
        self.sizes.append(len(calls))
        self.out += 1
        self.most_out = max(self.most_out, self.out)
        try:
            await (asyncio.sleep(0.01) if self.gate is None else self.gate.wait())
            self.meanwhile(calls)
        finally:
            self.out -= 1
        for call in calls:
            call.answer = "served"


def _failed(_call: Asked, error: BaseException | None) -> BaseException:
    return OSError(f"failed: {error!r}")


async def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)


async def _ask(server: Server, timeout_s: float = 5.0) -> str:
    call = Asked(timeout_s)
    await server.pump.run(call)
    if call.error is not None:
        raise call.error
    return call.answer or ""


def test_tasks_that_wait_share_a_batch() -> None:
    """The first goes at once, and those who came meanwhile together."""

    async def main() -> None:
        server = Server(most_calls=50)
        server.gate = asyncio.Event()
        first = asyncio.create_task(_ask(server))
        await _until(lambda: server.out == 1)
        rest = [asyncio.create_task(_ask(server)) for _ in range(30)]
        await _until(lambda: server.pump.pending == 30)
        server.gate.set()
        assert set(await asyncio.gather(first, *rest)) == {"served"}
        assert server.sizes == [1, 30]

    run(main())


def test_several_batches_may_be_under_way() -> None:
    """As many as allowed, each as large as allowed."""

    async def main() -> None:
        server = Server(most_calls=4, most_batches=3)
        await asyncio.gather(*(_ask(server) for _ in range(40)))
        assert server.most_out == 3
        assert max(server.sizes) <= 4
        assert sum(server.sizes) == 40

    run(main())


def test_what_fails_is_told_to_its_batch_alone() -> None:
    """The pump goes on."""

    async def main() -> None:
        server = Server()

        def fail(_calls: list[Asked]) -> None:
            server.meanwhile = lambda _calls: None
            raise ZeroDivisionError

        server.meanwhile = fail
        with pytest.raises(OSError, match="ZeroDivisionError"):
            await _ask(server)
        assert await _ask(server) == "served"

    run(main())


def test_a_fault_before_anything_was_taken_does_not_spin() -> None:
    """Those who wait are told, instead of being tried for over and over."""

    async def main() -> None:
        attempts = 0

        async def serve(_batch: Batch[Asked]) -> None:
            nonlocal attempts
            attempts += 1
            raise ZeroDivisionError

        pump: Pump[Asked] = Pump(serve, _failed, most_calls=9)
        call = Asked()
        await pump.run(call)
        assert "ZeroDivisionError" in str(call.error)
        assert attempts == 1

    run(main())


def test_a_leader_that_is_cancelled_leaves_nobody_waiting() -> None:
    """Somebody cancels all tasks of the loop but the callers."""

    async def main() -> None:
        server, others = Server(), asyncio.all_tasks()
        server.gate = asyncio.Event()
        callers = [asyncio.create_task(_ask(server)) for _ in range(3)]
        await _until(lambda: server.out == 1)
        for task in asyncio.all_tasks() - others - {*callers}:
            task.cancel()
        results = await asyncio.gather(*callers, return_exceptions=True)
        assert [type(result) for result in results] == [OSError] * 3
        server.gate.set()
        assert await _ask(server) == "served"

    run(main())


def test_cancelling_one_caller_does_not_fail_the_others() -> None:
    """Neither one that is being served nor one that waits."""

    async def main() -> None:
        server = Server()
        server.gate = asyncio.Event()
        first = asyncio.create_task(_ask(server))
        await _until(lambda: server.out == 1)
        rest = [asyncio.create_task(_ask(server)) for _ in range(3)]
        await _until(lambda: server.pump.pending == 3)
        first.cancel()
        rest[1].cancel()
        await _until(lambda: server.pump.pending == 2)
        server.gate.set()
        results = await asyncio.gather(first, *rest, return_exceptions=True)
        assert [result == "served" for result in results] == [False, True, False, True]
        assert server.sizes == [1, 2]

    run(main())


def test_each_caller_has_its_own_deadline() -> None:
    """Who waits is certain that nothing was sent; who is in flight is in doubt."""

    async def main() -> None:
        server = Server()
        server.gate = asyncio.Event()
        sent = Asked(0.3)
        first = asyncio.create_task(server.pump.run(sent))
        await _until(lambda: server.out == 1)
        sent.in_flight = True
        patient = asyncio.create_task(_ask(server, 20))
        with pytest.raises(LateError) as late:
            await _ask(server, 0.01)
        assert not late.value.in_doubt
        with pytest.raises(LateError) as late:
            await first
        assert late.value.in_doubt
        server.gate.set()
        assert await patient == "served"

    run(main())


def test_an_answer_whose_delivery_was_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt may end a callback of the loop: who waits looks by itself."""
    monkeypatch.setattr(tasks, "_deliver", lambda _replies: None)

    async def main() -> None:
        assert await asyncio.wait_for(_ask(Server()), 3) == "served"

    run(main())
