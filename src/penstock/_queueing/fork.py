"""Background threads, and what a forked child has to drop.

A child of `fork` has the memory of its parent, but only the thread that forked. It must not use its
parent's connections, spend its parent's credits, or wait for threads that it does not have. Waiters
recognize by their `generation` that they belong to the parent; everything else is registered here.
Connections of async libraries must not be collected in a child either: `keep_inherited`.

`Background` is a thread for work that the caller must not do itself, because it would block an
event loop or take long. It starts with the first job and ends when there has been none for a while,
so that an owner that is dropped without a close does not keep it alive. It has no lock, which an
interrupt could leave held. A thread that is about to end says so before it looks for work a last
time, and work is added before it is checked whether a thread is needed; so one of the two sees the
other. At worst there are two threads for a moment.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any
from weakref import WeakSet

__all__ = [
    "Background",
    "ForkAware",
    "keep_inherited",
    "watch_forks",
]


class ForkAware:
    """An owner that hears of forks: each method is called around a fork of this process."""

    def _before_fork(self, forker: FrameType) -> None:
        """Prepare for a fork: what is locked now stays locked in the child. `forker` is the frame
        that forks."""

    def _after_fork_in_parent(self) -> None:
        """Go on."""

    def _after_fork_in_child(self) -> None:
        """Drop what belongs to the parent."""


_owners: WeakSet[ForkAware] = WeakSet()

_generation = object()
"""The mark of this process: another one in each child."""


def watch_forks(owner: ForkAware) -> None:
    """Tell the owner of forks, for as long as it exists."""
    _owners.add(owner)


_inherited: list[Any] = []


def keep_inherited(connections: Any) -> None:
    """In a forked child: keep the parent's connections for as long as the process lives, so that
    they are never collected. Closing an asyncio transport would unregister its socket from the
    parent's event loop, and closing a gRPC channel waits for a thread that the child does not have.
    """
    _inherited.append(connections)


def _tell(hook: Callable[[ForkAware], None]) -> None:
    """Notify all owners, even if one of them raises: the interpreter reports exceptions."""
    first: BaseException | None = None
    for owner in list(_owners):
        try:
            hook(owner)
        except BaseException as error:  # noqa: PERF203 - the next one is to be told, too
            first = first or error
    if first is not None:
        raise first


def _before() -> None:
    forker = sys._getframe(1)
    _tell(lambda owner: owner._before_fork(forker))


def _after_in_parent() -> None:
    _tell(lambda owner: owner._after_fork_in_parent())


def _after_in_child() -> None:
    global _generation
    _generation = object()
    _tell(lambda owner: owner._after_fork_in_child())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
    )


IDLE_S = 2.0

Job = Callable[[], Any]


class Background:
    """Runs jobs in order of arrival. Jobs have to handle their own exceptions."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Whether there is a thread, working or idle."""
        return self._thread is not None

    def submit(self, job: Job) -> None:
        """Have it done. RuntimeError, if no thread can be had any more."""
        self._jobs.put(job)
        thread = self._thread
        if thread is None or not thread.is_alive():
            thread = self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            thread.start()

    def stop(self) -> threading.Thread | None:
        """Let the thread end after the jobs so far; a later job starts another."""
        thread = self._thread
        if thread is not None:
            self._jobs.put(None)
        return thread

    def finish(self) -> None:
        """As `stop`, and wait for it."""
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
        """Whether this thread may end: no job has arrived meanwhile."""
        self._thread = None
        if self._jobs.empty():
            return True
        self._thread = threading.current_thread()
        return False
