"""Callers of a compare-and-swap store: who works on a key, and who waits.

In one process, there is one batch in flight per key. A caller that finds the key free leads a batch
of one; those that come meanwhile wait, and form the next batch when the leader is done. So a
process never races with itself, a crowd on one key costs two requests per round trip instead of two
per caller, and nobody is overtaken. The last to come leads, since it has the most time left; the
others give up at their own deadlines.

Calls that decide several keys at once wait in one queue of their own, `SEVERAL`, whatever their
keys: most have some in common, and within one batch they do not race with each other.

A caller never waits while it leads: a caller of many keys waits for all of them at once, and takes
the lead of each key as soon as it can. So there is no deadlock, whatever the keys.

A leader that should have ended long ago, because its loop was stopped or its thread is stuck, is
passed over. That is safe, since its writes are on condition.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from ..._queueing import Batch, CallQueue, Queues, ThreadWaiter, Waiter
from ..._queueing.tasks import Event, TaskWaiter
from ...core._errors import PenstockError
from ...core._flow import Flow, adrive, drive
from ...core._loops import running_loop
from .._sheet import Call, ConnectionFailedError, telling_of_others
from ._compare_and_swap import settle
from ._memory import RaceMemory
from ._requests import AnyRequest, CasFlow, RetryPause, Step, unavailable

__all__ = ["SEVERAL", "AsyncCaller", "Backend", "KeyQueue", "SyncCaller"]

SEVERAL = ""
"""No key is empty."""

# The most callers in one write: with more keys it is more likely that one has changed meanwhile.
_SHARED_KEYS = 32


GRACE_S = 1.0
"""After a leader's deadline, before it is passed over."""

# Strong references: a loop holds its tasks weakly.
_tasks: set[asyncio.Task[None]] = set()


class KeyQueue(CallQueue[Call]):
    """The queue of one key."""


class Backend(Protocol):
    """What a caller needs of a store."""

    timeout_ms: int
    queues: Queues[KeyQueue]
    memory: RaceMemory

    @property
    def max_record_bytes(self) -> int: ...

    @property
    def most_keys_at_once(self) -> int: ...

    def serve(self, requests: Sequence[AnyRequest], deadline: float) -> list[Any]: ...

    async def aserve(self, requests: Sequence[AnyRequest], deadline: float) -> list[Any]: ...


class _Entry:
    """A caller's place in the queue of one key, with what it wants of it."""

    __slots__ = ("call", "has_gone", "is_leading", "key", "queue", "waiter")

    def __init__(self, key: str, call: Call, waiter: Waiter) -> None:
        self.key = key
        self.call = call
        self.waiter = waiter
        self.queue: KeyQueue | None = None
        self.is_leading = False
        self.has_gone = False


class _Lead:
    """A batch, and the entry that leads it."""

    __slots__ = ("batch", "entry", "queue")

    def __init__(self, entry: _Entry, queue: KeyQueue, batch: Batch[Call]) -> None:
        self.entry = entry
        self.queue = queue
        self.batch = batch


