"""Turns: at most one at a time per key, in order of arrival, in both colours.

For work that must not be done twice at once for one key, such as fetching a lease, while other
keys go their way. Threads and tasks stand in the same line. Whoever finds nobody there has the
turn at once, and nothing to wait with is made for them.

What a turn came to may concern those who waited for it: `share` leaves them its failure, so that
a crowd in front of a dead server asks it once and not one after the other.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType

__all__ = ["Turn", "Turns"]


class _Line:
    """Those who wait behind the one whose turn it is. It exists while somebody stands in it."""

    __slots__ = ("arrivals", "failed", "waiting")

    def __init__(self) -> None:
        self.arrivals = 0
        self.waiting: deque[Turn] = deque()
        # (up to which arrival it is shared, the failure)
        self.failed: tuple[int, Exception] | None = None


class Turn:
    """A place in line. As a context manager, sync or async: wait for it, hold it, pass it on."""

    __slots__ = ("_line", "_mine", "_number", "_turns", "_wake", "key")

    def __init__(self, turns: Turns, key: str, line: _Line, number: int) -> None:
        self.key = key
        self._turns = turns
        self._line = line
        self._number = number
        self._mine = number == 1
        self._wake: Callable[[], None] | None = None

    @property
    def failure(self) -> Exception | None:
        """What the turn came to that this one waited for, if it failed."""
        failed = self._line.failed
        return failed[1] if failed is not None and self._number <= failed[0] else None

    def share(self, error: Exception) -> None:
        """Let all who wait by now know that this turn failed. Only for whoever has the turn."""
        self._line.failed = (self._line.arrivals, error)

    def leave(self) -> None:
        """Pass the turn on, or give up waiting for it."""
        self._turns._leave(self)

    def __enter__(self) -> Turn:
        if not self._mine:
            woken = threading.Event()
            try:
                if self._turns._waits(self, woken.set):
                    woken.wait()
            except BaseException:
                self.leave()
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._turns._leave(self)

    async def __aenter__(self) -> Turn:
        if not self._mine:
            loop = asyncio.get_running_loop()
            woken: asyncio.Future[None] = loop.create_future()
            try:
                if self._turns._waits(self, lambda: _wake(loop, woken)):
                    await woken
            except BaseException:
                self.leave()
                raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._turns._leave(self)


class Turns:
    """Per-key mutual exclusion, first come, first served."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[str, _Line] = {}

    def join(self, key: str) -> Turn:
        """A place at the end of the key's line. It must be left, or entered as a context."""
        with self._lock:
            line = self._lines.get(key)
            if line is None:
                line = self._lines[key] = _Line()
            line.arrivals += 1
            turn = Turn(self, key, line, line.arrivals)
            if line.arrivals > 1:
                line.waiting.append(turn)
            return turn

    def __len__(self) -> int:
        """How many keys somebody has, or waits for, the turn of."""
        return len(self._lines)

    def _waits(self, turn: Turn, wake: Callable[[], None]) -> bool:
        """Be woken by `wake`; False if the turn has come meanwhile."""
        with self._lock:
            turn._wake = wake
            return not turn._mine

    def _leave(self, turn: Turn) -> None:
        line = turn._line
        wake = None
        with self._lock:
            if not turn._mine:
                line.waiting.remove(turn)
                return
            if line.waiting:
                successor = line.waiting.popleft()
                successor._mine = True
                wake = successor._wake
            else:
                del self._lines[turn.key]
        if wake is not None:
            wake()


def _wake(loop: asyncio.AbstractEventLoop, woken: asyncio.Future[None]) -> None:
    """Wake a task of `loop`, from wherever. A loop that has closed has dropped its tasks, and
    with them their places."""

    def settle() -> None:
        if not woken.done():
            woken.set_result(None)

    if asyncio._get_running_loop() is loop:
        settle()
    elif not loop.is_closed():
        loop.call_soon_threadsafe(settle)
