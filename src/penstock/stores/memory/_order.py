"""The order in which a full table lets go of keys.

To forget a key is to let it start afresh. That costs nothing where a key has hardly been used, and
undoes a limit where it has been reached. So keys are told apart by the last decision about them:

- IDLE: there is plenty left;
- SPENT: less than an eighth of the limit is left;
- DENIED: the last request was refused.

Idle keys go first, then spent ones, then denied ones. An attacker who makes up keys makes idle
ones, and they push out each other: to push out a key that is being denied takes as many others that
are denied too, each of them asked for beyond its limit.

No rank may take all the room, or newcomers would push out each other before they can be counted.
So idle and spent keys are safe from each other, and from denied ones, up to a quarter of all keys
each. Within a rank a key has a second chance: one that was asked for since it was last looked at
goes to the end of the queue. At most 32 in a row do, so that making room takes a bounded time.

The order also knows what the keys weigh, in bytes, since a table may be bounded by that as well.

The compiled table has the same order (`accel/order.pxi`), and lets go of the same keys; only what
they weigh differs.
"""

from __future__ import annotations

from typing import Any

from ...core._decision import Decision
from ._wheel import Timed

__all__ = ["DENIED", "IDLE", "SPENT", "Order", "RankedRecord", "Record", "rank_of"]

IDLE, SPENT, DENIED = 0, 1, 2

# Of the limit, and of all keys.
_NEARLY = 8
_SHARE = 4
_CHANCES = 32


def rank_of(decision: Decision) -> int:
    """What it would cost to forget a key after this decision."""
    if not decision.allowed:
        return DENIED
    return SPENT if decision.remaining * _NEARLY < decision.limit else IDLE


class Record:
    """What a table keeps under a key."""

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
