"""The interpreted table of MemoryStore: states by key, under one lock.

Logically, a state is absent from its expiry on, by the clock of the caller; that is checked at
every access and is all that decisions depend on. Physically, expired keys are dropped by a timing
wheel that is driven by access, to free memory. That must never change a decision:

- Up to `RECLAIM_FLOOR` small keys, nothing is dropped: there is nothing to gain.
- Once something has been dropped, `_horizon` is the latest instant at which that happened. A clock
  that goes back before it may ask for a key that was dropped but would count again. Such a key is
  decided as of the horizon, an instant at which it was certainly void: so a clock that goes back
  never admits more than one that had stood still there.

`max_keys` bounds the number of keys, and `max_bytes` the memory of keys and states. A table full of
live keys either evicts, in the order of `_eviction.py`, or refuses new keys, and states that grow
as a log does, until a key expires. A state that alone is larger than `max_bytes` is refused in
either case.

The lock is reentrant, because dropping a user's state can run a finalizer, and garbage collection
any code at all. So what is dropped leaves the table first and is destroyed last, and a write goes
through only if there was no other in between.
"""

from __future__ import annotations

import threading
from sys import getsizeof
from typing import Any, TypeVar

from ...core._decision import Decision, Outcome
from ...core._errors import ConfigInvalidError
from ...core._transform import READING, Transform
from ...core._validation import LONGEST_KEPT, MAX_SAFE, digest_of, kept_key
from ._eviction import IDLE, Order, RankedRecord, Record, Wheel, rank_of

__all__ = ["RECLAIM_FLOOR", "Table", "require_ttl", "wrong_kind"]

RECLAIM_FLOOR = 1024
# The bytes up to which few keys are not reclaimed. Few keys may still be large: a log has as many
# entries as its limit, and a user's strategy may keep anything. They are measured periodically.
LIGHT_BYTES = 1 << 20
WEIGH_EVERY_MS = 1_000
# The bytes of a key besides its name and its state: the record and its places in the dict and in
# the wheel, which grow by steps. Then a state of ours: a tuple of numbers, or of (stamp, count)
# pairs.
_RECORD_BYTES = 320
_TUPLE_BYTES = 56
_NUMBER_BYTES = 40
_PAIR_BYTES = 112

# In place of the state of a record that is no longer in the table.
_DROPPED = object()

R = TypeVar("R")


def _weight_of(state: Any) -> int:
    """About how many bytes it takes. What a state of the user's leads to is not looked into."""
    if type(state) is not tuple:
        return getsizeof(state, 0)
    each = _PAIR_BYTES if state and type(state[0]) is tuple else _NUMBER_BYTES
    return _TUPLE_BYTES + each * len(state)


def wrong_kind(key: str | bytes, held: str, wanted: str) -> ConfigInvalidError:
    named = f"key {key!r}" if len(key) <= LONGEST_KEPT and type(key) is str else "a long key"
    return ConfigInvalidError(
        f"{named} holds the state of {held}, but is asked for {wanted}; "
        "give limiters that share a store a prefix each"
    )


def require_ttl(transform: Transform[Any], ttl_ms: Any) -> int:
    """Validate the ttl that a user's strategy returned."""
    if type(ttl_ms) is not int or not -MAX_SAFE <= ttl_ms <= MAX_SAFE:
        raise ConfigInvalidError(
            f"the strategy {transform.kind!r} returned a ttl_ms of {ttl_ms!r}; "
            f"an Outcome takes whole milliseconds up to {MAX_SAFE}"
        )
    return ttl_ms


