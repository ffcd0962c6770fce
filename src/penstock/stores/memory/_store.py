"""`MemoryStore`: limits inside one process, exact under threads.

States are Python values, never serialized. The table is compiled if possible (see `accel`) and
interpreted otherwise, with the same behaviour.

Expiry is driven by access, so a store that is not used keeps its keys. A sweeper is a daemon thread
that accesses it from time to time. It refers to the store weakly, and ends with it.

To decide several keys at once, all states are read, the steps decided on them, and the results
written at once, provided that nobody has written in between; otherwise everything is repeated.
Strategies may be user code, during which other threads can run, so the check is part of the table's
`commit`, which runs no user code.

A full table may have no room for a key. Then the limit denies the request and nothing is written;
a shadow is left out instead.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from ..._queueing.fork import ForkAware, watch_forks
from ...core import native
from ...core._clock import Clock, SystemClock, require_clock
from ...core._steps import Step, decide_all, looked_at
from ...core._store import Store, from_its_url
from ...core._transform import READING, Transform
from ...core._validation import (
    LONGEST_KEPT,
    digest_of,
    reject,
    require_choice,
    require_instant,
    require_int,
)
from ._table import Table, require_ttl, wrong_kind

__all__ = ["MemoryStore", "Sweeper"]


class Sweeper:
    """Calls `store.sweep()` every `every_ms` until stopped."""

    def __init__(self, store: MemoryStore, every_ms: int) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=_run,
            args=(weakref.ref(store, self._gone), self._stopped, every_ms / 1000),
            name="penstock-sweeper",
            daemon=True,
        )
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _gone(self, _store: object) -> None:
        self._stopped.set()


def _run(store: weakref.ref[MemoryStore], stopped: threading.Event, every_s: float) -> None:
    while not stopped.wait(every_s):
        alive = store()
        if alive is None:
            return
        alive.sweep()
        del alive


# A key of any length fits, with a state of a few numbers.
_LEAST_BYTES = 4_096

R = TypeVar("R")

Overflow = Literal["evict", "deny"]


class MemoryStore(Store, ForkAware):
    """Keeps states in the memory of this process. Serves sync and async callers; calls never wait.

    `max_keys` bounds the number of keys, and `max_bytes` approximately the memory of keys and
    states. When a bound is reached and no key has expired:

    - `overflow="evict"` evicts keys: first those with plenty left, then those with little left,
      then those that are being denied, and among these the least recently used. An evicted key
      starts afresh, so a caller that can rotate through more keys than fit is no longer limited.
      Monitor `evictions`, and choose bounds well above the number of real clients.
    - `overflow="deny"` denies new keys, and requests for which a state would have to grow, until a
      key expires. No key is evicted, but a flood of invented keys shuts out new clients.
      Monitor `refusals`, and use keys that clients cannot invent.

    `sweep_every_ms` starts a thread that drops expired keys even if there are no calls; without it,
    calls drop them as they go. All limiters of a store have to use the same clock.
    """

    answers_at_once = True

    def __init__(
        self,
        max_keys: int | None = None,
        overflow: Overflow = "evict",
        *,
        max_bytes: int | None = None,
        sweep_every_ms: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        if max_keys is not None:
            require_int("max_keys", max_keys, high=2**31 - 1)
        if max_bytes is not None:
            require_int("max_bytes", max_bytes, low=_LEAST_BYTES)
        self.max_keys = max_keys
        self.max_bytes = max_bytes
        self.overflow: Overflow = require_choice("overflow", overflow, ("evict", "deny"))
        self.clock: Clock = SystemClock() if clock is None else require_clock(clock)
        self._clocks = _ClocksInUse()
        self.table: Any = _make_table(max_keys, max_bytes, overflow == "evict")
        watch_forks(self)
        self._sweeper: Sweeper | None = None
        if sweep_every_ms is not None:
            require_int("sweep_every_ms", sweep_every_ms)
            self._sweeper = Sweeper(self, sweep_every_ms)

    @classmethod
    @from_its_url
    def from_url(cls, url: str, **options: Any) -> MemoryStore:
        """`memory://`, with `?max_keys=`, `?max_bytes=` and `?overflow=` if wanted."""
        from urllib.parse import parse_qsl

        address, _, query = url.partition("://")[2].partition("?")
        if address.strip("/"):
            reject("an in-process store has no address: write memory:// and nothing after it")
        for name, text in parse_qsl(query, keep_blank_values=True):
            if name in ("max_keys", "max_bytes") and text.isdecimal():
                options.setdefault(name, int(text))
            elif name == "overflow":
                options.setdefault(name, text)
            else:
                shown = f"this {name}" if name.isidentifier() else "what it was given"
                known = "?max_keys=<number>&max_bytes=<number>&overflow=evict|deny"
                reject(f"memory:// takes {known}, not {shown}")
        return cls(**options)

    # Properties, so that a limiter which looks them up once is bound to the table itself.
    @property
    def apply(self) -> Callable[..., Any]:
        """See `Store.apply`."""
        bound: Callable[..., Any] = self.table.apply
        return bound

    async def aapply(self, key: str, transform: Transform[R], now: int, cost: int) -> R:
        result: R = self.apply(key, transform, now, cost)
        return result

    def apply_many(
        self, keys: Sequence[str], transform: Transform[R], now: int, cost: int
    ) -> list[R]:
        apply = self.apply
        return [apply(key, transform, now, cost) for key in keys]

    def apply_all(self, steps: Sequence[Step], now: int) -> list[Any]:
        return _apply_all(self.table, steps, now)

    async def aapply_all(self, steps: Sequence[Step], now: int) -> list[Any]:
        return self.apply_all(steps, now)

    def is_atomic(self, lead: str) -> bool:
        return True

    @property
    def native_table(self) -> Any:
        """The table, if it is compiled; None for a subclass, which may have overridden `apply`. A
        subclass that has not may return its table here."""
        compiled = native is not None and isinstance(self.table, native.Table)
        return self.table if compiled and type(self) is MemoryStore else None

    def reset(self, key: str) -> None:
        self.table.discard(key)

    async def areset(self, key: str) -> None:
        self.table.discard(key)

    def require_clock(self, clock: Clock | None) -> None:
        given = SystemClock() if clock is None else require_clock(clock)
        for other in self._clocks.clocks():
            if not _shows_the_same(given, other):
                reject(
                    "limiters that share a MemoryStore need clocks that show the same time, "
                    "because expired keys are dropped by the latest instant that the store has "
                    f"seen: one of them goes by {other!r}, and this one by {given!r}; pass the "
                    "same clock to both, or give each a MemoryStore of its own"
                )
        self._clocks.add(given)
        if self._sweeper is not None and not self._goes_by(clock):
            reject(
                "the store is swept by another clock than this limiter's, and would forget what "
                "still counts: give both the same, MemoryStore(sweep_every_ms=..., clock=clock)"
            )

    def _goes_by(self, clock: Clock | None) -> bool:
        if clock is None or type(clock) is SystemClock:
            return type(self.clock) is SystemClock
        return self.clock is clock

    def sweep(self, now: int | None = None) -> int:
        """Drop every key that has expired at `now`, by default on the store's clock. If the
        limiters have a clock of their own, pass its instant."""
        dropped: int = self.table.sweep(require_instant(self.clock.now() if now is None else now))
        return dropped

    def another(self, *, clock: Clock | None, max_keys: int | None = None) -> MemoryStore:
        """An empty store with the same bounds, except for those that are given."""
        return MemoryStore(
            self.max_keys if max_keys is None else max_keys,
            self.overflow,
            max_bytes=self.max_bytes,
            clock=clock,
        )

    def stats(self) -> dict[str, int]:
        """Statistics: `keys` and `bytes`, including keys that have expired but are not dropped yet,
        `evictions` and `refusals`. Without `max_bytes`, computing `bytes` takes a look at every
        key."""
        table = self.table
        return {
            "keys": table.keys,
            "bytes": table.weight,
            "evictions": table.evictions,
            "refusals": table.refusals,
        }

    @property
    def evictions(self) -> int:
        """How many keys were evicted before they expired."""
        count: int = self.table.evictions
        return count

    @property
    def refusals(self) -> int:
        """How many requests were denied because the store was full."""
        count: int = self.table.refusals
        return count

    def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.stop()
            self._sweeper = None

    async def aclose(self) -> None:
        self.close()

    def _after_fork_in_child(self) -> None:
        """The thread that held the lock may not be in the child."""
        self.table.renew_lock()

    def __len__(self) -> int:
        """How many keys have not expired, at the latest instant seen."""
        return len(self.table)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        size = "" if self.max_bytes is None else f", max_bytes={self.max_bytes}"
        return f"MemoryStore(max_keys={self.max_keys}, overflow={self.overflow!r}{size})"


# Clocks that show the same time of day may differ by this much.
_APART_MS = 60_000


def _shows_the_same(one: Clock, other: Clock) -> bool:
    if one is other or (type(one) is SystemClock and type(other) is SystemClock):
        return True
    return abs(require_instant(one.now()) - require_instant(other.now())) <= _APART_MS


class _ClocksInUse:
    """The clocks of the limiters on a store, for as long as they are used."""

    def __init__(self) -> None:
        self._clocks: list[Callable[[], Clock | None]] = []

    def add(self, clock: Clock) -> None:
        if any(
            clock is other or type(other) is type(clock) is SystemClock for other in self.clocks()
        ):
            return
        try:
            self._clocks.append(weakref.ref(clock))
        except TypeError:
            # The system clock, or a user's that has slots.
            self._clocks.append(lambda: clock)

    def clocks(self) -> list[Clock]:
        held = [(clock, refer) for refer in self._clocks if (clock := refer()) is not None]
        self._clocks = [refer for _, refer in held]
        return [clock for clock, _ in held]


def _make_table(max_keys: int | None, max_bytes: int | None, evict: bool) -> Any:
    if native is None:
        return Table(max_keys, max_bytes, evict)
    bounds = [-1 if bound is None else bound for bound in (max_keys, max_bytes)]
    return native.Table(*bounds, evict, LONGEST_KEPT, digest_of, wrong_kind, require_ttl)


def _apply_all(table: Any, steps: Sequence[Step], now: int) -> list[Any]:
    """The results, in the order of the steps."""
    steps = looked_at(steps)
    if len(steps) == 1:
        ((key, transform, cost, shadow),) = steps
        if shadow or not transform.denial_writes:
            return [table.apply(key, transform, now, cost)]
    without: set[str] = set()
    while True:
        held: dict[str, Any] = {}
        for step in steps:
            if step.key not in held:
                held[step.key] = table.read(step.key, step.transform, now)
        results, writes = decide_all(steps, *_readers(held))
        _refuse_looks(table, steps, held, results)
        made = []
        for key, (transform, outcome) in writes.items():
            if key in without:
                continue
            before, at, until, mark = held[key]
            expires = at + table.require_ttl(transform, outcome.ttl_ms)
            decision = transform.decision_in(outcome.result)
            made.append((key, transform, outcome.state, expires, mark, before, until, decision))
        done = table.commit(made)
        if done is None:
            continue
        if done is not True:
            key = made[done][0]
            without.add(key)
            if any(step.key == key and not step.shadow for step in steps):
                _refuse(table, steps, held, results, without)
                return results
            continue
        _refuse(table, steps, held, results, without)
        return results


def _readers(
    held: dict[str, Any],
) -> tuple[Callable[[str, Any], Any], Callable[[str], int]]:
    """The state of a key, and the instant to decide it at."""
    return lambda key, _transform: held[key][0], lambda key: held[key][1]


def _refuse(
    table: Any, steps: Sequence[Step], held: dict[str, Any], results: list[Any], keys: set[str]
) -> None:
    """The results for keys that there is no room for."""
    for place, step in enumerate(steps):
        if step.key in keys and step.transform.role not in READING:
            results[place] = step.transform.refuse(held[step.key][1], table.due_in())


def _refuse_looks(
    table: Any, steps: Sequence[Step], held: dict[str, Any], results: list[Any]
) -> None:
    """A look at a key that there is no room for is refused, as a check of it would be."""
    for place, (key, transform, cost, _) in enumerate(steps):
        state, at, *_ = held[key]
        if state is not None or transform.role not in READING or not table.is_shut(key):
            continue
        if transform.needs_room(at, cost):
            results[place] = transform.refuse(at, table.due_in())
