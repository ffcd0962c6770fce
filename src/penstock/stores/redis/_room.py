"""Room for heavy calls: how much work for a server a process may have under way at once.

A server runs the commands that it has read from a connection before it sends any reply to them. If
16 batches of a thousand keys were sent at once, none of them would be answered within the deadline,
nor would the checks of other callers behind them, and that would look like an outage. So heavy
calls wait here for their turn, within their deadline. One that does not get it was not sent, and
has charged nothing. Light calls, which are nearly all, do not come here.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import Any

from ...core._loops import running_loop
from ...core._steps import Step
from ...core._transform import READING, Transform
from ...core._validation import MAX_PARTS

__all__ = ["HEAVY", "AsyncRoom", "SyncRoom", "weight_of", "weight_of_all"]


HEAVY = 250
"""Calls of more parts than that are heavy: they take the server more than half a millisecond."""

# A key of a batch takes the server as long as some units of a log.
_PARTS_PER_KEY = 4
_LOOK_AGAIN_S = 0.001


def weight_of(transform: Transform[Any], cost: int, keys: int = 1) -> int:
    """How many parts of states a call on so many keys reads or writes, roughly."""
    strategy = transform.strategy
    parts = 0
    if strategy is not None and strategy.unit_bytes:
        is_whole = transform.role == "pause" or transform.role in READING
        parts = strategy.limit if is_whole else min(cost, strategy.limit)
    return keys * max(parts, _PARTS_PER_KEY)


def weight_of_all(steps: Sequence[Step]) -> int:
    """The same for several steps."""
    return sum([weight_of(transform, cost) for _, transform, cost, _ in steps])


class AsyncRoom:
    """The room of the tasks of one event loop: first come, first served."""

    def __init__(self) -> None:
        self._taken = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def enter(self, weight: int, deadline: float) -> bool:
        """Wait for room, until the deadline: False if there was none. Every call that enters
        leaves."""
        if not self._waiting and self._fits(weight):
            self._taken += weight
            return True
        loop = running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        entry = weight, turn
        self._waiting.append(entry)
        try:
            await asyncio.wait({turn}, timeout=max(0.0, deadline - loop.time()))
        except BaseException:
            if turn.done():
                self.leave(weight)
            raise
        finally:
            if not turn.done():
                self._waiting.remove(entry)
                self._admit()
        return turn.done()

    def leave(self, weight: int) -> None:
        self._taken -= weight
        self._admit()

    def _fits(self, weight: int) -> bool:
        return not self._taken or self._taken + weight <= MAX_PARTS

    def _admit(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            weight, turn = self._waiting.popleft()
            self._taken += weight
            turn.set_result(None)


class _HeavyCall:
    __slots__ = ("deadline", "weight")

    def __init__(self, weight: int, deadline: float) -> None:
        self.weight = weight
        self.deadline = deadline


class SyncRoom:
    """The room of all threads. It has no lock, and an entry whose thread was interrupted before it
    left is dropped after its deadline, by which its call has ended."""

    def __init__(self) -> None:
        self._entries: set[_HeavyCall] = set()

    def enter(self, weight: int, deadline: float) -> _HeavyCall | None:
        """Wait for room, until the deadline: None if there was none."""
        entry = _HeavyCall(weight, deadline)
        while True:
            self._entries.add(entry)
            entries = list(self._entries)
            if len(entries) == 1 or sum([each.weight for each in entries]) <= MAX_PARTS:
                return entry
            self._entries.discard(entry)
            now = monotonic()
            if now >= deadline:
                return None
            for each in entries:
                if each is not entry and each.deadline < now:
                    self._entries.discard(each)
            time.sleep(_LOOK_AGAIN_S)

    def leave(self, entry: _HeavyCall) -> None:
        self._entries.discard(entry)
