"""Expiry and eviction: a timing wheel for expired keys, and ranks for a full table.

A timing wheel finds expired keys without looking at the others. It has four levels of 256 slots,
each level 256 times coarser than the one below, the finest at one millisecond. A key is filed under
its expiry, on the finest level that reaches that far. When time advances, the slots it passes are
emptied: expired keys are handed out, the rest is filed again, closer. Each key moves at most once
per level, so expiry costs amortized O(1).

Refreshing a key does not move it: it is found too early in its old slot, seen to be alive, and
filed again. The time of the wheel is the highest it was ever given, and never goes back.

Evicting a key lets it start afresh. That does no harm to a key that was hardly used, and undoes a
limit that was reached. So keys have a rank by the last decision about them:

- IDLE: there is plenty left;
- SPENT: less than an eighth of the limit is left;
- DENIED: the last request was denied.

Idle keys are evicted first, then spent ones, then denied ones. An attacker who makes up keys makes
idle ones, which evict each other: evicting a denied key takes as many other denied keys, each of
which has to be used beyond its limit.

No rank may take all the room, or new keys would evict each other before they can be counted. So
idle and spent keys are safe from each other, and from denied ones, up to a quarter of all keys
each. Within a rank a key has a second chance: one that was used since it was last considered goes
to the end of the queue. At most 32 in a row do, so that making room takes a bounded time.

The memory of keys is counted as well, in bytes, since a table may be bounded by that.

The compiled table has the same wheel and the same order (`accel/order.pxi`), and evicts the same
keys; only their size in memory differs.
"""

from __future__ import annotations

from typing import Any, Protocol

from ...core._decision import Decision

__all__ = [
    "DENIED",
    "IDLE",
    "SPENT",
    "Order",
    "RankedRecord",
    "Record",
    "Timed",
    "Wheel",
    "rank_of",
]


_BITS = 8
_SLOTS = 1 << _BITS
_MASK = _SLOTS - 1
_LEVELS = 4
_REACH_MS = 1 << (_BITS * _LEVELS)


class Timed(Protocol):
    """An entry of the wheel: knows when it expires, and its slot."""

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


IDLE, SPENT, DENIED = 0, 1, 2

# Of the limit, and of all keys.
_NEARLY = 8
_SHARE = 4
_CHANCES = 32


def rank_of(decision: Decision) -> int:
    """The rank of a key after this decision."""
    if not decision.allowed:
        return DENIED
    return SPENT if decision.remaining * _NEARLY < decision.limit else IDLE


class Record:
    """The entry of a key in a table."""

    __slots__ = ("expires", "kind", "slot", "state")

    def __init__(self, kind: str, state: Any, expires: int) -> None:
        self.kind: str = kind
        self.state: Any = state
        self.expires: int = expires
        self.slot: dict[Any, Timed] = {}


class RankedRecord(Record):
    """One with its place in the order: between its neighbours of the same rank."""

    __slots__ = ("key", "newer", "older", "rank", "size", "used")

    rank: int
    size: int
    used: bool
    newer: Any
    older: Any

    def __init__(self, key: str | bytes, kind: str, state: Any, expires: int) -> None:
        super().__init__(kind, state, expires)
        self.key: str | bytes = key


class _Queue:
    """Records of one rank: a ring, with this object between the newest and the oldest."""

    __slots__ = ("newer", "older", "size")

    def __init__(self) -> None:
        self.newer: Any = self
        self.older: Any = self
        self.size = 0

    def add(self, record: RankedRecord) -> None:
        record.older, record.newer = self.older, self
        record.older.newer = self.older = record
        self.size += 1

    def remove(self, record: RankedRecord) -> None:
        record.older.newer, record.newer.older = record.newer, record.older
        record.older = record.newer = None
        self.size -= 1


class Order:
    """The records of a table with bounds, by rank. A bound of None is none."""

    def __init__(self, max_keys: int | None, max_bytes: int | None) -> None:
        self.max_keys = max_keys
        self.max_bytes = max_bytes
        self.bytes: int = 0
        self._count = 0
        self._queues = (_Queue(), _Queue(), _Queue())

    def is_full(self, more: int) -> bool:
        """Whether one more key, of so many bytes, does not fit."""
        return (self.max_keys is not None and self._count >= self.max_keys) or self.is_over(more)

    def is_over(self, more: int) -> bool:
        """Whether so many more bytes do not fit."""
        return self.max_bytes is not None and self.bytes + more > self.max_bytes

    def is_too_large(self, size: int) -> bool:
        """Whether so many bytes would not even fit alone."""
        return self.max_bytes is not None and size > self.max_bytes

    def add(self, record: RankedRecord, rank: int, size: int) -> None:
        record.rank, record.used, record.size = rank, False, size
        self.bytes += size
        self._count += 1
        self._queues[rank].add(record)

    def remove(self, record: RankedRecord) -> None:
        self.bytes -= record.size
        self._count -= 1
        self._queues[record.rank].remove(record)

    def use(self, record: RankedRecord, rank: int) -> None:
        """A key was asked for, and has that rank now."""
        if record.rank == rank:
            record.used = True
            return
        self._queues[record.rank].remove(record)
        self._queues[rank].add(record)
        record.rank, record.used = rank, False

    def resize(self, record: RankedRecord, size: int) -> None:
        self.bytes += size - record.size
        record.size = size

    def victim(self) -> RankedRecord:
        """The record to let go of next. There must be one."""
        queue = self._fullest()
        for _ in range(_CHANCES):
            oldest: RankedRecord = queue.newer
            if not oldest.used:
                return oldest
            oldest.used = False
            queue.remove(oldest)
            queue.add(oldest)
        last_resort: RankedRecord = queue.newer
        return last_resort

    def _fullest(self) -> _Queue:
        """The lowest rank that has more than its share."""
        idle, spent, denied = self._queues
        for queue in (idle, spent):
            if queue.size * _SHARE > self._count:
                return queue
        return denied
