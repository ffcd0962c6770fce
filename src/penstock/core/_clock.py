"""Clocks: where `now` comes from, always as whole epoch milliseconds.

`SystemClock` is steady: it reads the wall clock once, when this module is loaded, and counts
monotonic time from there, so that a step of the system time never moves it. All system clocks of
a process share that one anchor and agree with each other. This module is the only one that reads
the system's time; the compiled path reads the same monotonic source against the same anchor.

`ManualClock` moves only when told to, and notifies its subscribers when it does.

`ForeignClocks` detects, in a shared store, states written by a clock ahead of the one that decides.
If callers use their own clocks, a store holds instants of all of them. No strategy moves back in
time, so a key that was charged by a clock an hour ahead is denied to the others for an hour. That
keeps the limit, but looks like a fault to whoever has to wait: so it is logged and counted.

It is detected by a wait longer than a state written by a check on the deciding clock can cause
(`Strategy.longest_wait_ms`). So it works for every store, with the caller's clock and a server's. A
clock that was set back looks the same, and so does a burst that was lowered while a key was in
debt, a pause, a booking, or a charge beyond what was left; the log message says so.

There is one count per process, for all stores. A store calls `look_at` with each denial.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, runtime_checkable

from .._queueing import Mutex
from ._errors import UnsupportedError
from ._validation import reject, require_instant, require_int

if TYPE_CHECKING:
    from ._decision import Decision
    from ._strategy import Strategy
    from ._transform import Transform

__all__ = [
    "ANCHOR_NS",
    "FOREIGN_CLOCKS",
    "TOLERATED_MS",
    "Clock",
    "ForeignClocks",
    "ManualClock",
    "SystemClock",
    "require_clock",
]


_NS_PER_MS = 1_000_000

# Epoch nanoseconds at monotonic zero.
ANCHOR_NS = time_ns() - monotonic_ns()


@runtime_checkable
class Clock(Protocol):
    """Anything with a `now()` in epoch milliseconds. It may go back: limits hold nevertheless."""

    def now(self) -> int:
        """The present instant, in epoch milliseconds."""
        ...


def require_clock(clock: Any) -> Clock:
    """The clock, or `config_invalid` for anything else."""
    if not callable(getattr(clock, "now", None)):
        reject(
            "clock must be an object with a now() method that returns epoch milliseconds, such as "
            f"ManualClock(), not {clock!r}"
        )
    accepted: Clock = clock
    return accepted


class SystemClock:
    """Monotonic time, anchored to the epoch once per process: changes of the system time do not
    move it."""

    __slots__ = ()

    def now(self) -> int:
        """The present instant, in epoch milliseconds."""
        return (ANCHOR_NS + monotonic_ns()) // _NS_PER_MS

    def __repr__(self) -> str:
        return "SystemClock()"


class ManualClock:
    """A clock for tests and simulations: it moves only when told to."""

    def __init__(self, start: int = 0) -> None:
        self._now = require_instant(start)
        self._mutex = Mutex()
        self._listeners: dict[object, Callable[[], None]] = {}

    def now(self) -> int:
        """The instant that the clock was last set to."""
        return self._now

    def advance(self, ms: int) -> None:
        """Move forward by `ms`, which may be 0."""
        require_int("ms", ms, low=0)
        with self._mutex.hold():
            self._now = require_instant(self._now + ms)
        self._tell()

    def set(self, ms: int) -> None:
        """Jump to an instant, forwards or backwards."""
        self._now = require_instant(ms)
        self._tell()

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every move. Returns a function that unsubscribes it."""
        token = object()
        self._listeners[token] = listener

        def unsubscribe() -> None:
            self._listeners.pop(token, None)

        return unsubscribe

    def _tell(self) -> None:
        for listener in list(self._listeners.values()):
            listener()

    def __reduce__(self) -> NoReturn:
        raise UnsupportedError(
            "a ManualClock cannot be pickled or copied: the copy would not move with this one; "
            "make a ManualClock where it is used"
        )

    def __repr__(self) -> str:
        return f"ManualClock({self._now})"


TOLERATED_MS = 2_000
"""How much later than it read its clock a caller may reach the store, without being reported."""

_SAY_EVERY_MS = 60_000


class ForeignClocks:
    """Logs and counts denials that a clock ahead may have caused; `met` is the count."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.met: int = 0
        self._lock = threading.Lock()
        self._now = (clock or SystemClock()).now
        self._quiet_until = 0

    def look_at(self, result: Any, transform: Transform[Any], cost: int, times: int = 1) -> None:
        """Log and count `result`, of a check or a lease, if its limit does not explain a denial
        that long."""
        strategy = transform.strategy
        if strategy is None or transform.role not in ("check", "lease"):
            return
        longest_ms = strategy.longest_wait_ms(max(cost, transform.need))
        if longest_ms is None:
            return
        decision: Decision = result.decision if transform.role == "lease" else result
        if decision.retry_after_ms > longest_ms + TOLERATED_MS:
            self._note(strategy, decision.retry_after_ms - longest_ms, times)

    def _note(self, strategy: Strategy, ahead_ms: int, times: int) -> None:
        now = self._now()
        with self._lock:
            self.met += times
            is_quiet = now < self._quiet_until
            if not is_quiet:
                self._quiet_until = now + _SAY_EVERY_MS
        if not is_quiet:
            import logging

            logging.getLogger("penstock.clocks").warning(
                "a key of %r is denied for %.1f s longer than its limit explains: it was paused, "
                "booked ahead or overdrawn, its limit was lowered, or it was charged by a clock "
                "that is ahead of the one that decides, such as one that was set back since. If "
                "it is the clocks, set them right, or let the store's own decide (use_server_time) "
                "where it has one. (Met %d times so far.)",
                strategy,
                ahead_ms / 1000,
                self.met,
            )


FOREIGN_CLOCKS = ForeignClocks()
