"""Waiting for admission: first come, first served per key, for threads and tasks.

Each key with waiters has a queue, which a caller joins before it asks. The first waiter leads. Only
the leader may leave something in the store that others wait behind: a booking, or a ticket for a
slot. So a process holds at most one of these per key, and a waiter that is cancelled behind the
leader has nothing to release.

While the last answer left units for more requests, the waiters behind the leader ask as well, so
that a store far away does not bound the rate to one request per round trip. They return in order of
arrival: an admitted waiter returns when it leads. If the leader is denied meanwhile, a charge that
holds slots is given back to it.

`acquire_flow` holds the logic, written once: it yields `AskStep` or `PeekStep` to get an answer,
`GiveBackStep` to release a charge, and `SleepStep` to sleep until it is woken or the time is up.
`acquire` and `aacquire` execute these steps; the limiter passes the functions that ask and peek.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from .._queueing import Queue, Queues, ThreadWaiter, Waiter
from ._clock import Clock, SystemClock
from ._decision import Decision
from ._durations import wait_in_words
from ._errors import QueueFullError, RateLimitExceededError
from ._flow import adrive, drive
from ._validation import MAX_SAFE, MAX_SPAN_MS, reject
from ._verdict import Verdict

if TYPE_CHECKING:
    from ._store import Store

__all__ = [
    "MAX_SLOT_WAIT_MS",
    "AskStep",
    "GiveBackStep",
    "KeyQueues",
    "PeekStep",
    "Pools",
    "SleepStep",
    "Step",
    "Wait",
    "Watch",
    "aacquire",
    "acquire",
    "acquire_flow",
    "is_denied_by_slots",
    "timeout_in_ms",
    "waiting_clock",
    "wake_slot_waiters",
]


class AskStep:
    """Ask the limiter and send its answer back. An ask that does not lead must leave nothing in the
    store when it is denied: it books nothing ahead and keeps no ticket."""

    __slots__ = ("leads",)

    def __init__(self, *, leads: bool) -> None:
        self.leads: bool = leads


class PeekStep:
    """Peek at the key and send the decision back."""

    __slots__ = ()


class GiveBackStep:
    """Release the charge of the last `AskStep`."""

    __slots__ = ()


class SleepStep:
    """Sleep until woken, or for at most `ms` (None: without a bound). A waiter that does not lead
    also watches the one ahead of it."""

    __slots__ = ("leads", "ms")

    def __init__(self, ms: int | None, *, leads: bool) -> None:
        self.ms: int | None = ms
        self.leads: bool = leads


MAX_SLOT_WAIT_MS = 1_000
"""The longest `retry_after_ms` of slots, whose holders may release them at any moment."""

# How often the leader asks for a slot that another process may have released.
_LOOK_AGAIN_MS = 20

# Platforms bound how long a thread may sleep. Waking early is harmless: it sleeps again.
_LONGEST_NAP_MS = 3_600_000

Step = AskStep | PeekStep | GiveBackStep | SleepStep
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


class Pools(NamedTuple):
    """The slots that a caller waits for: their store and its keys."""

    store: Store
    keys: tuple[str, ...]


def wake_slot_waiters(store: Store, key: str) -> None:
    """Call this after a slot under this key of the store was released: the leaders of the queues
    that wait for it in this process ask again at once."""
    queues = store._slot_queues.get(key) if store._slot_queues else None
    for queue in list(queues or ()):
        queue.ask_again()


class _KeyQueue(Queue):
    """The waiters for one key.

    `last_denial` is the last denial of a leader; `is_denied` says that the present leader waits
    after one. `is_void` says that units or slots were released since, so that the leader asks again
    at once. `spare` is the number of requests that fit according to the last answer. Waiters in
    `asking` await an answer; waiters in `holding` were admitted, and wait for those ahead of them.
    """

    __slots__ = ("asking", "holding", "is_denied", "is_void", "last_denial", "spare")

    def __init__(self) -> None:
        super().__init__()
        self.last_denial: Decision | None = None
        self.is_denied: bool = False
        self.is_void: bool = False
        self.spare: int = 0
        # Changed by single operations only, which no interrupt can divide. A waiter that an
        # interrupt left in here only reduces the number that ask side by side.
        self.asking: set[Waiter] = set()
        self.holding: set[Waiter] = set()

    def may_ask(self) -> bool:
        """Whether one more waiter may ask beside those that do."""
        return self.spare > len(self.asking)

    def admitted(self, spare: int) -> None:
        """Record an answer that admits, and how many more it leaves room for."""
        self.spare = spare
        room = spare - len(self.asking)
        if room <= 0:
            return
        for waiter in self.waiting():
            if waiter not in self.asking and waiter not in self.holding:
                waiter.wake()
                room -= 1
                if not room:
                    return

    def denied(self, denial: Decision, *, leads: bool) -> None:
        """Record an answer that denies. Charges that are held behind a denied leader go back."""
        self.spare = 0
        if leads:
            self.last_denial, self.is_denied = denial, True
            for waiter in list(self.holding):
                waiter.wake()

    def ask_again(self) -> None:
        """Wake the leader, so that it asks at once."""
        self.is_void = True
        leader = self.leader()
        if leader is not None:
            leader.wake()

    def make_void(self) -> None:
        """The last denial no longer counts."""
        self.last_denial = None
        self.ask_again()

    def watch(self, pools: Pools) -> None:
        """From now on, have the leader ask again when one of these slots is released."""
        by_key: dict[str, deque[_KeyQueue]]
        by_key = vars(pools.store).setdefault("_slot_queues", {})
        for key in pools.keys:
            queues = by_key.setdefault(key, deque())
            if self not in queues:
                queues.append(self)

    def unwatch(self, pools: Pools) -> None:
        by_key = pools.store._slot_queues or {}
        for key in pools.keys:
            queues = by_key.get(key, deque())
            with suppress(ValueError):
                queues.remove(self)
            # A queue that another thread adds at this moment is missed, and asks by itself.
            if not queues:
                by_key.pop(key, None)


class KeyQueues:
    """The queues of one limiter, by key."""

    def __init__(self, max_waiters: int | None) -> None:
        self._max_waiters = max_waiters
        self._queues: Queues[_KeyQueue] = Queues(_KeyQueue)

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
        queue = self._queues.get(key)
        if queue is not None:
            queue.make_void()

    def reset_all(self) -> None:
        """Call this after a reset of keys when it is not known which queues wait for them."""
        for queue in self._queues.values():
            queue.make_void()

    def ask_again(self) -> None:
        """Call this after a slot was released when it is not known which queues wait for it."""
        for queue in self._queues.values():
            queue.ask_again()

    def __len__(self) -> int:
        """How many callers wait, over all keys."""
        return sum(len(queue) for queue in self._queues.values())

    def _has_room(self, queue: _KeyQueue) -> bool:
        # The leader is being served; those behind it wait.
        return self._max_waiters is None or len(queue) <= self._max_waiters


class Wait(NamedTuple):
    """What a caller waits for: its place is in the queue of `key`. `answers_at_once` says that to
    ask takes no time; `pools` are the slots among the limits."""

    queues: KeyQueues
    key: str
    clock: Clock
    timeout_ms: int | None
    cost: int | Mapping[str, int] = 1
    answers_at_once: bool = False
    pools: Pools | None = None

    def is_short(self) -> bool:
        """Whether the caller may ask before it joins the queue: there is no queue, and none can
        form before the answer is known."""
        return self.answers_at_once and self.queues.is_free(self.key)


def acquire(wait: Wait, ask: Callable[[bool], Any], peek: Callable[[], Any]) -> Any:
    """Wait until `ask(leads)` admits. Returns its answer."""
    began_at = wait.clock.now()
    answer: Any = None
    if wait.is_short():
        answer = ask(False)
        if answer.allowed:
            return answer
        answer = None
    waiter = ThreadWaiter(sys._getframe())
    watch: Watch | None = None

    def obey(step: Step) -> Any:
        nonlocal answer, watch
        if isinstance(step, AskStep):
            answer = None
            answer = ask(step.leads)
            return answer
        if isinstance(step, PeekStep):
            return peek()
        if isinstance(step, GiveBackStep):
            charge, answer = answer, None
            charge.cancel()
        elif watch is None:
            # The clock may have moved before this: the flow looks again before it sleeps.
            watch = Watch(wait.clock, waiter.wake)
        else:
            (waiter.sleep if step.leads else waiter.rest)(watch.real_s(step.ms))
        return None

    try:
        return drive(acquire_flow(wait, waiter, began_at), obey)
    except BaseException:
        if _can_be_given_back(answer):
            answer.cancel()
        raise
    finally:
        if watch is not None:
            watch.end()
        waiter.end()


async def aacquire(
    wait: Wait, ask: Callable[[bool], Awaitable[Any]], peek: Callable[[], Awaitable[Any]]
) -> Any:
    """The awaitable twin of `acquire`. Cancelling it leaves the queue."""
    began_at = wait.clock.now()
    answer: Any = None
    if wait.is_short():
        answer = await ask(False)
        if answer.allowed:
            return answer
        answer = None
    # Here, so that `import penstock` does not load asyncio.
    from .._queueing.tasks import Event, TaskWaiter
    from ._loops import running_loop

    # Referenced here: the waiter refers to it weakly, so that a queue does not keep a task alive.
    woken = Event()
    waiter = TaskWaiter(woken, running_loop())
    watch: Watch | None = None

    async def obey(step: Step) -> Any:
        nonlocal answer, watch
        if isinstance(step, AskStep):
            answer = None
            answer = await ask(step.leads)
            return answer
        if isinstance(step, PeekStep):
            return await peek()
        if isinstance(step, GiveBackStep):
            charge, answer = answer, None
            await charge.acancel()
        elif watch is None:
            watch = Watch(wait.clock, waiter.wake)
        else:
            await (waiter.sleep if step.leads else waiter.rest)(watch.real_s(step.ms))
        return None

    try:
        return await adrive(acquire_flow(wait, waiter, began_at), obey)
    except BaseException:
        if _can_be_given_back(answer):
            await answer.acancel()
        raise
    finally:
        if watch is not None:
            watch.end()
        waiter.end()


def _can_be_given_back(answer: Any) -> bool:
    """Whether it is a charge of an admitted request, which a caller that gives up must cancel."""
    return answer is not None and answer.allowed and hasattr(answer, "cancel")


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
        f"retry after {wait_in_words(denial.retry_after_ms, exact=True)}",
        denial if isinstance(denial, Decision) else denial.decision,
        verdict,
    )


def acquire_flow(wait: Wait, waiter: Waiter, began_at: int) -> Generator[Step, Any, Any]:
    """Wait in the queue; as its leader, ask and sleep by turns until admitted or out of time."""
    queues, key, clock, timeout_ms, cost, _, pools = wait

    def time_left() -> int | None:
        return None if timeout_ms is None else began_at + timeout_ms - clock.now()

    def refuse(denial: Any) -> RateLimitExceededError:
        return _exceeded(key, timeout_ms, denial)

    queue = queues.join(key, waiter)
    leads = False
    try:
        while True:
            leads = queue.leads(waiter)
            if not leads and not queue.may_ask():
                left = time_left()
                if left is not None and left <= 0:
                    last = queue.last_denial
                    raise refuse(_denied((yield PeekStep())) if last is None else last)
                yield SleepStep(left, leads=False)
                continue
            if leads:
                queue.is_void = queue.is_denied = False
                if pools is not None:
                    queue.watch(pools)
            queue.asking.add(waiter)
            try:
                answer = yield AskStep(leads=leads)
            except Exception:
                # It is not known how many fit, and each of the others may have to wait as long as
                # this one did for its error: they ask side by side.
                queue.asking.discard(waiter)
                queue.admitted(MAX_SAFE)
                raise
            queue.asking.discard(waiter)
            if answer.allowed:
                if len(queue) > 1:
                    queue.admitted(_further(answer, cost))
                if leads or (yield from _retire(queue, waiter, answer, time_left)):
                    return answer
                continue
            queue.denied(answer, leads=leads)
            if not leads:
                continue
            left = time_left()
            # Fail at once if the wait would be longer than the timeout.
            by_slots = is_denied_by_slots(answer)
            if left is not None and (left <= 0 if by_slots else answer.retry_after_ms > left):
                raise refuse(answer)
            # At least 1 ms, in case a strategy denies without a wait.
            pause = max(1, answer.retry_after_ms)
            ready_at = clock.now() + (min(pause, _LOOK_AGAIN_MS) if by_slots else pause)
            while (pause := ready_at - clock.now()) > 0 and not queue.is_void:
                yield SleepStep(pause, leads=True)
    finally:
        queue.asking.discard(waiter)
        if leads and pools is not None:
            queue.unwatch(pools)
        queues.leave(key, queue, waiter)


def _retire(
    queue: _KeyQueue, waiter: Waiter, answer: Any, time_left: Callable[[], int | None]
) -> Generator[Step, Any, bool]:
    """Wait, admitted, for those ahead. False if the slots of the answer were given back, since the
    leader may wait for them."""
    queue.holding.add(waiter)
    try:
        while not queue.leads(waiter):
            if queue.is_denied and _holds_slots(answer):
                yield GiveBackStep()
                return False
            left = time_left()
            if left is not None and left <= 0:
                return True
            yield SleepStep(left, leads=False)
        return True
    finally:
        queue.holding.discard(waiter)


def _further(answer: Any, cost: int | Mapping[str, int]) -> int:
    """How many more requests of this cost fit, according to an answer that admits one. Without a
    limit, as in the answer of a fail mode, there is no bound."""
    verdict = answer if isinstance(answer, Verdict) else getattr(answer, "verdict", None)
    limits: Mapping[str, Decision]
    if verdict is None:
        limits = {"": answer if isinstance(answer, Decision) else answer.decision}
    else:
        limits = verdict.limits
    most = MAX_SAFE
    for name, decision in limits.items():
        units = cost.get(name, 1) if isinstance(cost, Mapping) else cost
        if units and decision.limit:
            most = min(most, decision.remaining // units)
    return most


def _holds_slots(answer: Any) -> bool:
    return bool(getattr(answer, "id", "")) or getattr(answer, "ttl_ms", None) is not None


def is_denied_by_slots(answer: Any) -> bool:
    """Whether slots are what a denied caller waits for, which may be released at any moment. Beside
    a limit with a longer wait they are not."""
    return _holds_slots(answer) and bool(answer.retry_after_ms <= MAX_SLOT_WAIT_MS)


def _denied(decision: Decision) -> Decision:
    """Turns a peek into the denial of a waiter that timed out: even if there is a unit left, those
    ahead in the queue come first."""
    if not decision.allowed:
        return decision
    return Decision(False, decision.limit, decision.remaining, decision.reset_at, 1)
