"""Waiting for admission: first come, first served per key, for threads and tasks.

Each key with waiters has a queue. Only the leader of the queue asks the limiter; the others sleep
until those ahead of them have left. So units go to whoever came first, and nobody polls.

`acquire_flow` holds the logic, written once: it yields `CheckStep` or `PeekStep` to get a decision,
and `SleepStep` to sleep until it is woken or the time is up. `acquire` and `aacquire` execute these
steps; the limiter passes the functions that check and peek.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from .._queueing import Queue, Queues, ThreadWaiter, Waiter
from ._clock import Clock, SystemClock
from ._decision import Decision
from ._errors import QueueFullError, RateLimitExceededError
from ._flow import adrive, drive
from ._validation import MAX_SPAN_MS, reject
from ._verdict import Verdict

__all__ = [
    "CheckStep",
    "KeyQueues",
    "PeekStep",
    "SleepStep",
    "Step",
    "Watch",
    "aacquire",
    "acquire",
    "acquire_flow",
    "timeout_in_ms",
    "waiting_clock",
]


class CheckStep:
    """Check the key now and send the decision back."""

    __slots__ = ()


class PeekStep:
    """Peek at the key and send the decision back."""

    __slots__ = ()


class SleepStep:
    """Sleep until woken, or for at most `ms` (None: without a bound). A waiter that does not lead
    also watches the one ahead of it."""

    __slots__ = ("leads", "ms")

    def __init__(self, ms: int | None, *, leads: bool) -> None:
        self.ms: int | None = ms
        self.leads: bool = leads


# How often to ask whether a slot is free.
_LOOK_AGAIN_MS = 50

# Platforms bound how long a thread may sleep. Waking early is harmless: it sleeps again.
_LONGEST_NAP_MS = 3_600_000

Step = CheckStep | PeekStep | SleepStep
Wake = Callable[[], None]


def waiting_clock(clock: Clock) -> Clock:
    """The clock that times waiting: the limiter's own if it notifies subscribers when it moves, as
    a ManualClock does, otherwise real time."""
    return clock if hasattr(clock, "subscribe") else SystemClock()


class Watch:
    """Calls `wake` whenever a clock with subscribers moves, until `end` is called."""

    def __init__(self, clock: Clock, wake: Wake) -> None:
        subscribe: Callable[[Wake], Callable[[], None]] | None
        subscribe = getattr(clock, "subscribe", None)
        self._wakes = subscribe is not None
        self.end: Callable[[], None] = subscribe(wake) if subscribe else lambda: None

    def real_s(self, ms: int | None) -> float | None:
        """How long to sleep at most, in real seconds; None if the clock wakes the sleeper."""
        return None if self._wakes or ms is None else min(ms, _LONGEST_NAP_MS) / 1000


class _KeyQueue(Queue):
    """The waiters for one key, and the last denial of the leader. `is_void` says that the key was
    reset since, so that the denial no longer counts."""

    __slots__ = ("is_void", "last_denial")

    def __init__(self) -> None:
        super().__init__()
        self.last_denial: Decision | None = None
        self.is_void: bool = False

    def make_void(self) -> None:
        """Wake the leader, so that it asks again at once."""
        self.is_void, self.last_denial = True, None
        leader = self.leader()
        if leader is not None:
            leader.wake()


class KeyQueues:
    """The queues of one limiter, by key."""

    def __init__(self, max_waiters: int | None) -> None:
        self._max_waiters = max_waiters
        self._queues: Queues[_KeyQueue] = Queues(_KeyQueue)
        self.resets: int = 0
        """The number of resets, by which a denial from before one is known to be void."""

    def is_free(self, key: str) -> bool:
        """Whether the key has no waiters."""
        return self._queues.get(key) is None

    def join(self, key: str, waiter: Waiter) -> _KeyQueue:
        queue = self._queues.join(key, waiter, self._has_room)
        if queue is None:
            raise QueueFullError(
                f"{self._max_waiters} callers already wait for {key!r}; "
                "shed load here, or raise max_waiters"
            )
        return queue

    def leave(self, key: str, queue: _KeyQueue, waiter: Waiter) -> None:
        self._queues.leave(key, queue, waiter)

    def reset(self, key: str) -> None:
        """Call this after a reset of the key."""
        self.resets += 1
        queue = self._queues.get(key)
        if queue is not None:
            queue.make_void()

    def reset_all(self) -> None:
        """Call this after a reset of keys when it is not known which queues wait for them."""
        self.resets += 1
        for queue in self._queues.values():
            queue.make_void()

    def __len__(self) -> int:
        """How many callers wait, over all keys."""
        return sum(len(queue) for queue in self._queues.values())

    def _has_room(self, queue: _KeyQueue) -> bool:
        # The leader is being served; those behind it wait.
        return self._max_waiters is None or len(queue) <= self._max_waiters


def acquire(
    queues: KeyQueues,
    key: str,
    clock: Clock,
    timeout_ms: int | None,
    check: Callable[[], Any],
    peek: Callable[[], Any],
) -> Any:
    """Wait in the queue of `key` until `check` admits. Returns its answer."""
    began_at, resets, told = clock.now(), queues.resets, None
    if queues.is_free(key):
        decision = check()
        if decision.allowed:
            return decision
        told = decision, resets
    waiter = ThreadWaiter(sys._getframe())
    watch = Watch(clock, waiter.wake)

    def obey(step: Step) -> Any:
        if isinstance(step, CheckStep):
            return check()
        if isinstance(step, PeekStep):
            return peek()
        (waiter.sleep if step.leads else waiter.rest)(watch.real_s(step.ms))
        return None

    try:
        return drive(acquire_flow(queues, key, waiter, clock, began_at, timeout_ms, told), obey)
    finally:
        watch.end()
        waiter.end()


async def aacquire(
    queues: KeyQueues,
    key: str,
    clock: Clock,
    timeout_ms: int | None,
    check: Callable[[], Awaitable[Any]],
    peek: Callable[[], Awaitable[Any]],
) -> Any:
    """The awaitable twin of `acquire`. Cancelling it leaves the queue."""
    began_at, resets, told = clock.now(), queues.resets, None
    if queues.is_free(key):
        decision = await check()
        if decision.allowed:
            return decision
        told = decision, resets
    # Here, so that `import penstock` does not load asyncio.
    from .._queueing.tasks import Event, TaskWaiter

    # Referenced here: the waiter refers to it weakly, so that a queue does not keep a task alive.
    woken = Event()
    waiter = TaskWaiter(woken)
    watch = Watch(clock, waiter.wake)

    async def obey(step: Step) -> Any:
        if isinstance(step, CheckStep):
            return await check()
        if isinstance(step, PeekStep):
            return await peek()
        await (waiter.sleep if step.leads else waiter.rest)(watch.real_s(step.ms))
        return None

    try:
        flow = acquire_flow(queues, key, waiter, clock, began_at, timeout_ms, told)
        return await adrive(flow, obey)
    finally:
        watch.end()
        waiter.end()


def timeout_in_ms(timeout: Any) -> int | None:
    """Validate a timeout in seconds, and convert it to ms."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout >= 0:
        reject(f"timeout must be None or a number of seconds, 0 or more, not {timeout!r}")
    return None if timeout > MAX_SPAN_MS else int(timeout * 1000)


