"""The interpreted table behind MemoryStore: states under keys, under one lock.

Two clocks matter here. Logically, a state is absent from its expiry on, on the clock of whoever
asks; that is decided at every access and is all that decisions depend on. Physically, expired keys
are dropped by a timing wheel that is driven by access, to give memory back. The physical side must
never change a decision:

- Up to `RECLAIM_FLOOR` keys nothing is dropped: there is nothing to gain.
- Once something has been dropped, `_horizon` is the latest instant at which that happened. A clock
  that then goes back before it may ask for a key that was dropped but would count again. Such a
  key is decided as of the horizon, the one instant at which it was certainly void: the jump never
  admits more than a clock that had stood still there.

`max_keys` bounds the number of keys. A table full of live keys either evicts by second chance
(each key has a bit that use sets and the passing hand clears; a key found cleared goes) or
refuses new keys until one expires.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, TypeVar

from ...core.errors import ConfigInvalidError
from ...core.store import Transform
from .wheel import Timed, Wheel

__all__ = ["RECLAIM_FLOOR", "Table", "wrong_kind"]

RECLAIM_FLOOR = 1024

R = TypeVar("R")


class _Record:
    __slots__ = ("expires", "kind", "slot", "state", "used")

    def __init__(self, kind: str, state: Any, expires: int) -> None:
        self.kind = kind
        self.state = state
        self.expires = expires
        self.used = False
        self.slot: dict[str, Timed] = {}


def wrong_kind(key: str, held: str, wanted: str) -> ConfigInvalidError:
    return ConfigInvalidError(
        f"key {key!r} holds the state of {held}, but is asked for {wanted}; "
        "give limiters that share a store a prefix each"
    )


class Table:
    """States by key, in plain Python."""

    def __init__(self, max_keys: int | None, evict: bool) -> None:
        self._max_keys = max_keys
        self._evict = evict
        self._lock = threading.RLock()
        # The order of the ring that the hand of second chance goes round; unbounded has no hand.
        self._records: dict[str, _Record] = {} if max_keys is None else OrderedDict()
        self._wheel = Wheel()
        # How many records the dict was once stretched for: it does not shrink by itself.
        self._width = 0
        self._seen = 0
        self._horizon = 0
        self.evictions = 0
        self.refusals = 0

    def apply(self, key: str, transform: Transform[R], now: int, cost: int) -> R:
        # Half the price of a `with` on 3.11, and this is the hot path.
        self._lock.acquire()
        try:
            if now > self._seen:
                self._seen = now
                if len(self._records) > RECLAIM_FLOOR:
                    self._reclaim(now)
            record = self._records.get(key)
            if record is None:
                return self._apply_anew(key, transform, now, cost)
            state = None
            if now < record.expires:
                if record.kind != transform.kind and transform.kind:
                    raise wrong_kind(key, record.kind, transform.kind)
                state = record.state
            outcome = transform.run(state, now, cost)
            record.used = True
            if outcome.persist:
                if outcome.state is None:
                    self._drop(key)
                else:
                    record.kind = transform.kind
                    record.state = outcome.state
                    record.expires = now + outcome.ttl_ms
            return outcome.result
        finally:
            self._lock.release()

    def _apply_anew(self, key: str, transform: Transform[R], now: int, cost: int) -> R:
        """Apply to a key that has no record."""
        now = max(now, self._horizon)
        if self._max_keys is not None and not self._has_room():
            self.refusals += 1
            return transform.refuse(now, self._wheel.next_due() - self._wheel.now)
        outcome = transform.run(None, now, cost)
        if outcome.persist and outcome.state is not None:
            if self._max_keys is not None and len(self._records) >= self._max_keys:
                self._evict_one()
            record = _Record(transform.kind, outcome.state, now + outcome.ttl_ms)
            self._records[key] = record
            self._wheel.file(key, record)
        return outcome.result

    def discard(self, key: str) -> None:
        with self._lock:
            self._drop(key)

    def sweep(self, now: int) -> int:
        """Drop everything that is expired at `now`; returns how many."""
        with self._lock:
            self._seen = max(self._seen, now)
            return self._reclaim(self._seen)

    def __len__(self) -> int:
        self.sweep(self._seen)
        return len(self._records)

    def _has_room(self) -> bool:
        """Whether a new key may come in: expired ones make way first."""
        assert self._max_keys is not None
        if len(self._records) < self._max_keys:
            return True
        self._reclaim(self._seen)
        return self._evict or len(self._records) < self._max_keys

    def _reclaim(self, now: int) -> int:
        if now <= self._wheel.now:
            return 0
        self._width = max(self._width, len(self._records))
        due = self._wheel.advance(now)
        for key in due:
            del self._records[key]
        if due:
            self._horizon = now
            self._shrink()
        return len(due)

    def _shrink(self) -> None:
        """Give memory back once three quarters of it lie idle."""
        if self._width > RECLAIM_FLOOR and len(self._records) < self._width // 4:
            self._records = type(self._records)(self._records)
            self._width = len(self._records)

    def _evict_one(self) -> None:
        assert isinstance(self._records, OrderedDict)
        while True:
            key, record = next(iter(self._records.items()))
            if not record.used:
                break
            record.used = False
            self._records.move_to_end(key)
        self._drop(key)
        self.evictions += 1

    def _drop(self, key: str) -> None:
        record = self._records.pop(key, None)
        if record is not None:
            record.slot.pop(key, None)
