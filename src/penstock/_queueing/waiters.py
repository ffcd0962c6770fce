"""Who stands in a queue: a way to wake it, and a way to know whether it is still there."""

from __future__ import annotations

import threading
import time
from types import FrameType
from typing import Any

from . import fork

__all__ = ["ThreadWaiter", "Waiter"]

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
        """Sleep until woken, for at most `seconds`, and not so long that nobody would notice a
        leader that has ended. The first time it only gets ready to be woken: look once more."""
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
        """The same for whoever leads, and has nobody to look after."""
        bell = self._bell
        if bell is None:
            self.rest()
        else:
            bell.acquire(timeout=-1 if seconds is None else max(0.0, seconds))
