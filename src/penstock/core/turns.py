"""Turns: at most one at a time per key, in order of arrival, in both colours.

For work that must not be done twice at once for one key, such as fetching a lease, while other
keys go their way. Threads and tasks stand in the same line. Whoever finds nobody there has the
turn at once, and nothing to wait with is made for them.

What a turn came to may concern those who waited for it: `share` leaves them its failure, so that
a crowd in front of a dead server asks it once and not one after the other.

Two things would make a line stand still for ever, and are seen to. A thread that runs an event
loop cannot wait for a task: the task may be of that very loop, or of one whose thread waits for a
task of this one. So `join_blocking` gives such a thread no place behind tasks. And a task whose
loop was closed under it never leaves by itself: it is passed over, by whoever joins or leaves, and
by those who wait, who look again from time to time.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType

__all__ = ["Turn", "Turns"]

# How often those who wait look whether the one before them can still come to an end.
_LOOK_AGAIN_S = 1.0

Wake = Callable[[], None]


class _Line:
    """Whoever has the turn, and those who wait behind. It exists while somebody stands in it."""

    __slots__ = ("arrivals", "failed", "holder", "waiting")

    def __init__(self) -> None:
        self.arrivals: int = 0
        self.holder: Turn | None = None
        self.waiting: deque[Turn] = deque()
        # (up to which arrival it is shared, the failure)
        self.failed: tuple[int, Exception] | None = None

    def has_tasks(self) -> bool:
        return any(turn.loop is not None for turn in (self.holder, *self.waiting) if turn)


class Turn:
    """A place in line. As a context manager, sync or async: wait for it, hold it, pass it on.

    `loop` is that of the task whose place it is; None for a thread.
    """

    __slots__ = ("_left", "_line", "_number", "_turns", "_wake", "key", "loop")

    def __init__(
        self, turns: Turns, key: str, line: _Line, loop: asyncio.AbstractEventLoop | None
    ) -> None:
        self.key: str = key
        self.loop: asyncio.AbstractEventLoop | None = loop
        self._turns = turns
        self._line = line
        self._number = line.arrivals
        self._wake: Wake | None = None
        self._left = False

    @property
    def failure(self) -> Exception | None:
        """What the turn came to that this one waited for, if it failed."""
        failed = self._line.failed
        return failed[1] if failed is not None and self._number <= failed[0] else None

    @property
    def gone(self) -> bool:
        """Whether nobody will ever come for it."""
        return self._left or (self.loop is not None and self.loop.is_closed())

    def share(self, error: Exception) -> None:
        """Let all who wait by now know that this turn failed. Only for whoever has the turn."""
        self._line.failed = (self._line.arrivals, error)

    def leave(self) -> None:
        """Pass the turn on, or give up waiting for it."""
        self._turns._leave(self)

    @property
    def _mine(self) -> bool:
        return self._line.holder is self

    def __enter__(self) -> Turn:
        if not self._mine:
            woken = threading.Event()
            try:
                if self._turns._waits(self, woken.set):
                    while not woken.wait(_LOOK_AGAIN_S):
                        self._turns._look(self._line, self.key)
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
                    while not (await asyncio.wait((woken,), timeout=_LOOK_AGAIN_S))[0]:
                        self._turns._look(self._line, self.key)
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
        # Reentrant, because the collector may end an abandoned task anywhere, in here as well.
        self._lock = threading.RLock()
        self._lines: dict[str, _Line] = {}

    def join(self, key: str, loop: asyncio.AbstractEventLoop | None = None) -> Turn:
        """A place at the end of the key's line, for a thread or for a task of `loop`. It must be
        left, or entered as a context."""
        with self._lock:
            line, heir = self._line_of(key)
            turn = self._place(line, key, loop)
        _call(heir)
        return turn

    def join_blocking(self, key: str) -> Turn | None:
        """The same for a thread that will block until its turn comes; None if this thread runs an
        event loop and tasks are in line, for whom it might wait for ever."""
        on_a_loop = asyncio._get_running_loop() is not None
        with self._lock:
            line, heir = self._line_of(key)
            stuck = on_a_loop and line.has_tasks()
            turn = None if stuck else self._place(line, key, None)
        _call(heir)
        return turn

    def take(self, key: str, loop: asyncio.AbstractEventLoop | None = None) -> Turn | None:
        """The turn, if nobody has it."""
        with self._lock:
            line, heir = self._line_of(key)
            turn = self._place(line, key, loop) if line.holder is None else None
        _call(heir)
        return turn

    def __len__(self) -> int:
        """How many keys somebody has, or waits for, the turn of."""
        return len(self._lines)

    def _line_of(self, key: str) -> tuple[_Line, Wake | None]:
        """The key's line, without those who are gone, and whom to wake for that."""
        line = self._lines.get(key)
        if line is None:
            line = _Line()
        elif line.holder is not None and line.holder.gone:
            return line, self._pass_on(line, key)
        return line, None

    def _place(self, line: _Line, key: str, loop: asyncio.AbstractEventLoop | None) -> Turn:
        line.arrivals += 1
        turn = Turn(self, key, line, loop)
        if line.holder is None:
            line.holder = turn
            self._lines[key] = line
        else:
            line.waiting.append(turn)
        return turn

    def _pass_on(self, line: _Line, key: str) -> Wake | None:
        """Give the turn to the next who is still there; returns how to wake it."""
        line.holder = None
        while line.waiting:
            heir = line.holder = line.waiting.popleft()
            if not heir.gone:
                return heir._wake
        line.holder = None
        if self._lines.get(key) is line:
            del self._lines[key]
        return None

    def _look(self, line: _Line, key: str) -> None:
        """Pass over a holder that is gone."""
        heir = None
        with self._lock:
            if line.holder is not None and line.holder.gone:
                heir = self._pass_on(line, key)
        _call(heir)

    def _waits(self, turn: Turn, wake: Wake) -> bool:
        """Be woken by `wake`; False if the turn has come meanwhile."""
        with self._lock:
            turn._wake = wake
            return not turn._mine

    def _leave(self, turn: Turn) -> None:
        line, heir = turn._line, None
        with self._lock:
            turn._left = True
            if line.holder is turn:
                heir = self._pass_on(line, turn.key)
            else:
                # Not in there either: it was passed over, and is let go of only now.
                with contextlib.suppress(ValueError):
                    line.waiting.remove(turn)
        _call(heir)


def _call(wake: Wake | None) -> None:
    if wake is not None:
        wake()


def _wake(loop: asyncio.AbstractEventLoop, woken: asyncio.Future[None]) -> None:
    """Wake a task of `loop`, from wherever."""

    def settle() -> None:
        if not woken.done():
            woken.set_result(None)

    if asyncio._get_running_loop() is loop:
        settle()
    else:
        # A loop may close at any moment, and says so with this error: then the task is gone.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle)
