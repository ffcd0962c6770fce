"""Forks, in one place.

A child of `fork` has the memory of its parent and only the thread that forked. It must not speak
on its parent's connections, spend its parent's credits, or wait for threads that it does not have.
Waiters know by their `generation` that they were left behind; owners of anything else say so here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType
from weakref import WeakSet

__all__ = ["ForkAware", "watch_forks"]


class ForkAware:
    """What is told of forks: each method is called around a fork of this process."""

    def _before_fork(self, forker: FrameType) -> None:
        """Get ready: what is locked now stays locked in the child. `forker` is the frame that
        forks."""

    def _after_fork_in_parent(self) -> None:
        """Go on."""

    def _after_fork_in_child(self) -> None:
        """Forget what belongs to the parent."""


_owners: WeakSet[ForkAware] = WeakSet()

_generation = object()
"""The mark of this process: another one in each child."""


def watch_forks(owner: ForkAware) -> None:
    """Tell the owner of forks, for as long as it exists."""
    _owners.add(owner)


def _tell(hook: Callable[[ForkAware], None]) -> None:
    """Tell all owners, whatever one of them raises: the interpreter reports what comes out."""
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