class _Caller:
    """One call, whose keys are run some at a time, all of them within its deadline."""

    def __init__(self, store: Backend, deadline: float) -> None:
        self._store = store
        self._queues = store.queues
        self._deadline = deadline
        self._entries: list[_Entry] = []
        self._earlier: list[Call] = []

    def _enter(self, calls: Mapping[str, Call], waiters: Iterator[Waiter]) -> None:
        self._earlier += [entry.call for entry in self._entries]
        self._entries = []
        for key, call in calls.items():
            waiter = next(waiters)
            waiter.passed_over_at = self._deadline + GRACE_S
            call.waiter = waiter
            entry = _Entry(key, call, waiter)
            self._entries.append(entry)
            entry.queue = self._queues.join(key, waiter)
            assert entry.queue is not None
            entry.queue.submit(call)

    def _is_answered(self) -> bool:
        return all(entry.call.done for entry in self._entries)

    def _leads(self) -> list[_Lead]:
        """The batches that are this caller's to settle, now."""
        leads = []
        for entry in self._entries:
            queue = entry.queue
            if queue is None or entry.is_leading:
                continue
            if not entry.call.done and queue.leads(entry.waiter):
                self._repair(queue)
                if not entry.call.done:
                    entry.is_leading = True
                    leads.append(_Lead(entry, queue, queue.begin(entry.waiter)))
            if entry.call.done:
                self._go(entry)
        for lead in leads:
            lead.batch.take(lead.queue.pending)
        return leads

    def _repair(self, queue: KeyQueue) -> None:
        """Put right what a leader left that was stopped, or passed over."""
        batch = queue.unfinished
        if batch is not None:
            queue.recover(batch, _interrupted)

    def _flow(self, leads: Sequence[_Lead]) -> Flow[list[Step], None]:
        return _side_by_side([self._settling(lead) for lead in leads])

    def _settling(self, lead: _Lead) -> CasFlow:
        store, calls = self._store, lead.batch.calls
        room, memory = store.max_record_bytes, store.memory
        if lead.entry.key == SEVERAL:
            for keys, group in _groups(calls, min(store.most_keys_at_once, _SHARED_KEYS)):
                yield from settle(keys, group, room, memory)
        else:
            yield from settle((lead.entry.key,), calls, room, memory)

    def _finish(self, leads: Sequence[_Lead]) -> None:
        for lead in leads:
            lead.queue.finish(lead.batch)
            self._go(lead.entry)

    def _give_up_leads(self, leads: Sequence[_Lead]) -> None:
        """After an interrupt: what was not written is left to the next leader."""
        for lead in leads:
            lead.batch.leader = None
            if lead.queue.unfinished is lead.batch:
                lead.queue.recover(lead.batch, _interrupted)
            self._go(lead.entry)

    def _go(self, entry: _Entry) -> None:
        """Leave the queue of a key. The last to come inherits a lead."""
        queue = entry.queue
        if queue is not None and not entry.has_gone:
            last = queue.last() if queue.leads(entry.waiter) else None
            heir = None if last is None else last.waiter
            self._queues.leave(entry.key, queue, entry.waiter, heir)
            entry.has_gone = True

    def _leave(self) -> None:
        """Give up what is still waiting, but not what is being led."""
        for entry in self._entries:
            if not entry.call.done and entry.queue is not None:
                entry.queue.withdraw(entry.call)
            if not entry.is_leading:
                self._go(entry)

    def _answers(self) -> dict[str, Iterator[Any]]:
        for entry in self._entries:
            if entry.call.error is not None:
                raise self._told(entry.call.error, entry.call)
        return {entry.key: iter(entry.call.results) for entry in self._entries}

    def _told(self, error: BaseException, of: Call | None = None) -> BaseException:
        """The error, which speaks of the call `of`, with a word on all others of this caller."""
        calls = [*self._earlier, *(entry.call for entry in self._entries)]
        effects = {call.charged for call in calls if call is not of}
        for effect in (True, None):
            if effect in effects:
                return telling_of_others(error, effect)
        return error

    def _left_s(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _nap_s(self, pauses: Sequence[RetryPause]) -> float:
        """How long to wait before the requests are sent; raises if all callers have left."""
        seconds = max((pause.ms for pause in pauses), default=0.0) / 1000
        if seconds >= self._left_s():
            raise ConnectionFailedError("no time left to ask", may_have_run=False)
        return seconds

    def _give_up(self) -> None:
        """At the deadline: what still waits is withdrawn, and what is in flight is in doubt."""
        certain = [
            entry.queue is None or entry.call.done or entry.queue.withdraw(entry.call)
            for entry in self._entries
        ]
        if not self._is_answered():
            ms = self._store.timeout_ms
            error = unavailable(f"no answer at this key within {ms} ms", in_doubt=not all(certain))
            raise self._told(error)


class SyncCaller(_Caller):
    """Leads on its own thread."""

    def run(self, calls: Mapping[str, Call]) -> dict[str, Iterator[Any]]:
        """The results of the calls, each of which waits in the queue that it is given under."""
        waiter = ThreadWaiter(sys._getframe())
        try:
            self._enter(calls, iter(lambda: waiter, None))
            while not self._is_answered():
                if leads := self._leads():
                    self._settle(leads)
                elif self._left_s() <= 0:
                    self._give_up()
                else:
                    waiter.rest(self._left_s())
        finally:
            self._leave()
            waiter.end()
        return self._answers()

    def _settle(self, leads: list[_Lead]) -> None:
        try:
            drive(self._flow(leads), self._serve)
            self._finish(leads)
        except BaseException:
            self._give_up_leads(leads)
            raise

    def _serve(self, steps: Sequence[Step]) -> list[Any]:
        pauses, requests = _sorted(steps)
        if (seconds := self._nap_s(pauses)) > 0:
            time.sleep(seconds)
        return _merged(steps, self._store.serve(requests, self._deadline) if requests else [])


class AsyncCaller(_Caller):
    """Leads in a task of its own, so that cancelling one caller does not fail the others."""

    async def run(self, calls: Mapping[str, Call]) -> dict[str, Iterator[Any]]:
        self._woken = woken = Event()
        self._leading: dict[asyncio.Task[None], list[_Lead]] = {}
        self._loop = loop = running_loop()
        sleeper = TaskWaiter(woken, loop)
        try:
            # One for each key: a lead belongs to its task.
            self._enter(calls, iter(lambda: TaskWaiter(woken, loop), None))
            while not self._is_answered():
                if leads := self._leads():
                    self._start(leads)
                self._look_after_leads()
                # Its own lead ends by the same deadline, and says more about what went wrong.
                if self._left_s() <= 0 and not self._leading:
                    self._give_up()
                await sleeper.rest(self._left_s() or None)
        finally:
            self._leave()
        return self._answers()

    def _start(self, leads: list[_Lead]) -> None:
        task = self._loop.create_task(self._settle(leads))
        for lead in leads:
            waiter = lead.entry.waiter
            assert isinstance(waiter, TaskWaiter)
            waiter.hand_to(task)
        self._leading[task] = leads
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)

    def _look_after_leads(self) -> None:
        """Leads that were stopped without a word."""
        for task in [task for task in self._leading if task.done()]:
            self._stop(self._leading.pop(task), None if task.cancelled() else task.exception())

    async def _settle(self, leads: list[_Lead]) -> None:
        try:
            await adrive(self._flow(leads), self._serve)
            self._finish(leads)
        except BaseException as error:
            self._stop(leads, error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._woken.set()

    def _stop(self, leads: list[_Lead], error: BaseException | None) -> None:
        """End leads that were interrupted. Only their caller gets the exception."""
        for lead in leads:
            call = lead.entry.call
            if not call.done and not call.is_answered():
                why = "its end" if error is None else type(error).__name__
                told = unavailable(f"interrupted by {why}", in_doubt=call.in_flight)
                told.__cause__ = error
                call.fail(told)
        self._give_up_leads(leads)

    async def _serve(self, steps: Sequence[Step]) -> list[Any]:
        pauses, requests = _sorted(steps)
        if (seconds := self._nap_s(pauses)) > 0:
            await asyncio.sleep(seconds)
        answers = await self._store.aserve(requests, self._deadline) if requests else []
        return _merged(steps, answers)


def _groups(calls: Sequence[Call], most_keys: int) -> Iterator[tuple[list[str], list[Call]]]:
    """Calls in order, and the keys that they have together: as many as can be written at once."""
    keys: dict[str, None] = {}
    group: list[Call] = []
    for call in calls:
        joined = {**keys, **dict.fromkeys(step[0] for step in call.steps)}
        if group and len(joined) > most_keys:
            yield list(keys), group
            joined, group = dict.fromkeys(step[0] for step in call.steps), []
        keys = joined
        group.append(call)
    yield list(keys), group


def _interrupted(_call: Call) -> BaseException:
    return unavailable("the caller that was writing was interrupted", in_doubt=True)


def _sorted(steps: Sequence[Step]) -> tuple[list[RetryPause], list[AnyRequest]]:
    pauses = [step for step in steps if isinstance(step, RetryPause)]
    return pauses, [step for step in steps if not isinstance(step, RetryPause)]


def _merged(steps: Sequence[Step], answers: list[Any]) -> list[Any]:
    """The answers of the requests, and None for each pause."""
    rest = iter(answers)
    return [None if isinstance(step, RetryPause) else next(rest) for step in steps]


def _side_by_side(flows: Sequence[CasFlow]) -> Flow[list[Step], None]:
    """Several flows that go in step: each step's requests are served together.

    Yields lists of steps and is sent, for each, its answer or the exception it met. An exception
    of the server side as a whole is everybody's.
    """
    pending: dict[int, Step] = {}
    for place, flow in enumerate(flows):
        _resume(pending, place, flow, None)
    while pending:
        places = list(pending)
        try:
            answers: list[Any] = yield [pending[place] for place in places]
        except (ConnectionFailedError, PenstockError) as error:
            answers = [error] * len(places)
        for place, answer in zip(places, answers, strict=True):
            _resume(pending, place, flows[place], answer)


def _resume(pending: dict[int, Step], place: int, flow: CasFlow, answer: Any) -> None:
    try:
        if isinstance(answer, Exception):
            pending[place] = flow.throw(_fault(answer))
        else:
            pending[place] = flow.send(answer)
    except StopIteration:
        pending.pop(place, None)


def _fault(error: Exception) -> Exception:
    """The error of a request. An unknown exception of a driver counts as an outage."""
    if isinstance(error, (ConnectionFailedError, PenstockError)):
        return error
    fault = ConnectionFailedError(f"{type(error).__name__}: {error}", may_have_run=True)
    fault.__cause__ = error
    return fault
