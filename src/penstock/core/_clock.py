"""Clocks: where `now` comes from, always as whole epoch milliseconds.

`SystemClock` is steady: it reads the wall clock once, when this module is loaded, and counts
monotonic time from there, so that a step of the system time never moves it. All system clocks of
a process share that one anchor and agree with each other. This module is the only one that reads
the system's time; the compiled path reads the same monotonic source against the same anchor.

`ManualClock` stands still until told otherwise, and tells those who wait on it when it moves.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns, time_ns
from typing import Any, NoReturn, Protocol, runtime_checkable

from .._queueing import Mutex
from ._errors import UnsupportedError
from ._validation import reject, require_instant, require_int

__all__ = ["ANCHOR_NS", "Clock", "ManualClock", "SystemClock", "require_clock"]


_NS_PER_MS = 1_000_000

# Epoch nanoseconds at monotonic zero.
ANCHOR_NS = time_ns() - monotonic_ns()


@runtime_checkable
class Clock(Protocol):
    """Anything with a `now()` in epoch milliseconds. It may go back; limits hold all the same."""

    def now(self) -> int:
        """The present instant, in epoch milliseconds."""
        ...


def require_clock(clock: Any) -> Clock:
    """A clock that somebody handed in, or `config_invalid`."""
    if not callable(getattr(clock, "now", None)):
        reject(f"clock must be something with a now() in epoch milliseconds, not {clock!r}")
    accepted: Clock = clock
    return accepted


class SystemClock:
    """Steady time: monotonic, anchored to the epoch once per process, so that a step of the
    system's time does not move it."""

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
        """The instant at which the clock was put last."""
        return self._now

    def advance(self, ms: int) -> None:
        """Move forward by `ms`, which may be 0."""
        require_int("ms", ms, low=0)
        with self._mutex.hold():
            self._now = require_instant(self._now + ms)
        self._tell()

    def set(self, ms: int) -> None:
        """Jump to an instant, backwards if need be."""
        self._now = require_instant(ms)
        self._tell()

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every move. Returns the function that ends it."""
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
            "a ManualClock cannot be pickled or copied: a copy would stand still while this one "
            "is moved; make one where it is moved"
        )

    def __repr__(self) -> str:
        return f"ManualClock({self._now})"
