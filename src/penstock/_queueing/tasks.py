"""Tasks of an event loop in the same queues as threads, and batches that a loop serves itself.

Imported only by async callers, because importing asyncio takes time.

A task is interrupted where it awaits, by cancellation. But a signal handler that raises in the
thread of a loop may end any callback that is running, one of asyncio's own included, and no code in
that loop can repair that. So the guarantee is: what such a loop held is free for everybody else and
for its own next caller, and a task that was not woken in time looks by itself.

`SharedCall` shares one result: one call serves all callers that asked before it began.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from asyncio import Event
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from . import fork
from .commit import Batch, LateError, QueuedCall
from .queue import FIRST_LOOK_S, LAST_LOOK_S, Place, Queue, Queues, Waiter

__all__ = ["Event", "Pump", "Reply", "SharedCall", "TaskPlace", "TaskWaiter"]


class TaskWaiter(Waiter):
    """A task, for as long as it runs and its loop is open.

    Its owner holds on to `woken`, and the waiter does not: a queue must not keep a task alive
    whose loop was closed under it.
    """

    __slots__ = ("_generation", "_look_s", "_task", "_woken", "loop")

    def __init__(self, woken: Event, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.loop = loop
        self._woken = weakref.ref(woken)
        self._generation = fork._generation
        self._look_s = FIRST_LOOK_S
        task = asyncio.current_task()
        self._task: Callable[[], asyncio.Task[Any] | None] | None
        self._task = None if task is None else weakref.ref(task)

    def hand_to(self, task: asyncio.Task[Any]) -> None:
        """From here on it is `task`, of the same loop, that waits or leads."""
        self._task = weakref.ref(task)

    def is_running(self) -> bool:
        if self.loop.is_closed() or self._generation is not fork._generation:
            return False
        if self._task is None:
            return True
        task = self._task()
        return task is not None and not task.done()

    def wake(self) -> None:
        woken = self._woken()
        if woken is None:
            return
        if asyncio._get_running_loop() is self.loop:
            woken.set()
        else:
            # A loop may close at any moment, and says so with this error.
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(woken.set)

    def end(self) -> None:
        self._task = _nobody

    async def rest(self, seconds: float | None = None) -> None:
        """Sleep until woken, for at most `seconds`, and only briefly, so that a leader that has
        ended is noticed."""
        if seconds is None or self._look_s < seconds:
            seconds, self._look_s = self._look_s, min(2 * self._look_s, LAST_LOOK_S)
        await self.sleep(seconds)

    async def sleep(self, seconds: float | None = None) -> None:
        """As `rest`, for a leader, which has nobody ahead of it to watch."""
        woken = self._woken()
        assert woken is not None
        timer = None
        if seconds is not None:
            timer = self.loop.call_later(max(0.0, seconds), woken.set)
        try:
            await woken.wait()
        finally:
            if timer is not None:
                timer.cancel()
        woken.clear()


def _nobody() -> None:
    """In place of a reference to a task: there is none any more."""


Q = TypeVar("Q", bound=Queue)


class TaskPlace(Place[Q]):
    """A place in the queue of a key for the running task. It is entered as an async context, or
    with `enter`, and then has to be left."""

    __slots__ = ("_woken",)

    waiter: TaskWaiter

    def __init__(self, queues: Queues[Q], key: str, queue: Q, waiter: TaskWaiter, woken: Event):
        super().__init__(queues, key, queue, waiter)
        # The waiter does not hold it.
        self._woken = woken

    @classmethod
    def of_task(
        cls,
        queues: Queues[Q],
        key: str,
        loop: asyncio.AbstractEventLoop,
        admit: Callable[[Q], Any] | None = None,
    ) -> TaskPlace[Q] | None:
        """A place, if the queue admits it."""
        woken = Event()
        waiter = TaskWaiter(woken, loop)
        queue = queues.join(key, waiter, admit)
        return None if queue is None else cls(queues, key, queue, waiter, woken)

    async def enter(self) -> None:
        """Wait for the lead. A task that is cancelled meanwhile has left the queue."""
        try:
            while not self.queue.leads(self.waiter):
                await self.waiter.rest()
        except BaseException:
            self.leave()
            raise

    async def __aenter__(self) -> TaskPlace[Q]:
        await self.enter()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()


class _Server(Protocol):
    """Where a call waits to be served."""

    def withdraw(self, call: Any) -> bool: ...

    def look(self) -> None:
        """Make sure that there is a leader."""
        ...


class Reply(Waiter):
    """What a task awaits the answer to its call with. It is in no queue: others lead."""

    __slots__ = ("_call", "_future", "_look_s", "_server", "_timer", "crowd")

    def __init__(self, call: QueuedCall, server: _Server, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.crowd = loop
        self._call = call
        self._server = server
        self._future: asyncio.Future[None] = self.crowd.create_future()
        self._look_s = FIRST_LOOK_S
        call.waiter = self

    async def wait(self) -> None:
        """Until the call is done, or, with a `LateError`, its deadline has passed."""
        self._rest(self._call.deadline - time.monotonic())
        try:
            await self._future
        finally:
            self._timer.cancel()
            if not self._call.done:
                self._server.withdraw(self._call)
            # They hold each other, and would be left to the garbage collector.
            self._call.waiter = None

    def wake_all(self, replies: Sequence[Reply]) -> None:
        if asyncio._get_running_loop() is self.crowd:
            _deliver(replies)
        else:
            # The loop has closed since: there is no task left to wake.
            with contextlib.suppress(RuntimeError):
                self.crowd.call_soon_threadsafe(_deliver, replies)

    def wake(self) -> None:
        self.wake_all((self,))

    def end(self) -> None:
        """It is in no queue."""

    def deliver(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    def _rest(self, left_s: float) -> None:
        look_s, self._look_s = self._look_s, min(2 * self._look_s, LAST_LOOK_S)
        self._timer = self.crowd.call_later(max(0.0, min(look_s, left_s)), self._look)

    def _look(self) -> None:
        call = self._call
        left_s = call.deadline - time.monotonic()
        # First of all, as what follows may be interrupted.
        self._rest(max(left_s, FIRST_LOOK_S))
        if call.done:
            self.deliver()
        elif left_s <= 0:
            self._expire()
        else:
            self._server.look()

    def _expire(self) -> None:
        in_doubt = not self._server.withdraw(self._call)
        if self._call.is_answered():
            self.deliver()
        elif not self._future.done():
            self._future.set_exception(LateError(in_doubt=in_doubt))


def _deliver(replies: Sequence[Reply]) -> None:
    for reply in replies:
        reply.deliver()


C = TypeVar("C", bound=QueuedCall)


class Pump(Generic[C]):
    """Group commit for the tasks of one event loop. Batches are served by tasks of the pump, at
    most `most_batches` of them at once: cancelling a caller does not fail those beside it.

    `serve(batch)` takes calls and answers them. What it raises all the same becomes, by
    `failed(call, error)`, the error of the calls it took; `error` is None if nobody knows it.
    """

    def __init__(
        self,
        serve: Callable[[Batch[C]], Awaitable[None]],
        failed: Callable[[C, BaseException | None], BaseException],
        *,
        most_calls: int,
        most_batches: int = 1,
    ) -> None:
        self._serve = serve
        self._failed = failed
        self._most_calls = most_calls
        self._most_batches = most_batches
        self._pending: deque[C] = deque()
        self._leaders: dict[asyncio.Task[None], Batch[C] | None] = {}

    @property
    def pending(self) -> int:
        """How many calls are in no batch yet."""
        return len(self._pending)

    def last(self) -> C | None:
        """The call that came last, which has the most time left."""
        return self._pending[-1] if self._pending else None

    async def run(self, call: C) -> None:
        """Wait until the call is done, or, with a `LateError`, its deadline has passed."""
        reply = self.submit(call)
        self.look()
        await reply.wait()

    def submit(self, call: C) -> Reply:
        """Wait to be served; `look` and the reply's `wait` have to follow."""
        reply = Reply(call, self, asyncio.get_running_loop())
        self._pending.append(call)
        return reply

    def withdraw(self, call: C) -> bool:
        """Give a call up. True: it is certain that nothing more will be written for it."""
        call.has_left = True
        try:
            self._pending.remove(call)
        except ValueError:
            return not call.in_flight
        return True

    def look(self) -> None:
        """Start as many leaders as there is work for."""
        for leader in [leader for leader in self._leaders if leader.done()]:
            self._ended(leader)
        idle = self._most_batches - len(self._leaders)
        for _ in range(min(idle, -(-len(self._pending) // self._most_calls))):
            leader = asyncio.get_running_loop().create_task(self._lead())
            self._leaders[leader] = None
            leader.add_done_callback(self._ended)

    async def drain(self, timeout_s: float) -> None:
        """Wait for calls in flight."""
        if self._leaders:
            await asyncio.wait(list(self._leaders), timeout=timeout_s)

    async def _lead(self) -> None:
        leader = asyncio.current_task()
        assert leader is not None
        while self._pending:
            batch = self._leaders[leader] = Batch(self._pending)
            try:
                await self._serve(batch)
            except Exception as error:
                # Nor would it fare better with those that it did not come to take.
                if not batch.calls:
                    batch.take(self._most_calls)
                self._fail(batch, error)
            else:
                batch.finish()
            self._leaders[leader] = None

    def _ended(self, leader: asyncio.Task[None]) -> None:
        """A leader has come to its end; if its batch is still there, it was stopped."""
        batch = self._leaders.pop(leader, None)
        error = None if leader.cancelled() else leader.exception()
        if batch is not None:
            self._fail(batch, error)

    def _fail(self, batch: Batch[C], error: BaseException | None) -> None:
        batch.fail(lambda call: self._failed(call, error))


T = TypeVar("T")


class SharedCall(Generic[T]):
    """Awaits `make` once for all callers that came before it began. A caller that comes while it
    runs waits for the next run, so no result is older than its question; and there is never more
    than one run at a time."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._make = make
        self._current: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        if self._next is None:
            self._next = asyncio.create_task(self._made_after(self._current))
        # A caller that is cancelled does not end the run for the others.
        return await asyncio.shield(self._next)

    async def _made_after(self, current: asyncio.Task[T] | None) -> T:
        if current is not None and not current.done():
            await asyncio.wait([current])
        self._current, self._next = self._next, None
        return await self._make()
