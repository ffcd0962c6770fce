"""Sweeping for programs that fall idle with much in memory.

Expiry is driven by access, so a store that is no longer asked keeps what it had. A sweeper is a
daemon thread that asks now and then. It holds the store weakly: a store that is dropped takes its
sweeper along.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .store import MemoryStore

__all__ = ["Sweeper"]


class Sweeper:
    """Calls `store.sweep()` every `every_ms` until stopped."""

    def __init__(self, store: MemoryStore, every_ms: int) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=_run,
            args=(weakref.ref(store, self._gone), self._stopped, every_ms / 1000),
            name="penstock-sweeper",
            daemon=True,
        )
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _gone(self, _store: object) -> None:
        self._stopped.set()


def _run(store: weakref.ref[MemoryStore], stopped: threading.Event, every_s: float) -> None:
    while not stopped.wait(every_s):
        alive = store()
        if alive is None:
            return
        alive.sweep()
        del alive