def _exceeded(key: str, timeout_ms: int | None, denial: Any) -> RateLimitExceededError:
    """The error of a waiter that timed out. Its last denial is a decision, verdict or charge."""
    verdict = denial if isinstance(denial, Verdict) else getattr(denial, "verdict", None)
    by = "" if verdict is None else f" by {', '.join(map(repr, verdict.violated))}"
    return RateLimitExceededError(
        f"{key!r} was not admitted{by} within {timeout_ms} ms; "
        f"retry after {denial.retry_after_ms} ms",
        denial if isinstance(denial, Decision) else denial.decision,
        verdict,
    )


def acquire_flow(
    queues: KeyQueues,
    key: str,
    waiter: Waiter,
    clock: Clock,
    began_at: int,
    timeout_ms: int | None,
    told: tuple[Decision, int] | None,
) -> Generator[Step, Decision | None, Decision]:
    """Wait in the queue; as its leader, ask and sleep by turns until admitted or out of time.

    `told` is the denial that this caller got before it joined an empty queue, with the
    `queues.resets` from before that, so that it need not ask twice."""

    def time_left() -> int | None:
        return None if timeout_ms is None else began_at + timeout_ms - clock.now()

    def refuse(denial: Any) -> RateLimitExceededError:
        return _exceeded(key, timeout_ms, denial)

    queue = queues.join(key, waiter)
    try:
        while not queue.leads(waiter):
            told = None
            left = time_left()
            if left is not None and left <= 0:
                # A denied decision is falsy.
                last = queue.last_denial
                raise refuse(_denied(_given((yield PeekStep())) if last is None else last))
            yield SleepStep(left, leads=False)
        while True:
            queue.is_void = False
            if told is not None and told[1] == queues.resets:
                decision = told[0]
            else:
                decision = _given((yield CheckStep()))
            told = None
            if decision.allowed:
                return decision
            queue.last_denial = decision
            left = time_left()
            # Fail at once if the wait would be longer than the timeout.
            if left is not None and (
                left <= 0 if is_held(decision) else decision.retry_after_ms > left
            ):
                raise refuse(decision)
            # At least 1 ms, in case a strategy denies without a wait. Slots may be given back at
            # any moment, so these are asked for more often.
            wait = max(1, decision.retry_after_ms)
            ready_at = clock.now() + (wait if not is_held(decision) else min(wait, _LOOK_AGAIN_MS))
            while (pause := ready_at - clock.now()) > 0 and not queue.is_void:
                yield SleepStep(pause, leads=True)
    finally:
        queues.leave(key, queue, waiter)


def is_held(answer: Any) -> bool:
    """Whether it is a charge of slots."""
    return bool(getattr(answer, "id", "")) or getattr(answer, "ttl_ms", None) is not None


def _denied(decision: Decision) -> Decision:
    """Turns a peek into the denial of a waiter that timed out: even if there is a unit left, those
    ahead in the queue come first."""
    if not decision.allowed:
        return decision
    return Decision(False, decision.limit, decision.remaining, decision.reset_at, 1)


def _given(decision: Decision | None) -> Decision:
    assert decision is not None
    return decision
