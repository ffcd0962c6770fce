"""First come, first served: a queue, queues by key, and a mutex made of a queue.

A caller in a queue is a `Waiter`: it can be woken, and asked whether it is still there.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Generic, TypeVar

from . import fork

__all__ = ["Mutex", "Place", "Queue", "Queues", "ThreadWaiter", "Waiter"]


class Queue:
    """The waiters for one thing, in order of arrival. The first of them leads."""

    __slots__ = ("__weakref__", "_waiters")

    def __init__(self) -> None:
        self._waiters: deque[Waiter] = deque()

    def __len__(self) -> int:
        """How many waiters there are, the leader included."""
        return len(self._waiters)

    def __bool__(self) -> bool:
        return True

    def join(self, waiter: Waiter) -> None:
        """Stand at the end."""
        self._waiters.append(waiter)

    def leads(self, waiter: Waiter) -> bool:
        """Whether everybody before it has left."""
        try:
            return self._waiters[0] is waiter or self.leader() is waiter
        except IndexError:
            return False

    def leader(self) -> Waiter | None:
        """The first waiter that is still there. Those before it that ended without leaving are
        removed."""
        waiters = self._waiters
        has_removed = False
        while True:
            try:
                first = waiters[0]
            except IndexError:
                return None
            if first.is_there():
                if has_removed:
                    first.wake()
                return first
            self._remove(first)
            has_removed = True

    def leave(self, waiter: Waiter, heir: Waiter | None = None) -> None:
        """Go, and wake whoever leads now: the next in order, or `heir`, for a leader who has one.

        A waiter of this queue may be the heir. It is then in it twice, and leaves twice."""
        waiters = self._waiters
        try:
            before = waiters[0]
        except IndexError:
            return
        if heir is not None:
            waiters.appendleft(heir)
        self._remove(waiter)
        if waiters:
            leader = self.leader()
            # Also when a leader left while we were about to, and woke us instead of the next.
            if leader is not None and leader is not before:
                leader.wake()

    def waiting(self) -> list[Waiter]:
        """Everybody here at this moment."""
        return list(self._waiters)

    def _remove(self, waiter: Waiter) -> None:
        waiters = self._waiters
        try:
            waiters.remove(waiter)
            while waiter in waiters:
                waiters.remove(waiter)
        except ValueError:
            # Somebody else saw that it had ended, too.
            pass


class Mutex:
    """`with mutex.hold():` for a few lines that one thread at a time may run, and that wait for
    nobody. Those who were interrupted in there are passed over, so the lines must leave sense
    behind wherever they are cut off. A thread that is in there already gets in again: the garbage
    collector may run somebody's clean-up anywhere."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue = Queue()

    def hold(self) -> _Hold:
        """For a `with`: the mutex, held."""
        return _Hold(self._queue)


class _Hold:
    """The time in which a frame has the mutex."""

    __slots__ = ("_queue", "_waiter")

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def __enter__(self) -> None:
        queue = self._queue
        waiter = self._waiter = ThreadWaiter(sys._getframe(1))
        queue.join(waiter)
        while not queue.leads(waiter):
            leader = queue.leader()
            if isinstance(leader, ThreadWaiter) and leader.thread == waiter.thread:
                return
            waiter.rest()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._queue.leave(self._waiter)
        self._waiter.end()


Q = TypeVar("Q", bound=Queue)


class Queues(Generic[Q]):
    """A queue for each key that has waiters; `make` is the kind of queue."""

    __slots__ = ("_by_key", "_make", "_mutex")

    def __init__(self, make: Callable[[], Q]) -> None:
        self._make = make
        self._mutex = Mutex()
        self._by_key: dict[str, Q] = {}

    def __len__(self) -> int:
        """How many keys have a queue."""
        return len(self._by_key)

    def get(self, key: str) -> Q | None:
        """The queue of a key, if it has waiters."""
        return self._by_key.get(key)

    def values(self) -> list[Q]:
        """The queues that have waiters."""
        return list(self._by_key.values())

    def join(self, key: str, waiter: Waiter, admit: Callable[[Q], Any] | None = None) -> Q | None:
        """Stand at the end of the key's queue, unless `admit` says no to the queue as it is."""
        if key not in self._by_key:
            # A queue that has a waiter when it becomes the key's queue needs no mutex.
            made = self._make()
            if admit is None or admit(made):
                made.join(waiter)
                if self._by_key.setdefault(key, made) is made:
                    return made
        with self._mutex.hold():
            while True:
                queue = self._by_key.get(key)
                if queue is None:
                    queue = self._make()
                else:
                    queue.leader()
                if admit is not None and not admit(queue):
                    return None
                # A queue with somebody in it stays; so it is the key's queue from here on.
                queue.join(waiter)
                if self._by_key.setdefault(key, queue) is queue:
                    return queue
                queue.leave(waiter)

    def leave(self, key: str, queue: Q, waiter: Waiter, heir: Waiter | None = None) -> None:
        """Go, as from any queue; the last one to go takes the queue along."""
        queue.leave(waiter, heir)
        if not len(queue):
            with self._mutex.hold():
                if not len(queue) and self._by_key.get(key) is queue:
                    del self._by_key[key]


