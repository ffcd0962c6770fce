"""Batches of calls to PostgreSQL: those of threads, and those of the tasks of one event loop.

While a batch is in flight, calls wait, and the next batch takes them all: the busier the store, the
more calls share a round trip and a commit. A connection is obtained before calls are taken, so that
a caller that gives up while connecting has certainly not been charged.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from copy import copy
from typing import Any

from ..._queueing import Batch, GroupCommit, LateError
from ..._queueing.tasks import Pump
from ...core._errors import PenstockError
from ...core._flow import adrive, drive
from .._sheet import AnyStep, Call, ConnectionFailedError, telling_of_others
from ._flows import PostgresFlows
from ._requests import PostgresFlow, RefusalError, interrupted, late, unavailable

__all__ = ["AsyncCommits", "SyncCommits"]

_MOST_CALLS = 256
"""Calls per batch, so that no row is held for long."""
_LEAST_S = 0.02
"""How much time a call must have left to be sent; a twentieth of the timeout, if that is less."""


class _Commits:
    """What both kinds of batches share: connections, the flows over the table, and error
    messages."""

    def __init__(self, connections: Any, flows: PostgresFlows, timeout_ms: int) -> None:
        self.connections = connections
        self._flows = flows
        self._timeout_ms = timeout_ms
        self._timeout_s = timeout_ms / 1000

    def _take(self, batch: Batch[Call]) -> list[Call]:
        """The calls of the batch. Calls that are too close to their deadline to get a reply fail
        now, uncharged, rather than in doubt a moment later."""
        too_late = time.monotonic() + min(_LEAST_S, self._timeout_ms / 20_000)
        for call in batch.take(_MOST_CALLS):
            if call.deadline < too_late:
                call.fail(late(self.connections.where, self._timeout_ms, in_doubt=False))
        return batch.calls

    def _fail(
        self, calls: list[Call], error: ConnectionFailedError | RefusalError | PenstockError
    ) -> None:
        """The end of all calls that are still open, each with an exception of its own."""
        for call in calls:
            if call.open:
                call.fail(self._told(call, error))
                call.in_flight = False

    def _told(
        self, call: Call, error: ConnectionFailedError | RefusalError | PenstockError
    ) -> BaseException:
        if isinstance(error, PenstockError):
            return copy(error)
        return unavailable(error, self._flows.schema.table, was_sent=call.in_flight)

    def _tell_of_others(self, calls: list[Call]) -> None:
        """Errors come with a word on the other keys of the same call."""
        for call in calls:
            if call.error is not None and not call.open:
                call.error = telling_of_others(call.error, call.charged)

    def _late(self, call: Call, *, in_doubt: bool) -> BaseException:
        error = late(self.connections.where, self._timeout_ms, in_doubt=in_doubt)
        return telling_of_others(error, call.charged)

    def _interrupted(self, call: Call) -> BaseException:
        error = interrupted(self.connections.where, in_doubt=call.in_flight)
        return telling_of_others(error, call.charged)

    def _unavailable(self, error: ConnectionFailedError | RefusalError) -> PenstockError:
        """The error of an operation that is not a check, and charges nothing."""
        return unavailable(error, self._flows.schema.table, was_sent=False)


def _mend(_batch: Batch[Call]) -> None:
    """Nothing to repair after an interrupt: `borrow` checks whether the connection is idle."""


class SyncCommits(_Commits):
    """The batches of threads."""

    def __init__(self, connections: Any, flows: PostgresFlows, timeout_ms: int) -> None:
        super().__init__(connections, flows, timeout_ms)
        self._begin()

    def _begin(self) -> None:
        self._queue: GroupCommit[Call] = GroupCommit(self._serve, _mend, self._interrupted)
        self._last = 0

    def forget(self) -> None:
        """In the child of a fork: begin anew."""
        self.connections.forget()
        self._begin()

    def apply(self, steps: Sequence[AnyStep], now: int, *, is_whole: bool = False) -> list[Any]:
        call = Call(steps, now, time.monotonic() + self._timeout_s, is_whole=is_whole)
        try:
            self._queue.run(call)
        except LateError as error:
            raise self._late(call, in_doubt=error.in_doubt) from None
        return call.answer()

    def run(self, flow: PostgresFlow, timeout_ms: int) -> Any:
        """A flow that is not a batch, between batches."""
        deadline = time.monotonic() + timeout_ms / 1000
        try:
            return self._queue.in_turn(deadline, lambda _batch: self._drive(flow, deadline))
        except LateError:
            raise late(self.connections.where, timeout_ms, in_doubt=False) from None
        except (ConnectionFailedError, RefusalError) as error:
            raise self._unavailable(error) from error

    def init(self, timeout_ms: int) -> None:
        """On a connection of its own, since the others require the table to be there."""
        deadline = time.monotonic() + timeout_ms / 1000
        try:
            connection = self.connections.connect(deadline)
            try:
                flow = self._flows.schema.init()
                drive(flow, lambda request: connection.run(request, deadline))
            finally:
                self.connections.drop(connection)
        except (ConnectionFailedError, RefusalError) as error:
            raise self._unavailable(error) from error

    def close(self) -> None:
        deadline = time.monotonic() + self._timeout_ms / 1000
        with contextlib.suppress(LateError):
            self._queue.in_turn(deadline, lambda _batch: self.connections.close())

    def _serve(self, batch: Batch[Call], deadline: float) -> None:
        if self._queue.pending < self._last:
            # Yield once: callers just answered may join this commit, which makes a sixth more
            # checks from 8 threads on a disk that is waited for.
            time.sleep(0)
        try:
            self._run(batch, deadline)
        except (ConnectionFailedError, RefusalError, PenstockError) as error:
            self._fail(batch.calls or batch.take(_MOST_CALLS), error)
        self._tell_of_others(batch.calls)

    def _run(self, batch: Batch[Call], deadline: float) -> None:
        connection = self.connections.borrow(deadline)
        try:
            calls = self._take(batch)
            self._last = len(calls)
            drive(self._flows.run(calls), lambda request: connection.run(request, deadline))
        finally:
            self.connections.give_back(connection)

    def _drive(self, flow: PostgresFlow, deadline: float) -> Any:
        connection = self.connections.borrow(deadline)
        try:
            return drive(flow, lambda request: connection.run(request, deadline))
        finally:
            self.connections.give_back(connection)


class AsyncCommits(_Commits):
    """The batches of the tasks of one event loop."""

    def __init__(self, connections: Any, flows: PostgresFlows, timeout_ms: int) -> None:
        super().__init__(connections, flows, timeout_ms)
        self._pump: Pump[Call] = Pump(self._serve, self._broken, most_calls=_MOST_CALLS)

    async def apply(
        self, steps: Sequence[AnyStep], now: int, *, is_whole: bool = False
    ) -> list[Any]:
        call = Call(steps, now, time.monotonic() + self._timeout_s, is_whole=is_whole)
        try:
            await self._pump.run(call)
        except LateError as error:
            raise self._late(call, in_doubt=error.in_doubt) from None
        return call.answer()

    async def run(self, flow: PostgresFlow, timeout_ms: int) -> Any:
        """A flow that is not a batch, on a connection of its own."""
        return await self._apart(flow, timeout_ms, sets_up=True)

    async def init(self, timeout_ms: int) -> None:
        await self._apart(self._flows.schema.init(), timeout_ms, sets_up=False)

    async def aclose(self) -> None:
        await self._pump.drain(self._timeout_ms / 1000)
        await self.connections.aclose()

    async def _apart(self, flow: PostgresFlow, timeout_ms: int, *, sets_up: bool) -> Any:
        deadline = time.monotonic() + timeout_ms / 1000
        try:
            connection = await self.connections.connect(deadline, sets_up)
            try:
                return await adrive(flow, lambda request: connection.execute(request, deadline))
            finally:
                await self.connections.drop(connection)
        except (ConnectionFailedError, RefusalError) as error:
            raise self._unavailable(error) from error

    async def _serve(self, batch: Batch[Call]) -> None:
        try:
            await self._run(batch)
        except (ConnectionFailedError, RefusalError, PenstockError) as error:
            self._fail(batch.calls or batch.take(_MOST_CALLS), error)
        self._tell_of_others(batch.calls)

    async def _run(self, batch: Batch[Call]) -> None:
        # Each caller has its own timer; the batch continues for the one with the most time.
        last = self._pump.last()
        connection = await self.connections.borrow(0.0 if last is None else last.deadline)
        try:
            calls = self._take(batch)
            deadline = max((call.deadline for call in calls), default=0.0)
            flow = self._flows.run(calls)
            await adrive(flow, lambda request: connection.execute(request, deadline))
        finally:
            await self.connections.give_back(connection)

    def _broken(self, call: Call, error: BaseException | None) -> BaseException:
        told = self._interrupted(call)
        told.__cause__ = error
        return told
