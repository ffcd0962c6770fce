"""One lane per colour, in which batches travel one after the other.

While a batch is on its way, calls queue up, and the next batch takes them all: the busier the
lane, the more calls share a round trip and a commit. A thread that has the turn leads for all who
wait (see `line`); on an event loop a task does, for as long as there is something to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any

from ...core.errors import PenstockError
from ...core.flow import adrive, drive
from ...core.store import Transform
from ..line import AwaitedCall, LateError, Line, settle
from ..sheet import Call, telling_of_others
from .faults import interrupted, late, unavailable
from .flows import Flows
from .requests import LinkError, PostgresFlow, RefusalError, Request
from .sources import run_blocking

__all__ = ["AsyncLane", "BlockingLane"]

_MOST_CALLS = 256
"""Calls per batch, so that no row is held for long."""


class BlockingLane:
    """The lane of the threads."""

    def __init__(self, source: Any, flows: Flows, timeout_ms: int) -> None:
        self.source = source
        self._flows = flows
        self._timeout_ms = timeout_ms
        self._line = Line(self._lead)
        self._last = 0

    def apply_many(
        self, keys: Sequence[str], transform: Transform[Any], now: int, cost: int
    ) -> list[Any]:
        call = Call(keys, transform, now, cost, time.monotonic() + self._timeout_ms / 1000)
        try:
            self._line.wait(call)
        except LateError as error:
            raise late(self.source.where, self._timeout_ms, taken=error.taken) from None
        return call.answer()

    def run(self, flow: PostgresFlow, timeout_ms: int) -> Any:
        """A flow that is not a batch, between batches."""
        deadline = time.monotonic() + timeout_ms / 1000
        try:
            with self._line.alone(deadline):
                return self._drive(flow, deadline)
        except LateError:
            raise late(self.source.where, timeout_ms, taken=False) from None
        except (LinkError, RefusalError) as error:
            raise unavailable(error, self._flows.schema.table) from error

    def init(self, timeout_ms: int) -> None:
        """On a connection of its own, since the others require the table to be there."""
        deadline = time.monotonic() + timeout_ms / 1000
        try:
            link = self.source.connect(deadline, None)
            try:
                self._serve_on(link, self._flows.schema.init(), deadline)
            finally:
                self.source.give_back(link)
                self.source.close()
        except (LinkError, RefusalError) as error:
            raise unavailable(error, self._flows.schema.table) from error

    def close(self) -> None:
        deadline = time.monotonic() + self._timeout_ms / 1000
        with contextlib.suppress(LateError), self._line.alone(deadline):
            self.source.close()

    def _lead(self, line: Line, deadline: float) -> None:
        if len(line) < self._last:
            # Those whom the last batch answered are on their way back, and may share this commit:
            # a sixth more checks from 8 threads on a disk that is waited for.
            time.sleep(0)
        calls = line.take(_MOST_CALLS)
        self._last = len(calls)
        with answering(calls, self._flows.schema.table, self.source.where):
            self._drive(self._flows.run(calls), deadline)

    def _drive(self, flow: PostgresFlow, deadline: float) -> Any:
        link = self.source.borrow(deadline)
        try:
            return self._serve_on(link, flow, deadline)
        finally:
            self.source.give_back(link)

    def _serve_on(self, link: Any, flow: PostgresFlow, deadline: float) -> Any:
        return drive(flow, lambda ask: run_blocking(link, ask, self.source.where, deadline))


class AsyncLane:
    """The lane of the tasks of one event loop."""

    def __init__(self, source: Any, flows: Flows, timeout_ms: int) -> None:
        self.source = source
        self._flows = flows
        self._timeout_ms = timeout_ms
        self._waiting: deque[AwaitedCall] = deque()
        self._pump: asyncio.Task[None] | None = None

    async def apply_many(
        self, keys: Sequence[str], transform: Transform[Any], now: int, cost: int
    ) -> list[Any]:
        deadline = time.monotonic() + self._timeout_ms / 1000
        call = AwaitedCall(keys, transform, now, cost, deadline)
        call.loop = asyncio.get_running_loop()
        call.future = call.loop.create_future()
        timer = call.loop.call_later(self._timeout_ms / 1000, self._expire, call)
        self._waiting.append(call)
        if self._pump is None:
            self._pump = call.loop.create_task(self._run_batches())
        try:
            return await call.future
        finally:
            timer.cancel()
            self._leave(call)

    async def run(self, flow: PostgresFlow, timeout_ms: int) -> Any:
        """A flow that is not a batch, on a connection of its own."""
        return await self._apart(flow, timeout_ms, greeted=True)

    async def init(self, timeout_ms: int) -> None:
        await self._apart(self._flows.schema.init(), timeout_ms, greeted=False)

    async def aclose(self) -> None:
        if self._pump is not None:
            await asyncio.wait([self._pump], timeout=self._timeout_ms / 1000)
        await self.source.aclose()

    async def _apart(self, flow: PostgresFlow, timeout_ms: int, *, greeted: bool) -> Any:
        deadline = time.monotonic() + timeout_ms / 1000
        try:
            link = await self.source.connect(deadline, greeted)
            try:
                return await adrive(flow, lambda ask: link.execute(ask, deadline))
            finally:
                await self.source.let_go(link)
        except (LinkError, RefusalError) as error:
            raise unavailable(error, self._flows.schema.table) from error

    async def _run_batches(self) -> None:
        try:
            while self._waiting:
                calls: list[Call] = []
                while self._waiting and len(calls) < _MOST_CALLS:
                    calls.append(self._waiting.popleft())
                with answering(calls, self._flows.schema.table, self.source.where):
                    await self._drive(calls)
        finally:
            self._pump = None

    async def _drive(self, calls: list[Call]) -> None:
        # Each caller has a timer of its own; the batch goes on for the one that has most time.
        deadline = max(call.deadline for call in calls)
        link = await self.source.borrow(deadline)

        async def serve(request: Request) -> Any:
            return await link.execute(request, deadline)

        try:
            await adrive(self._flows.run(calls), serve)
        finally:
            await self.source.give_back(link)

    def _expire(self, call: AwaitedCall) -> None:
        if not call.future.done():
            taken = not self._leave(call)
            call.future.set_exception(late(self.source.where, self._timeout_ms, taken=taken))

    def _leave(self, call: AwaitedCall) -> bool:
        if call.done:
            return False
        try:
            self._waiting.remove(call)
        except ValueError:
            return False
        return True


@contextlib.contextmanager
def answering(calls: list[Call], table: str, where: str) -> Iterator[None]:
    """Every call of a batch gets its answer, whatever happens."""
    try:
        yield
    except (LinkError, RefusalError) as error:
        _fail(calls, unavailable(error, table))
    except PenstockError as error:
        _fail(calls, error)
    except BaseException:
        _fail(calls, interrupted(where))
        raise
    finally:
        for call in calls:
            if call.error is not None:
                call.error = telling_of_others(call.error, call.charged)
        settle(calls)


def _fail(calls: list[Call], error: PenstockError) -> None:
    """The same error for all that are still open, each an exception of its own."""
    for call in calls:
        if call.open:
            call.error = copy(error)