class Place(Generic[Q]):
    """A place in the queue of a key. As a context, for a thread: wait for the lead, and leave.

    `frame` is the one that runs the context.
    """

    __slots__ = ("_key", "_queues", "queue", "waiter")

    def __init__(self, queues: Queues[Q], key: str, queue: Q, waiter: Waiter) -> None:
        self._queues = queues
        self._key = key
        self.queue: Q = queue
        self.waiter: Waiter = waiter

    @classmethod
    def of_thread(
        cls,
        queues: Queues[Q],
        key: str,
        frame: FrameType,
        admit: Callable[[Q], Any] | None = None,
    ) -> Place[Q] | None:
        """A place for the thread that runs `frame`, if the queue admits it."""
        waiter = ThreadWaiter(frame)
        queue = queues.join(key, waiter, admit)
        return None if queue is None else cls(queues, key, queue, waiter)

    @property
    def failure(self) -> Exception | None:
        """The failure of the one it waited for, if that one shared it."""
        return self.waiter.failure

    def share(self, error: Exception) -> None:
        """Share a failure with all callers that wait by now. Only for the leader."""
        for waiter in self.queue.waiting():
            waiter.failure = error

    def leave(self) -> None:
        """Pass the lead on, or give up waiting for it."""
        self._queues.leave(self._key, self.queue, self.waiter)
        self.waiter.end()

    def __enter__(self) -> Place[Q]:
        waiter = self.waiter
        assert isinstance(waiter, ThreadWaiter)
        while not self.queue.leads(waiter):
            waiter.rest()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()


# How soon, and how seldom at last, those who wait look for themselves.
FIRST_LOOK_S = 0.02
LAST_LOOK_S = 0.5


class Waiter:
    """Somebody in a queue.

    `passed_over_at` is the instant (monotonic) from which it does not count any more, whether it
    is still there or not: for work that a slow leader cannot spoil. `failure` is what the one it
    waited for left it.
    """

    __slots__ = ("failure", "passed_over_at")

    crowd: Any = None
    """Those with the same one can be woken at once, with `wake_all`."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.passed_over_at: float | None = None

    def is_there(self) -> bool:
        """Whether it waits or leads, and did not end without a word."""
        late_at = self.passed_over_at
        return self.is_running() and (late_at is None or time.monotonic() < late_at)

    def wake(self) -> None:
        """Have it look again. From any thread; once more does no harm."""
        raise NotImplementedError

    def end(self) -> None:
        """It is not there any more, and holds on to nothing."""
        raise NotImplementedError

    def is_running(self) -> bool:
        """Whether it has not ended."""
        raise NotImplementedError


class ThreadWaiter(Waiter):
    """A thread, for as long as `frame` runs: the one that waits, leads and leaves."""

    __slots__ = ("_bell", "_frame", "_generation", "_look_s", "thread")

    def __init__(self, frame: FrameType) -> None:
        self.failure: Exception | None = None
        self.passed_over_at: float | None = None
        self.thread: int = threading.get_ident()
        self._frame: FrameType | None = frame
        self._generation = fork._generation
        self._bell: threading.Lock | None = None
        self._look_s = FIRST_LOOK_S

    def is_running(self) -> bool:
        frame = self._frame
        if frame is None or self._generation is not fork._generation:
            return False
        try:
            frame.clear()
        except RuntimeError:
            # Only a frame that runs is not to be cleared.
            return True
        return False

    def wake(self) -> None:
        bell = self._bell
        if bell is not None:
            try:  # noqa: SIM105 - on the way of every hand-over
                bell.release()
            except RuntimeError:
                # It has rung, and was not heard yet.
                pass

    def end(self) -> None:
        # The frame holds its waiter: together they would be left to the garbage collector.
        self._frame = None

    def rest(self, seconds: float | None = None) -> None:
        """Sleep until woken, for at most `seconds`, and only briefly, so that a leader that has
        ended is noticed. The first call only prepares to be woken: check the queue again before the
        second."""
        bell = self._bell
        if bell is None:
            bell = threading.Lock()
            bell.acquire()
            self._bell = bell
        elif seconds is not None and seconds < self._look_s:
            bell.acquire(timeout=max(0.0, seconds))
        elif not bell.acquire(timeout=self._look_s):
            self._look_s = min(2 * self._look_s, LAST_LOOK_S)

    def sleep(self, seconds: float | None = None) -> None:
        """As `rest`, for a leader, which has nobody ahead of it to watch."""
        bell = self._bell
        if bell is None:
            self.rest()
        else:
            bell.acquire(timeout=-1 if seconds is None else max(0.0, seconds))
