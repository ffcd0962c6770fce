"""Who works on a key, and who waits.

In one process, one batch at a time is under way per key. Whoever finds the key free leads a batch
of one; all who come meanwhile wait, and when the leader is done they go together as the next
batch. So a process never races with itself, a crowd on one key costs two requests per round trip
and not two per caller, and nobody is overtaken. The last to come leads, having the most time left;
the others give up at their own deadlines.

Nobody waits while leading: a caller of many keys has one bell for all of them and takes up the
lead of a key as soon as it is handed to it. Hence no deadlock, whatever the keys.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from copy import copy
from typing import Protocol

from ...core.errors import PenstockError
from ..sheet import Call

__all__ = ["Batch", "Caller", "Lines", "Stand"]

_GRACE_S = 1.0


class Caller(Protocol):
    """Whose call it is. Both are called under the lock of the lines: they must only take note."""

    def lead(self, batch: Batch) -> bool:
        """Settle the batch, please. False if the caller is no longer there."""
        ...

    def notice(self) -> None:
        """One of your stands has been answered."""
        ...


class Stand:
    """A caller's place in the line of one key. `call.done` says that it was answered."""

    __slots__ = ("call", "caller", "key")

    def __init__(self, key: str, call: Call, caller: Caller) -> None:
        self.key: str = key
        self.call: Call = call
        self.caller: Caller = caller


class Batch:
    """Those who are settled together; the last one leads. The line is theirs until `leave`."""

    __slots__ = ("key", "stands")

    def __init__(self, key: str, stands: Sequence[Stand]) -> None:
        self.key: str = key
        self.stands: Sequence[Stand] = stands

    @property
    def calls(self) -> list[Call]:
        return [stand.call for stand in self.stands]

    def is_abandoned(self) -> bool:
        """Its leader should have ended long ago: its loop was stopped, or its thread is stuck.
        Whatever it may yet write is on condition."""
        return time.monotonic() > self.stands[-1].call.deadline + _GRACE_S

    def fail(self, error: BaseException) -> None:
        """Every caller gets an exception object of its own: raising one writes to it."""
        for call in self.calls:
            call.error = copy(error) if isinstance(error, PenstockError) else error
            call.error.__cause__ = error.__cause__


class _Line:
    """The batch that is under way on a key, and who comes next."""

    __slots__ = ("batch", "waiting")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.waiting: list[Stand] = []


class Lines:
    """All lines of a store. A line exists while somebody leads it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[str, _Line] = {}

    def __len__(self) -> int:
        return len(self._lines)

    def enter(self, stands: Iterable[Stand]) -> list[Batch]:
        """Stand in line; returns the batches that the caller has to lead at once."""
        free = []
        with self._lock:
            for stand in stands:
                line = self._lines.get(stand.key)
                if line is not None and not line.batch.is_abandoned():
                    line.waiting.append(stand)
                    continue
                batch = Batch(stand.key, [*(line.waiting if line else ()), stand])
                self._lines[stand.key] = _Line(batch)
                free.append(batch)
        return free

    def leave(self, batch: Batch) -> None:
        """The batch is settled: answer its callers and let the next one lead."""
        with self._lock:
            for stand in batch.stands:
                stand.call.done = True
                stand.caller.notice()
            line = self._lines.get(batch.key)
            if line is None or line.batch is not batch:
                return
            stands = line.waiting
            while stands:
                following = Batch(batch.key, stands)
                if stands[-1].caller.lead(following):
                    self._lines[batch.key] = _Line(following)
                    return
                stands = stands[:-1]
            del self._lines[batch.key]

    def withdraw(self, stands: Iterable[Stand]) -> bool:
        """Give up those that still wait. True if that was all of them."""
        gave_up_all = True
        with self._lock:
            for stand in stands:
                line = self._lines.get(stand.key)
                if line is not None and stand in line.waiting:
                    line.waiting.remove(stand)
                elif not stand.call.done:
                    gave_up_all = False
        return gave_up_all
