"""The thread that serves async callers, so that no file is ever touched on an event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..._queueing import GroupCommit
from ..._queueing.background import Background

__all__ = ["Worker"]


class Worker:
    """Runs `serve` after every `wake`, at least once for all wakes so far."""

    def __init__(self, commit: GroupCommit[Any], serve: Callable[[], None]) -> None:
        self._commit = commit
        self._serve = serve
        self._background = Background("penstock-sqlite")

    def wake(self) -> None:
        self._background.submit(self._serve)

    def stop(self) -> None:
        """End the thread once it has served what came before. A later wake starts another."""
        self._background.stop()

    # What a task that waits for its call needs:

    def withdraw(self, call: Any) -> bool:
        return self._commit.withdraw(call)

    def look(self) -> None:
        """Something keeps a task waiting: the wake may have been interrupted."""
        self.wake()
