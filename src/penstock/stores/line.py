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

from .sheet import Call, closed_lock

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
    all that it took to `settle`; it may raise only while it has taken none.

    The turn is handed on, never dropped for whoever is quickest: a thread that comes back at once
    would win every time, and serve itself alone while the others wake up.
    """

    def __init__(self, lead: Callable[[Line, float], None]) -> None:
        self._lead = lead
        self._gate = threading.Lock()
        self._busy = False
        self._waiting: deque[Call] = deque()
        self._apart: deque[threading.Lock] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def stand(self, call: AwaitedCall) -> None:
        """For a task, which never leads: somebody else must."""
        self._waiting.append(call)

    def leave(self, call: Call) -> bool:
        """Whether the call could still be withdrawn."""
        try:
            self._waiting.remove(call)
        except ValueError:
            return False
        return True

    def front(self) -> Call | None:
        """For the leader: the call that stands first. None if it has just left."""
        try:
            return self._waiting[0]
        except IndexError:
            return None

    def take(self, most: int, wanted: Callable[[Call], bool] | None = None) -> list[Call]:
        """For the leader: calls from the front, up to the first that is not wanted."""
        taken: list[Call] = []
        waiting = self._waiting
        while len(taken) < most:
            try:
                call = waiting.popleft()
            except IndexError:
                break
            if wanted is not None and not wanted(call):
                waiting.appendleft(call)
                break
            taken.append(call)
        return taken

    def take_awaited(self) -> list[Call]:
        """For the leader: the calls of tasks, wherever they stand."""
        calls = self.take(len(self._waiting))
        self._waiting.extend(call for call in calls if not isinstance(call, AwaitedCall))
        return [call for call in calls if isinstance(call, AwaitedCall)]

    def wait(self, call: Call) -> None:
        """Stand in the line until the call is done, leading when it is our turn."""
        with self._gate:
            self._waiting.append(call)
            leads, self._busy = not self._busy, True
        while not call.done:
            if leads or self._is_to_lead(call):
                self._lead_once(call)
            leads = False

    def enter(self, deadline: float) -> bool:
        """Get the turn for something else than a call; `hand_on` gives it back."""
        with self._gate:
            if not self._busy:
                self._busy = True
                return True
            signal = closed_lock()
            self._apart.append(signal)
        try:
            if _acquire(signal, deadline):
                return True
        except BaseException:
            self._give_up(signal)
            raise
        self._give_up(signal)
        return False

    def hand_on(self) -> None:
        """Pass the turn to the next that can lead, or put it down."""
        with self._gate:
            if self._apart:
                self._apart.popleft().release()
                return
            for call in list(self._waiting):
                if not isinstance(call, AwaitedCall):
                    call.signal.release()
                    return
            self._busy = False

    @contextlib.contextmanager
    def alone(self, deadline: float) -> Iterator[None]:
        """The turn, as a block."""
        if not self.enter(deadline):
            raise LateError(taken=False)
        try:
            yield
        finally:
            self.hand_on()

    def _lead_once(self, call: Call) -> None:
        try:
            self._lead(self, call.deadline)
        except BaseException:
            self.leave(call)
            raise
        finally:
            self.hand_on()

    def _is_to_lead(self, call: Call) -> bool:
        """Wait for a word: False says that the call is done. At the deadline, leave."""
        try:
            if _acquire(call.signal, call.deadline):
                return not call.done
        except BaseException:
            self._withdraw(call)
            raise
        taken = not self._withdraw(call)
        if call.done:
            return False
        raise LateError(taken)

    def _withdraw(self, call: Call) -> bool:
        """Leave, and pass on the turn if it was given to us just now."""
        with self._gate:
            withdrawn = self.leave(call)
            promoted = withdrawn and call.signal.acquire(blocking=False)
        if promoted:
            self.hand_on()
        return withdrawn

    def _give_up(self, signal: threading.Lock) -> None:
        with self._gate:
            if signal in self._apart:
                self._apart.remove(signal)
                return
        self.hand_on()


def _acquire(lock: threading.Lock, deadline: float) -> bool:
    return lock.acquire(timeout=max(0.0, deadline - time.monotonic()))


def settle(calls: Iterable[Call]) -> None:
    """Tell the callers that their calls are done: threads look, loops are called."""
    awaited: dict[asyncio.AbstractEventLoop, list[AwaitedCall]] = {}
    for call in calls:
        call.done = True
        if isinstance(call, AwaitedCall):
            awaited.setdefault(call.loop, []).append(call)
        else:
            call.signal.release()
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
