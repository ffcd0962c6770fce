"""The interpreted table behind MemoryStore: states under keys, under one lock.

Two clocks matter here. Logically, a state is absent from its expiry on, on the clock of whoever
asks; that is decided at every access and is all that decisions depend on. Physically, expired keys
are dropped by a timing wheel that is driven by access, to give memory back. The physical side must
never change a decision:

- Up to `RECLAIM_FLOOR` keys that weigh little nothing is dropped: there is nothing to gain.
- Once something has been dropped, `_horizon` is the latest instant at which that happened. A clock
  that then goes back before it may ask for a key that was dropped but would count again. Such a
  key is decided as of the horizon, the one instant at which it was certainly void: the jump never
  admits more than a clock that had stood still there.

`max_keys` bounds the number of keys. A table full of live keys either evicts by second chance
(each key has a bit that use sets and the passing hand clears; a key found cleared goes) or
refuses new keys until one expires.

The lock lets the thread that holds it in again, because it may have to: dropping a state of the
user's can run a finalizer, and the collector any code at all. So what is dropped leaves the table
first and dies last, and a write goes through only if nobody else's came in between.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from sys import getsizeof
from typing import Any, TypeVar

from ...core.errors import ConfigInvalidError
from ...core.store import Transform
from ...core.validation import MAX_SAFE
from .wheel import Timed, Wheel

__all__ = ["RECLAIM_FLOOR", "Table", "require_ttl", "wrong_kind"]

RECLAIM_FLOOR = 1024
# What few keys may weigh all the same: a log has as many entries as its limit, and a strategy of
# the user's may keep anything. They are weighed now and then.
LIGHT_BYTES = 1 << 20
WEIGH_EVERY_MS = 1_000
_PAIR_BYTES = 72

_LOOKING = ("peek", "forecast")
# In place of the state of a record that is no longer in the table.
_DROPPED = object()

R = TypeVar("R")


def _weight_of(state: Any) -> int:
    """About how many bytes it takes; the states of ours are tuples, of pairs if they are long."""
    return _PAIR_BYTES * len(state) if type(state) is tuple else getsizeof(state, 0)


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


def require_ttl(transform: Transform[Any], ttl_ms: Any) -> int:
    """What a strategy of the user's returned, before it reaches the wheel."""
    if type(ttl_ms) is not int or not -MAX_SAFE <= ttl_ms <= MAX_SAFE:
        raise ConfigInvalidError(
            f"the strategy {transform.kind!r} returned a ttl_ms of {ttl_ms!r}; "
            f"an Outcome takes whole milliseconds up to {MAX_SAFE}"
        )
    return ttl_ms


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
        self._weigh_at = 0
        self.evictions: int = 0
        self.refusals: int = 0

    def apply(self, key: str, transform: Transform[R], now: int, cost: int) -> R:
        # Half the price of a `with` on 3.11, and this is the hot path. The lock is taken inside, or
        # an exception from a signal handler could strike between it and the `try`, and keep it.
        try:
            self._lock.acquire()
            if now > self._seen:
                self._seen = now
                if len(self._records) > RECLAIM_FLOOR:
                    self._reclaim(now)
                elif now >= self._weigh_at:
                    self._weigh(now)
            record = self._records.get(key)
            if record is None:
                return self._apply_anew(key, transform, now, cost)
            held = record.state
            if now < record.expires:
                if record.kind is not transform.kind:
                    self._require_kind(key, record, transform)
                new, result, ttl_ms, persist = transform.step(held, now, cost)
            else:
                new, result, ttl_ms, persist = transform.step(None, now, cost)
            record.used = True
            if persist:
                if record.state is not held:
                    return self.apply(key, transform, now, cost)
                if new is None:
                    self._drop(key)
                else:
                    if transform.native is None:
                        require_ttl(transform, ttl_ms)
                    record.state = new
                    expires = now + ttl_ms
                    # The wheel finds a record that lives longer by itself, but not the reverse.
                    if expires < record.expires or record.kind is not transform.kind:
                        self._refile(key, record, transform.kind, expires)
                    else:
                        record.expires = expires
            return result
        finally:
            try:  # noqa: SIM105 - a context manager would cost more than the lock
                self._lock.release()
            except RuntimeError:
                # Interrupted while it was waiting for the lock, this caller never had it.
                pass

    def _apply_anew(self, key: str, transform: Transform[R], now: int, cost: int) -> R:
        """Apply to a key that has no record."""
        has_room = self._max_keys is None or self._has_room()
        if key in self._records:
            return self.apply(key, transform, now, cost)
        at = max(now, self._horizon)
        if not has_room and transform.role in _LOOKING and transform.needs_room(at, cost):
            return self._refuse(transform, at)
        new, result, ttl_ms, persist = transform.step(None, at, cost)
        if persist and new is not None:
            require_ttl(transform, ttl_ms)
            full = self._max_keys is not None and len(self._records) >= self._max_keys
            if key in self._records:
                return self.apply(key, transform, now, cost)
            if full and not self._evict:
                self.refusals += 1
                return self._refuse(transform, at)
            # Named, so that it lives until the new record is in its place.
            _evicted = self._evict_one() if full else None
            record = _Record(transform.kind, new, at + ttl_ms)
            self._records[key] = record
            self._wheel.file(key, record)
        return result

    def _refile(self, key: str, record: _Record, kind: str, expires: int) -> None:
        record.kind = kind
        record.expires = expires
        record.slot.pop(key, None)
        self._wheel.file(key, record)

    def _require_kind(self, key: str, record: _Record, transform: Transform[Any]) -> None:
        if transform.kind and record.kind != transform.kind:
            raise wrong_kind(key, record.kind, transform.kind)

    def _refuse(self, transform: Transform[R], now: int) -> R:
        return transform.refuse(now, self._wheel.next_due() - self._wheel.now)

    def discard(self, key: str) -> None:
        with self._lock:
            self._drop(key)

    def sweep(self, now: int) -> int:
        """Drop everything that is expired at `now`; returns how many."""
        with self._lock:
            self._seen = max(self._seen, now)
            return self._reclaim(self._seen)

    def renew_lock(self) -> None:
        """For the child of a fork, in which nobody holds the lock."""
        self._lock = threading.RLock()

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
        # Named, so that they live until all of them have left.
        _states = [self._drop(key) for key in due]
        if due:
            self._horizon = max(self._horizon, now)
            self._shrink()
        return len(due)

    def _weigh(self, now: int) -> None:
        """Drop what is due among few keys, if they are heavy."""
        self._weigh_at = now + WEIGH_EVERY_MS
        weight = sum(_weight_of(record.state) for record in list(self._records.values()))
        if weight > LIGHT_BYTES:
            self._reclaim(now)

    def _shrink(self) -> None:
        """Give memory back once three quarters of it lie idle."""
        if self._width > RECLAIM_FLOOR and len(self._records) < self._width // 4:
            self._records = type(self._records)(self._records)
            self._width = len(self._records)

    def _evict_one(self) -> Any:
        assert isinstance(self._records, OrderedDict)
        while True:
            key, record = next(iter(self._records.items()))
            if not record.used:
                break
            record.used = False
            self._records.move_to_end(key)
        self.evictions += 1
        return self._drop(key)

    def _drop(self, key: str) -> Any:
        """Take a key out. Its state is returned, for the caller to let go of when it is done."""
        record = self._records.pop(key, None)
        if record is None:
            return None
        record.slot.pop(key, None)
        state, record.state = record.state, _DROPPED
        return state
