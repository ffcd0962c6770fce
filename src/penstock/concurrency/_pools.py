"""What one process knows of the pools that it takes slots from.

Who holds slots is known to the store. Here are the ceilings, which are learned from what comes back
to this process; how many slots were held when a pool was last looked at; and from when on it is
worth looking again, because somebody may not have given a slot back.

At most `max_keys` pools are remembered. Those that are in use are not forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappop, heappush

from ._laws import Ceiling, Law

__all__ = ["SlotPool", "SlotPools"]

# Deadlines beyond those that are needed, before they are dropped.
_SPARE = 64


class SlotPool:
    """Slots under one ceiling."""

    __slots__ = ("ceiling", "due", "in_flight", "name", "rtt_ms")

    def __init__(self, name: str, law: Law) -> None:
        self.name: str = name
        self.ceiling: Ceiling = Ceiling(law)
        self.in_flight: int = 0
        self.rtt_ms: int | None = None
        # From when on somebody may have been lost; None if nobody is known to hold a slot.
        self.due: int | None = None


class SlotPools:
    """The pools of one limiter, by name. Not safe by itself to share between threads."""

    def __init__(self, law: Law, max_keys: int) -> None:
        self._law = law
        self._max_keys = max_keys
        self._busy: dict[str, SlotPool] = {}
        self._idle: OrderedDict[str, SlotPool] = OrderedDict()
        # When to look at which pool; some of them stale.
        self._due: list[tuple[int, str]] = []

    @property
    def limit(self) -> int:
        """The highest ceiling; that of a new pool, if there is none."""
        pools = (*self._busy.values(), *self._idle.values())
        return max((pool.ceiling.limit for pool in pools), default=Ceiling(self._law).limit)

    @property
    def in_flight(self) -> int:
        """How many slots were held when they were last looked at."""
        return sum(pool.in_flight for pool in self._busy.values())

    def busy(self) -> list[str]:
        """The names of those that are in use."""
        return list(self._busy)

    def get(self, name: str) -> SlotPool | None:
        """A pool, made on first use; None if no more can be remembered, because all are in use."""
        pool = self._busy.get(name) or self._idle.get(name)
        if pool is None:
            if len(self._busy) >= self._max_keys:
                return None
            if len(self._busy) + len(self._idle) >= self._max_keys:
                self._idle.popitem(last=False)
            pool = self._idle[name] = SlotPool(name, self._law)
        return pool

    def saw(self, pool: SlotPool, in_flight: int) -> None:
        """So many slots of it are held."""
        pool.in_flight = in_flight
        if in_flight:
            self._idle.pop(pool.name, None)
            self._busy[pool.name] = pool
        else:
            self._busy.pop(pool.name, None)
            self._idle[pool.name] = pool

    def expect(self, pool: SlotPool, deadline: int) -> None:
        """Somebody may be lost from then on."""
        if pool.due is not None and pool.due <= deadline:
            return
        pool.due = deadline
        heappush(self._due, (deadline, pool.name))
        if len(self._due) > 2 * (len(self._busy) + len(self._idle)) + _SPARE:
            every = (*self._busy.values(), *self._idle.values())
            self._due = [(pool.due, pool.name) for pool in every if pool.due is not None]
            heapify(self._due)

    def is_due(self, now: int) -> bool:
        """Whether somebody may have been lost."""
        return bool(self._due) and self._due[0][0] <= now

    def overdue(self, now: int, again_at: int) -> list[str]:
        """Those to look at, and to look at again if that fails."""
        names = set()
        while self.is_due(now):
            _, name = heappop(self._due)
            pool = self._busy.get(name) or self._idle.get(name)
            if pool is not None and pool.due is not None and pool.due <= now:
                pool.due = None
                self.expect(pool, again_at)
                names.add(name)
        return list(names)