class Table:
    """States by key, in plain Python."""

    def __init__(self, max_keys: int | None, max_bytes: int | None, evict: bool) -> None:
        self._evict = evict
        self._lock = threading.RLock()
        self._records: dict[str | bytes, Any] = {}
        unbounded = max_keys is None and max_bytes is None
        self._order = None if unbounded else Order(max_keys, max_bytes)
        self._wheel = Wheel()
        # The largest number of records that the dict has had: it does not shrink by itself.
        self._width = 0
        self._seen = 0
        self._horizon = 0
        self._weigh_at = 0
        self.evictions: int = 0
        self.refusals: int = 0

    def apply(self, key: str | bytes, transform: Transform[R], now: int, cost: int) -> R:
        # Half the price of a `with` on 3.11, and this is the hot path. The lock is taken inside, or
        # an exception from a signal handler could strike between it and the `try`, and keep it.
        try:
            self._lock.acquire()
            if now > self._seen:
                self._advance(now)
            record = self._records.get(key)
            if record is None:
                return self._apply_anew(key, transform, now, cost)
            held = record.state
            if now < record.expires:
                if record.kind is not transform.kind:
                    self._require_kind(key, record, transform)
                outcome = transform.run(held, now, cost)
            else:
                outcome = transform.run(None, now, cost)
            new, result, order = outcome.state, outcome.result, self._order
            if outcome.persist:
                size = 0 if order is None else self._size_of(key, new, record.size)
                if record.state is not held:
                    return self.apply(key, transform, now, cost)
                if new is None:
                    self._drop(key)
                    return result
                ttl_ms = outcome.ttl_ms
                # The common case inline; anything else by a call.
                if type(ttl_ms) is not int or not 0 <= ttl_ms <= MAX_SAFE:
                    require_ttl(transform, ttl_ms)
                # Named, so that they live until the new state is in its place.
                _evicted = None if order is None else self._resize(record, size)
                if order is not None and _evicted is None:
                    return self._refuse(transform, now)
                record.state = new
                expires = now + ttl_ms
                # The wheel finds a record that lives longer by itself, but not the reverse.
                if expires < record.expires or record.kind is not transform.kind:
                    self._refile(key, record, transform.kind, expires)
                else:
                    record.expires = expires
            if order is not None and record.state is not _DROPPED:
                order.use(record, _rank_in(transform, result, record.rank))
            return result
        finally:
            try:  # noqa: SIM105 - a context manager would cost more than the lock
                self._lock.release()
            except RuntimeError:
                # A caller that was interrupted while it waited for the lock never had it.
                pass

    def _advance(self, now: int) -> None:
        """The latest instant that was seen: what is due by it may go."""
        if now > self._seen:
            self._seen = now
            if len(self._records) > RECLAIM_FLOOR:
                self._reclaim(now)
            elif now >= self._weigh_at:
                self._weigh(now)

    def _apply_anew(self, key: str | bytes, transform: Transform[R], now: int, cost: int) -> R:
        """Apply to a key that has no record."""
        if len(key) > LONGEST_KEPT:
            assert isinstance(key, str)
            return self.apply(digest_of(key), transform, now, cost)
        order = self._order
        has_room = order is None or self._has_room(_least_size(key))
        if key in self._records:
            return self.apply(key, transform, now, cost)
        at = max(now, self._horizon)
        if not has_room and transform.role in READING and transform.needs_room(at, cost):
            return self._refuse(transform, at)
        outcome = transform.run(None, at, cost)
        new, result = outcome.state, outcome.result
        if not outcome.persist or new is None:
            return result
        require_ttl(transform, outcome.ttl_ms)
        size = 0 if order is None else self._size_of(key, new)
        if key in self._records:
            return self.apply(key, transform, now, cost)
        if order is None:
            record = Record(transform.kind, new, at + outcome.ttl_ms)
        else:
            # Named, so that they live until the new record is in its place.
            _evicted = self._make_room(size)
            if _evicted is None:
                return self._refuse(transform, at)
            record = RankedRecord(key, transform.kind, new, at + outcome.ttl_ms)
            order.add(record, _rank_in(transform, result, IDLE), size)
        self._records[key] = record
        self._wheel.file(key, record)
        return result

    def _refile(self, key: str | bytes, record: Record, kind: str, expires: int) -> None:
        record.kind = kind
        record.expires = expires
        record.slot.pop(key, None)
        self._wheel.file(key, record)

    def _require_kind(self, key: str | bytes, record: Record, transform: Transform[Any]) -> None:
        if transform.kind and record.kind != transform.kind:
            raise wrong_kind(key, record.kind, transform.kind)

    def _refuse(self, transform: Transform[R], now: int) -> R:
        return transform.refuse(now, self._wheel.next_due() - self._wheel.now)

    # Several keys at once; `_apply_all` of the store says in which order.

    require_ttl = staticmethod(require_ttl)

    def read(self, key: str, transform: Transform[Any], now: int) -> tuple[Any, int, int, Any]:
        """The state of a key, the instant to decide it at, until when it counts, and a mark that
        changes with every write."""
        with self._lock:
            self._advance(now)
            record = self._records.get(kept_key(key))
            if record is None:
                return None, max(now, self._horizon), 0, None
            if now >= record.expires:
                return None, now, 0, record.state
            self._require_kind(key, record, transform)
            return record.state, now, record.expires, record.state

    def is_shut(self, key: str) -> bool:
        """Whether a new key of that name would be refused."""
        kept = kept_key(key)
        with self._lock:
            order = self._order
            is_new = order is not None and kept not in self._records
            return is_new and not self._has_room(_least_size(kept))

    def due_in(self) -> int:
        """How long until there may be room."""
        return self._wheel.next_due() - self._wheel.now

    def commit(self, writes: list[Any]) -> int | bool | None:
        """Write all of them, if nothing was written meanwhile: True. None, if something was; and
        where there is no room for one of them, its place, and nothing is written. Each is (key,
        transform, state, until when, mark, the state before, until when that counted, decision)."""
        with self._lock:
            for key, _, _, _, mark, *_ in writes:
                record = self._records.get(kept_key(key))
                if (None if record is None else record.state) is not mark:
                    return None
            for place, (key, transform, state, until, _, _, _, decision) in enumerate(writes):
                if not self._replace(key, transform, state, until, decision):
                    for other, kind, _, _, _, before, until_before, _ in writes[:place]:
                        self._replace(other, kind, before, until_before, None)
                    return place
            return True

    def _replace(
        self, key: str, transform: Transform[Any], state: Any, until: int, decision: Any
    ) -> bool:
        """Put a state under a key, or take the key out where there is none. False: no room."""
        done = object()

        def put(_state: Any, now: int, _cost: int) -> Outcome[Any]:
            return Outcome(state, done, until - now, True)

        writing = Transform(transform.strategy, "put", put, lambda _now, _retry_after_ms: None)
        writing.decision_in = lambda _result: decision
        # At an instant at which existing records are not expired yet.
        return self.apply(key, writing, min(self._seen, until - 1), 1) is done

    def discard(self, key: str) -> None:
        with self._lock:
            self._drop(kept_key(key))

    def sweep(self, now: int) -> int:
        """Drop everything that is expired at `now`; returns how many."""
        with self._lock:
            self._seen = max(self._seen, now)
            return self._reclaim(self._seen)

    def renew_lock(self) -> None:
        """For the child of a fork: the thread that held the lock is not in it."""
        self._lock = threading.RLock()

    def __len__(self) -> int:
        self.sweep(self._seen)
        return len(self._records)

    @property
    def keys(self) -> int:
        """How many keys there are, including those that have expired but are not dropped yet."""
        return len(self._records)

    @property
    def weight(self) -> int:
        """About how many bytes they take."""
        if self._order is not None:
            return self._order.bytes
        with self._lock:
            records = list(self._records.items())
        return sum(_least_size(key) + _weight_of(record.state) for key, record in records)

    # Bounds. Evicted records leave the table first, and are returned, so that they are freed last.

    def _has_room(self, size: int) -> bool:
        """Whether a new key of that size may come in: expired ones make way first."""
        assert self._order is not None
        if not self._order.is_full(size):
            return True
        self._reclaim(self._seen)
        return self._evict or not self._order.is_full(size)

    def _size_of(self, key: str | bytes, state: Any, held: int = 0) -> int:
        """The size of a key with that state. To weigh it may run code of the user's, and so may
        what makes way for it, where `held` bytes are not enough."""
        assert self._order is not None
        size = _least_size(key) + _weight_of(state)
        if self._order.is_over(size - held):
            self._reclaim(self._seen)
        return size

    def _make_room(self, size: int) -> list[Any] | None:
        """Evict until a new key of that size fits. None: it has to be refused."""
        order = self._order
        assert order is not None
        if order.is_too_large(size) or (not self._evict and order.is_full(size)):
            self.refusals += 1
            return None
        evicted = []
        while order.is_full(size):
            evicted.append(self._evict_one())
        return evicted

    def _resize(self, record: RankedRecord, size: int) -> list[Any] | None:
        """Evict others until a record of that size fits. None: its growth has to be refused."""
        order = self._order
        assert order is not None
        evicted: list[Any] = []
        if size <= record.size or not order.is_over(size - record.size):
            order.resize(record, size)
            return evicted
        if not self._evict or order.is_too_large(size):
            self.refusals += 1
            return None
        # Removed from the order meanwhile, so that it is not evicted for itself.
        order.remove(record)
        while order.is_over(size):
            evicted.append(self._evict_one())
        order.add(record, record.rank, size)
        return evicted

    def _evict_one(self) -> Any:
        assert self._order is not None
        self.evictions += 1
        return self._drop(self._order.victim().key)

    # Space.

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
            self._records = dict(self._records)
            self._width = len(self._records)

    def _drop(self, key: str | bytes) -> Any:
        """Take a key out. Its state is returned, for the caller to let go of when it is done."""
        record = self._records.pop(key, None)
        if record is None:
            return None
        record.slot.pop(key, None)
        if self._order is not None:
            self._order.remove(record)
        state, record.state = record.state, _DROPPED
        return state


def _least_size(key: str | bytes) -> int:
    """The size of a key without its state."""
    return _RECORD_BYTES + getsizeof(key)


def _rank_in(transform: Transform[Any], result: Any, otherwise: int) -> int:
    """The rank of a key after a transform with this result, if the result contains a decision."""
    decision = transform.decision_in(result)
    return rank_of(decision) if type(decision) is Decision else otherwise
