"""The records that this process last saw, so that a write need not be preceded by a read.

A write names the version that it was decided on, so one that was decided on an old record is
refused, and costs what the read would have cost. A decision that needs no write, such as a denial,
is never taken from here. A key whose record turned out to be old is dropped until it is read again.

**Races between processes.** The process that wrote a key last can write it again from memory before
another has read it, again and again, and starve the others without noticing. So a raced key is read
first each time, after a short pause for the others, until it has been found unchanged a few times.
A key is raced if a write was refused that was based on a fresh read, or on a recent record. And
since a process that always wins is never refused, a key that is written many times in quick
succession is treated like that once in a while.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from ..._queueing import Mutex
from ._requests import Held

__all__ = ["RaceMemory"]


_MOST_KEYS = 4096
_LONGEST_RECORD = 4096
_YOUNG_S = 0.1
_STREAK = 32
"""After this many writes in quick succession, a key is read first once."""
_QUIET = 3
"""Looks at a raced key in a row that find it as it was left; then it is raced no more."""


class _Key:
    """`quiet` counts the consecutive reads without a foreign write; None, if the key is not
    raced."""

    __slots__ = ("held", "kept_at", "quiet", "streak")

    def __init__(self) -> None:
        self.held: Held | None = None
        self.kept_at = float("-inf")
        self.streak = 0
        self.quiet: int | None = None


class RaceMemory:
    """The keys used last; at most `most_keys`, which may be 0."""

    def __init__(
        self, most_keys: int = _MOST_KEYS, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most_keys
        self._now_s = now_s
        self._mutex = Mutex()
        self._keys: OrderedDict[str, _Key] = OrderedDict()

    def recall(self, key: str) -> Held | None:
        with self._mutex.hold():
            return self._use(key).held if key in self._keys else None

    def keep(self, key: str, held: Held | None, *, written: bool = False) -> None:
        """The key was read, or `written`, and holds this."""
        if held is None or len(held.record) > _LONGEST_RECORD:
            self.forget(key)
            return
        with self._mutex.hold():
            entry, now = self._use(key), self._now_s()
            entry.held = held
            if written:
                entry.streak = entry.streak + 1 if now - entry.kept_at < _YOUNG_S else 0
            entry.kept_at = now

    def forget(self, key: str) -> None:
        with self._mutex.hold():
            if key in self._keys:
                self._keys[key].held = None

    def is_raced(self, key: str) -> bool:
        with self._mutex.hold():
            return key in self._keys and self._keys[key].quiet is not None

    def is_to_be_looked_at(self, key: str) -> bool:
        """Whether to leave a moment to others, and then read."""
        with self._mutex.hold():
            entry = self._keys.get(key)
            return entry is not None and (entry.quiet is not None or entry.streak >= _STREAK)

    def note_look(self, key: str, found: Held | None) -> None:
        """Record what was found after that pause."""
        with self._mutex.hold():
            entry = self._use(key)
            entry.streak = 0
            if entry.held is None or found is None or found.version != entry.held.version:
                entry.quiet = 0
            elif entry.quiet is not None:
                entry.quiet = entry.quiet + 1 if entry.quiet + 1 < _QUIET else None

    def note_loss(self, key: str, *, was_remembered: bool) -> None:
        """A write was refused."""
        with self._mutex.hold():
            entry = self._use(key)
            if not was_remembered or self._now_s() - entry.kept_at < _YOUNG_S:
                entry.quiet = 0

    def _use(self, key: str) -> _Key:
        entry = self._keys.get(key)
        if entry is None:
            entry = self._keys[key] = _Key()
        self._keys.move_to_end(key)
        while len(self._keys) > self._most:
            self._keys.popitem(last=False)
        return entry
