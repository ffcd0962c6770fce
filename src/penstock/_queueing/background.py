"""A thread of our own, for what must not be done by the caller: block an event loop, or take long.

It starts with the first job and ends when there has been none for a while, so that an owner who is
dropped without a close does not keep it for ever.

There is no lock here, which an interrupt could leave held. That a thread is about to end is noted
before it looks for work a last time, and work is put there before anybody looks whether a thread
is needed; so one of the two sees the other. At worst there are two threads for a moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

__all__ = ["Background"]


IDLE_S = 2.0

Job = Callable[[], Any]


class Background:
    """Runs jobs in order of arrival; what they raise is theirs to handle."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Whether there is a thread, at work or idle."""
        return self._thread is not None

    def submit(self, job: Job) -> None:
        """Have it done. RuntimeError, if no thread can be had any more."""
        self._jobs.put(job)
        thread = self._thread
        if thread is None or not thread.is_alive():
            thread = self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            thread.start()

    def stop(self) -> threading.Thread | None:
        """Have the thread end when it has done what came before; a later job starts another."""
        thread = self._thread
        if thread is not None:
            self._jobs.put(None)
        return thread

    def finish(self) -> None:
        """The same, and wait for it."""
        thread = self.stop()
        if thread is not None and thread.is_alive():
            thread.join()

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=IDLE_S)
            except Empty:
                job = None
            if job is not None:
                job()
            elif self._retire():
                return

    def _retire(self) -> bool:
        """Whether this thread may end: what came meanwhile must not be left behind."""
        self._thread = None
        if self._jobs.empty():
            return True
        self._thread = threading.current_thread()
        return False
