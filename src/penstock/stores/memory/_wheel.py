"""A timing wheel: which keys are due, found without looking at those that are not.

Four levels of 256 slots, each level 256 times coarser than the one below, the finest at one
millisecond. A key is filed under its expiry, on the finest level that reaches that far. When time
advances, the slots it passes are emptied: what is due is handed out, the rest is filed again,
closer. Each key moves at most once per level, so expiry costs amortized O(1).

Refreshing a key does not move it: it is found too early in its old slot, seen to be alive, and
filed again. The wheel's time is the highest it was ever told and never goes back.

The compiled table holds the same wheel; the two are compared by the tests.
"""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Timed", "Wheel"]

_BITS = 8
_SLOTS = 1 << _BITS
_MASK = _SLOTS - 1
_LEVELS = 4
_REACH_MS = 1 << (_BITS * _LEVELS)


class Timed(Protocol):
    """What the wheel files: it must say when it expires, and remember its slot."""

    expires: int
    slot: dict[Any, Timed]


class Wheel:
    """Keys by expiry."""

    def __init__(self) -> None:
        self.now: int = 0
        self._soonest = 0
        self._slots: list[list[dict[Any, Timed]]] = [
            [{} for _ in range(_SLOTS)] for _ in range(_LEVELS)
        ]

    def file(self, key: str | bytes, timed: Timed) -> None:
        """Put a key where time will find it."""
        at = min(max(timed.expires, self.now + 1), self.now + _REACH_MS - 1)
        self._soonest = 0
        ahead = at - self.now
        level = 0
        while ahead >= _SLOTS:
            ahead >>= _BITS
            level += 1
        timed.slot = self._slots[level][(at >> (_BITS * level)) & _MASK]
        timed.slot[key] = timed

    def advance(self, now: int) -> list[str | bytes]:
        """Move to `now` and take out the keys that are due there."""
        before, self.now = self.now, now
        self._soonest = 0
        due: list[str | bytes] = []
        for level in reversed(range(_LEVELS)):
            shift = _BITS * level
            first, last = (before >> shift) + 1, now >> shift
            for position in range(first, min(last, first + _MASK) + 1):
                slot = self._slots[level][position & _MASK]
                found = list(slot.items())
                # Not popped one by one: a dict gives its memory back only when it is cleared.
                slot.clear()
                for key, timed in found:
                    if timed.expires <= now:
                        due.append(key)
                    else:
                        self.file(key, timed)
        return due

    def next_due(self) -> int:
        """No key is due before this instant; `now + 1` at the earliest. Remembered until a key is
        filed or time moves on: one that leaves can only make it later."""
        if self._soonest:
            return self._soonest
        soonest = self.now + _REACH_MS
        for level, slots in enumerate(self._slots):
            shift = _BITS * level
            base = self.now >> shift
            for position in range(base + 1, base + _SLOTS + 1):
                if slots[position & _MASK]:
                    soonest = min(soonest, position << shift)
                    break
        self._soonest = soonest
        return soonest
