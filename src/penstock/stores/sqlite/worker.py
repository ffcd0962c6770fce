"""The thread that serves async callers, so that no file is ever touched on an event loop.

It starts with the first call and ends when there has been none for a while: a store that was
dropped without a close does not keep it for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

__all__ = ["Worker"]

IDLE_S = 2.0


class Worker:
    """Runs `serve` after every `wake`, at least once for all wakes so far."""

    def __init__(self, serve: Callable[[], None]) -> None:
        self._serve = serve
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def wake(self) -> None:
        self._tokens.put(True)
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    self._thread = self._start()

    def stop(self) -> None:
        """End the thread once it has served what came before. A later wake starts another."""
        with self._starting:
            if self._thread is not None:
                self._tokens.put(False)

    def _start(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="penstock-sqlite", daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        while True:
            try:
                wanted = self._tokens.get(timeout=IDLE_S)
            except Empty:
                wanted = False
            if wanted:
                self._serve()
            elif self._retire():
                return

    def _retire(self) -> bool:
        """Whether this thread may end: a token that came meanwhile must not be left behind."""
        with self._starting:
            me, self._thread = self._thread, None
            if self._tokens.empty():
                return True
            self._thread = me
            return False
