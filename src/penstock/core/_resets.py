"""Resets of this process, by which older charges are recognized.

`reset` deletes the state of a key, so the units of all open charges are gone. A charge from before
the reset that is cancelled afterwards must refund nothing: it would refund units of later callers,
or end a later pause. Most states have no room for the instant of a reset, so the store object
remembers it. Resets by other processes are not known here; `docs/several-limits.md` has the bound.
"""

from __future__ import annotations

from time import monotonic
from typing import NamedTuple

__all__ = ["ResetLog"]

_MOST = 10_000
"""Remembered keys of a store. When there are more, charges from before the oldest of them refund
nothing, whatever their key is."""


class _Reset(NamedTuple):
    monotonic_s: float
    instant_ms: int


_NEVER = _Reset(float("-inf"), -1)


class ResetLog:
    """The latest reset of each key of one store object."""

    def __init__(self) -> None:
        self._by_key: dict[str, _Reset] = {}
        self._forgotten = _NEVER

    def add(self, key: str, instant_ms: int) -> None:
        """Call it after the store was asked: a charge that raced with the reset counts as older."""
        # Removed first, so that the oldest reset is the first entry.
        self._by_key.pop(key, None)
        self._by_key[key] = _Reset(monotonic(), instant_ms)
        if len(self._by_key) > _MOST:
            self._forgotten = self._by_key.pop(next(iter(self._by_key)))

    def is_since(self, key: str, made_at: float | None, charged_at_ms: int) -> bool:
        """Whether the key was reset after a charge was made: at the monotonic time `made_at`, or,
        if another process may have made it, at the instant `charged_at_ms` of the clock that
        decides. In that case the same millisecond counts as before the reset."""
        if not self._by_key:
            return False
        last, forgotten = self._by_key.get(key, _NEVER), self._forgotten
        if made_at is not None:
            return made_at <= max(last.monotonic_s, forgotten.monotonic_s)
        return charged_at_ms <= max(last.instant_ms, forgotten.instant_ms)
