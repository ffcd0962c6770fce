"""Callers stand in a line, and whoever gets the turn serves all who stand there.

A store with one connection per process lets one thread at a time use it. While that one works,
others queue up; the next to get the turn takes the whole queue into one transaction. So the cost
of a transaction is shared exactly when it is contended, and a lone caller pays for a free lock
and no more. A caller leaves at its deadline, served or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .sheet import Call

__all__ = ["AwaitedCall", "LateError", "Line", "settle"]


class LateError(Exception):
    """The deadline passed first. `taken`: someone was serving the call, and may have charged it."""

    def __init__(self, taken: bool) -> None:
        super().__init__(taken)
        self.taken = taken


class AwaitedCall(Call):
    """A call whose caller is a task."""

    __slots__ = ("future", "loop")

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[list[Any]]


class Line:
    """`lead(line, deadline)` is run by one thread at a time. It takes calls with `take` and gives
    all that it took to `settle`; it may raise only while it has taken none. Lines that use the
    same connection share a `turn`."""

    def __init__(self, lead: Callable[[Line, float], None], turn: threading.Lock) -> None:
        self._lead = lead
        self._waiting: deque[Call] = deque()
        self.turn = turn

    def __len__(self) -> int:
        return len(self._waiting)

    def stand(self, call: Call) -> None:
        self._waiting.append(call)

    def leave(self, call: Call) -> bool:
        """Whether the call could still be withdrawn."""
        try:
            self._waiting.remove(call)
        except ValueError:
            return False
        return True

    def take(self, most: int) -> list[Call]:
        """For the leader: the calls that stand in front."""
        taken: list[Call] = []
        waiting = self._waiting
        while waiting and len(taken) < most:
            taken.append(waiting.popleft())
        return taken

    def take_awaited(self) -> list[Call]:
        """For the leader: the calls of tasks, wherever they stand."""
        calls = self.take(len(self._waiting))
        self._waiting.extend(call for call in calls if not isinstance(call, AwaitedCall))
        return [call for call in calls if isinstance(call, AwaitedCall)]

    def wait(self, call: Call) -> None:
        """Stand in the line until the call is done, leading when it is our turn."""
        self._waiting.append(call)
        while not call.done:
            if not self.turn.acquire(blocking=False) and not self._acquire(call.deadline):
                if call.done:
                    return
                raise LateError(taken=not self.leave(call))
            try:
                if not call.done:
                    self._lead(self, call.deadline)
            except BaseException:
                self.leave(call)
                raise
            finally:
                self.turn.release()

    @contextlib.contextmanager
    def alone(self, deadline: float) -> Iterator[None]:
        """The turn, for something else than leading."""
        if not self._acquire(deadline):
            raise LateError(taken=False)
        try:
            yield
        finally:
            self.turn.release()

    def _acquire(self, deadline: float) -> bool:
        return self.turn.acquire(timeout=max(0.0, deadline - time.monotonic()))


def settle(calls: Iterable[Call]) -> None:
    """Tell the callers that their calls are done: threads look, loops are called."""
    awaited: dict[asyncio.AbstractEventLoop, list[AwaitedCall]] = {}
    for call in calls:
        call.done = True
        if isinstance(call, AwaitedCall):
            awaited.setdefault(call.loop, []).append(call)
    for loop, members in awaited.items():
        # A loop that has closed since has nobody left to tell.
        if not loop.is_closed():
            loop.call_soon_threadsafe(_deliver, members)


def _deliver(calls: list[AwaitedCall]) -> None:
    for call in calls:
        if call.future.done():
            continue
        if call.error is not None:
            call.future.set_exception(call.error)
        else:
            call.future.set_result(call.results)
