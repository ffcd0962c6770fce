"""Group commit: the leader serves all waiters.

A store with one connection lets one thread at a time use it. While that one works, calls queue up,
and the next leader takes all of them into one batch. So the cost of a transaction is shared when
there is contention, and a lone caller pays only for an empty queue. A caller leaves at its
deadline, served or not.

The lead is handed on in order. If it went to the quickest, a thread that comes back at once would
win every time, and serve itself alone while the others wake up.

**A caller that gives up is told the truth.** Before a write is sent, its calls are marked
`in_flight`; the reply removes the mark. A leader marks first and then leaves out callers that
`has_left`; a caller that gives up first says that it leaves and then reads the mark. So one of the
two sees the other, whatever the timing: no call is written whose caller was told that it was not.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from .queue import Queue, ThreadWaiter, Waiter

__all__ = ["Batch", "CallQueue", "GroupCommit", "LateError", "QueuedCall"]


class LateError(Exception):
    """The deadline passed first. `in_doubt`: a write was in flight at that moment."""

    def __init__(self, *, in_doubt: bool) -> None:
        super().__init__(in_doubt)
        self.in_doubt = in_doubt


class QueuedCall:
    """What one caller wants of a batch.

    `in_flight`: a write of it may be on its way. `has_left`: nobody waits for it, and it must not
    be written any more. `done`: it has its answer or its `error`, and was told.
    """

    __slots__ = ("deadline", "done", "error", "has_left", "in_flight", "waiter")

    def __init__(self, deadline: float) -> None:
        self.deadline: float = deadline
        self.error: BaseException | None = None
        self.in_flight: bool = False
        self.has_left: bool = False
        self.done: bool = False
        self.waiter: Waiter | None = None

    def is_answered(self) -> bool:
        """Whether its outcome is known, so that only its caller has to be woken. That is so before
        the mark `in_flight` is removed."""
        return self.error is not None

    def fail(self, error: BaseException) -> None:
        """Answer with an error."""
        self.error = error


C = TypeVar("C", bound=QueuedCall)
R = TypeVar("R")


class Batch(Generic[C]):
    """The calls that a leader has taken. A call is recorded before it is taken from the queue, so
    that an interrupt cannot lose it."""

    __slots__ = ("_noted", "_pending", "calls", "leader")

    def __init__(self, pending: deque[C], leader: Waiter | None = None) -> None:
        self.leader: Waiter | None = leader
        self._pending = pending
        self._noted: list[C] = []
        self.calls: list[C] = []

    def take(self, most: int, wanted: Callable[[C], bool] | None = None) -> list[C]:
        """Take calls from the front, up to the first that is not wanted."""
        found = list(self._pending)
        if wanted is not None:
            found = found[: next((n for n, call in enumerate(found) if not wanted(call)), most)]
        return self._take(found if len(found) <= most else found[:most])

    def take_all(self, wanted: Callable[[C], bool]) -> list[C]:
        """Take every call that is wanted, wherever in the queue it is."""
        return self._take([call for call in list(self._pending) if wanted(call)])

    def _take(self, found: list[C]) -> list[C]:
        self._noted = found
        for call in found:
            # One removal succeeds: that of this leader, or of the caller that gives up.
            if _removed(self._pending, call) and not call.has_left:
                self.calls.append(call)
        return self.calls

    def finish(self) -> None:
        """Wake the callers whose calls are answered; the others wait for the next batch."""
        self._end(self.calls)

    def recover(self, in_doubt: Callable[[C], BaseException]) -> None:
        """Finish for a leader that was stopped. Calls still in flight get the error that
        `in_doubt` makes; those for whom nothing was sent wait for the next batch."""
        calls = self._taken()
        for call in calls:
            if call.in_flight and not call.is_answered():
                call.fail(in_doubt(call))
        self._end(calls)

    def fail(self, error: Callable[[C], BaseException]) -> None:
        """Answer calls that were taken and have no answer with an error that is made for each."""
        calls = self._taken()
        for call in calls:
            if not call.is_answered():
                call.fail(error(call))
        self._end(calls)

    def _taken(self) -> list[C]:
        """The calls that were taken, also by a leader that was interrupted while taking them."""
        return [call for call in self._noted if call not in self._pending]

    def _end(self, calls: list[C]) -> None:
        again = [
            call
            for call in reversed(calls)
            if not call.is_answered() and not call.has_left and not call.done
        ]
        if again:
            self._pending.extendleft(again)
        _settle(calls)


class CallQueue(Queue, Generic[C]):
    """A queue whose leader serves calls: the waiting calls, and the batch in flight."""

    __slots__ = ("_batch", "_pending")

    def __init__(self) -> None:
        super().__init__()
        self._pending: deque[C] = deque()
        self._batch: Batch[C] | None = None

    @property
    def pending(self) -> int:
        """How many calls are in no batch yet."""
        return len(self._pending)

    @property
    def unfinished(self) -> Batch[C] | None:
        """The batch in flight; for a new leader, that of an interrupted one."""
        return self._batch

    def first(self) -> C | None:
        """The call that has waited longest."""
        try:
            return self._pending[0]
        except IndexError:
            return None

    def last(self) -> C | None:
        """The call that came last, which has the most time left."""
        try:
            return self._pending[-1]
        except IndexError:
            return None

    def submit(self, call: C) -> None:
        """Wait to be served. Another caller has to lead."""
        self._pending.append(call)

    def withdraw(self, call: C) -> bool:
        """Give a call up. True: it is certain that nothing more will be written for it."""
        call.has_left = True
        return _removed(self._pending, call) or not call.in_flight

    # For the leader:

    def begin(self, leader: Waiter | None = None) -> Batch[C]:
        """A batch to take calls with. The one before must have been finished."""
        batch = self._batch = Batch(self._pending, leader)
        return batch

    def finish(self, batch: Batch[C]) -> None:
        """Wake the callers whose calls are answered; the others wait for the next batch."""
        batch.finish()
        self._close(batch)

    def recover(self, batch: Batch[C], in_doubt: Callable[[C], BaseException]) -> None:
        """Finish the batch of an interrupted leader: see `Batch`. A leader that was only passed
        over may still continue, so its calls must not be served by another."""
        if batch.leader is not None and batch.leader.is_running():
            batch.fail(in_doubt)
        else:
            batch.recover(in_doubt)
        self._close(batch)

    def _close(self, batch: Batch[C]) -> None:
        leader = self._waiters[0] if self._waiters else None
        for call in batch.calls:
            # They will leave by themselves, but the next leader should not have to wait for that.
            # A leader stays until its batch is done, whatever became of its own call.
            waiter = call.waiter
            if call.done and waiter is not leader and waiter is not None:
                self._remove(waiter)
        # A leader that was passed over, and goes on all the same, ends nobody else's batch.
        if self._batch is batch:
            self._batch = None


class GroupCommit(CallQueue[C]):
    """The queue of those who share one connection.

    `serve(batch, deadline)` takes calls and answers them. What it raises is the leader's own: a
    fault met before it took any call, or an interrupt. `mend(batch)` puts the connection in order
    after an interrupt, and takes the mark of those away for whom nothing can have been written;
    `in_doubt(call)` is the error for the others. All of them are run by one leader at a time.
    """

    __slots__ = ("_in_doubt", "_mend", "_serve")

    def __init__(
        self,
        serve: Callable[[Batch[C], float], None],
        mend: Callable[[Batch[C]], None],
        in_doubt: Callable[[C], BaseException],
    ) -> None:
        super().__init__()
        self._serve = serve
        self._mend = mend
        self._in_doubt = in_doubt

    def run(self, call: C) -> None:
        """Wait until the call is done; lead a batch when this caller is first in the queue."""
        waiter = call.waiter = ThreadWaiter(sys._getframe())
        try:
            self.submit(call)
            self.join(waiter)
            while not (call.done or call.has_left):
                if time.monotonic() >= call.deadline:
                    self._give_up(call)
                elif self.leads(waiter):
                    self._alone(waiter, self._serve, call.deadline)
                else:
                    waiter.rest(call.deadline - time.monotonic())
        finally:
            if not call.done:
                self.withdraw(call)
            self.leave(waiter)
            waiter.end()

    def in_turn(self, deadline: float, work: Callable[[Batch[C]], R]) -> R:
        """Do something else between batches, or serve callers that cannot lead themselves."""
        waiter = ThreadWaiter(sys._getframe())
        try:
            if not self.enter(waiter, deadline):
                raise LateError(in_doubt=False)
            return self._alone(waiter, work)
        finally:
            self.leave(waiter)
            waiter.end()

    def enter(self, waiter: ThreadWaiter, deadline: float) -> bool:
        """Wait for the lead; False if the deadline comes first. Either way, `leave`."""
        self.join(waiter)
        while not self.leads(waiter):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            waiter.rest(left)
        return True

    def _alone(self, leader: Waiter, work: Callable[..., R], *arguments: float) -> R:
        """Work with a batch, which the next leader finds if this one is stopped."""
        if self._batch is not None:
            self._repair()
        batch = self.begin(leader)
        try:
            result = work(batch, *arguments)
        except BaseException:
            batch.leader = None
            self._repair()
            raise
        self.finish(batch)
        return result

    def _repair(self) -> None:
        """Repair what an interrupted leader left."""
        batch = self._batch
        if batch is not None:
            self._mend(batch)
            self.recover(batch, self._in_doubt)

    def _give_up(self, call: C) -> None:
        in_doubt = not self.withdraw(call)
        if not call.is_answered():
            raise LateError(in_doubt=in_doubt)


def _settle(calls: Sequence[QueuedCall]) -> None:
    """Wake the callers whose calls are answered: threads one by one, event loops once each."""
    crowds: dict[Any, list[Any]] = {}
    for call in calls:
        if call.done or not call.is_answered():
            continue
        call.done = True
        waiter = call.waiter
        if waiter is None:
            continue
        if waiter.crowd is None:
            waiter.wake()
        else:
            crowds.setdefault(waiter.crowd, []).append(waiter)
    for waiters in crowds.values():
        waiters[0].wake_all(waiters)


def _removed(pending: deque[C], call: C) -> bool:
    try:
        pending.remove(call)
    except ValueError:
        return False
    return True
