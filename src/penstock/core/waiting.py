"""Waiting in line: first come, first served, per key, in both colours.

Each key that somebody waits for has a line. Only its head asks the limiter; the others sleep
until the one before them leaves, so a freed unit goes to whoever came first and nobody polls.
Threads and tasks stand in the same line: a ticket knows how to wake its owner, whatever it is.
Lines share nothing but one short lock around the bookkeeping; no lock is held while anybody
sleeps or asks.

`acquire_flow` is the procedure itself, written once: it yields `Ask` or `Look` to get a decision
and `Nap` to sleep until it is woken or the time is up; a thin shell of each colour obeys.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass

from .clock import Clock, SystemClock
from .decision import Decision
from .errors import QueueFullError, RateLimitExceededError

__all__ = ["Ask", "Lines", "Look", "Nap", "Step", "TaskWake", "Wake", "Watch", "acquire_flow"]


@dataclass(frozen=True, slots=True)
class Ask:
    """Check the key now and send the decision back."""


@dataclass(frozen=True, slots=True)
class Look:
    """Peek at the key and send back how it stands."""


@dataclass(frozen=True, slots=True)
class Nap:
    """Sleep until woken, or for at most `ms` (None: however long it takes)."""

    ms: int | None


# Platforms differ in how long a thread may sleep; whoever wakes early just sleeps again.
_LONGEST_NAP_MS = 3_600_000

Step = Ask | Look | Nap
Wake = Callable[[], None]


class TaskWake:
    """Wakes a task, from any thread. It holds the task's event weakly, so that a line does not keep
    a task alive whose loop was closed under it."""

    __slots__ = ("_loop", "_woken")

    def __init__(self, loop: asyncio.AbstractEventLoop, woken: asyncio.Event) -> None:
        self._loop = loop
        self._woken = weakref.ref(woken)

    def __call__(self) -> None:
        woken = self._woken()
        if woken is not None:
            # The loop may close at any moment, and says so with this error.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(woken.set)

    @property
    def gone(self) -> bool:
        """Whether nobody is there to be woken any more."""
        return self._loop.is_closed()


class Watch:
    """How a waiting caller tells time: on the limiter's own clock if that can wake it when it
    moves, as a ManualClock does, else on steady real time."""

    def __init__(self, clock: Clock, wake: Wake) -> None:
        subscribe: Callable[[Wake], Callable[[], None]] | None
        subscribe = getattr(clock, "subscribe", None)
        self._manual = subscribe is not None
        self.clock: Clock = clock if self._manual else SystemClock()
        self.end: Callable[[], None] = subscribe(wake) if subscribe else lambda: None

    def real_ms(self, ms: int | None) -> int | None:
        """How long to sleep at most: a manual clock wakes us itself."""
        return None if self._manual or ms is None else min(ms, _LONGEST_NAP_MS)


class _Line:
    """Who waits for one key, in order, what the head was last told, and whether that has become
    void since."""

    __slots__ = ("last_denial", "stirred", "tickets")

    def __init__(self) -> None:
        self.tickets: deque[Wake] = deque()
        self.last_denial: Decision | None = None
        self.stirred: bool = False


class Lines:
    """The lines of one limiter, by key. A line exists while somebody stands in it."""

    def __init__(self, max_waiters: int | None) -> None:
        self._max_waiters = max_waiters
        # Reentrant, because the collector may end an abandoned task anywhere, in here as well.
        self._lock = threading.RLock()
        self._lines: dict[str, _Line] = {}

    def join(self, key: str, wake: Wake) -> _Line:
        heir = None
        with self._lock:
            line = self._lines.get(key) or _Line()
            if _pass_over_the_gone(line) and line.tickets:
                heir = line.tickets[0]
            # The head is being served; those behind it wait.
            if self._max_waiters is not None and len(line.tickets) > self._max_waiters:
                raise QueueFullError(
                    f"{self._max_waiters} callers already wait for {key!r}; "
                    "shed load here, or raise max_waiters"
                )
            line.tickets.append(wake)
            self._lines[key] = line
        if heir is not None:
            heir()
        return line

    def leave(self, key: str, line: _Line, wake: Wake) -> None:
        with self._lock:
            if wake not in line.tickets:
                return
            was_head = line.tickets[0] is wake
            line.tickets.remove(wake)
            was_head = _pass_over_the_gone(line) or was_head
            successor = line.tickets[0] if was_head and line.tickets else None
            if not line.tickets and self._lines.get(key) is line:
                del self._lines[key]
        if successor is not None:
            successor()

    def stir(self, key: str) -> None:
        """The key was forgotten: whoever is next need not wait for what it was told."""
        with self._lock:
            line = self._lines.get(key)
            if line is None:
                return
            line.stirred, line.last_denial = True, None
            head = line.tickets[0] if line.tickets else None
        if head is not None:
            head()

    def __len__(self) -> int:
        """How many callers stand in line, over all keys."""
        with self._lock:
            return sum(len(line.tickets) for line in self._lines.values())


def _pass_over_the_gone(line: _Line) -> bool:
    """Take out those at the head who can no longer ask: nobody would ever come after them."""
    passed = False
    while line.tickets and getattr(line.tickets[0], "gone", False):
        line.tickets.popleft()
        passed = True
    return passed


def acquire_flow(
    lines: Lines, key: str, wake: Wake, clock: Clock, timeout_ms: int | None
) -> Generator[Step, Decision | None, Decision]:
    """Stand in line, ask when it is our turn, sleep as told, until admitted or out of time."""
    give_up_at = None if timeout_ms is None else clock.now() + timeout_ms

    def time_left() -> int | None:
        return None if give_up_at is None else give_up_at - clock.now()

    def refuse(decision: Decision) -> RateLimitExceededError:
        return RateLimitExceededError(
            f"{key!r} was not admitted within {timeout_ms} ms; "
            f"the next attempt is worth making in {decision.retry_after_ms} ms",
            decision,
        )

    line = lines.join(key, wake)
    try:
        # Reading the head of a deque is atomic; whoever changes it wakes the new head.
        while line.tickets[0] is not wake:
            left = time_left()
            if left is not None and left <= 0:
                # A denied decision is falsy.
                told = line.last_denial
                raise refuse(_denied(_told((yield Look())) if told is None else told))
            yield Nap(left)
        while True:
            decision = _told((yield Ask()))
            if decision.allowed:
                return decision
            line.last_denial = decision
            left = time_left()
            # A wait that must end too late is not begun.
            if left is not None and decision.retry_after_ms > left:
                raise refuse(decision)
            # A strategy that denies without a wait would have us ask without a pause.
            ready_at = clock.now() + max(1, decision.retry_after_ms)
            line.stirred = False
            while (pause := ready_at - clock.now()) > 0 and not line.stirred:
                yield Nap(pause)
    finally:
        lines.leave(key, line, wake)


def _denied(decision: Decision) -> Decision:
    """What somebody is told whose turn never came: that there might have been enough for one does
    not make it an admission."""
    if not decision.allowed:
        return decision
    return Decision(False, decision.limit, decision.remaining, decision.reset_at, 1)


def _told(decision: Decision | None) -> Decision:
    assert decision is not None
    return decision
