"""Ceilings inferred from latency by one of two laws, and the pools of slots under them.

A law is a pure function of the limit and a sample. The gradient law compares the round trip of a
request with that of an idle system:

    gradient = clamp(tolerance * rtt_noload / rtt, 0.5, 1)
    limit'   = limit * gradient + sqrt(limit)

and moves the limit by the fraction `smoothing` of the way to limit'. While round trips stay within
`tolerance` of the idle one, the limit grows by sqrt(limit), the room for a short queue; as they get
longer, it shrinks in proportion, at most by half. rtt_noload is the minimum of the last `samples`
round trips, so it adapts when the backend changes for good. But if there is no quiet moment among
so many requests, the idle round trip is forgotten and the limit creeps up: choose `samples` large
enough to include one, and `max_limit` as what must never be exceeded.

The AIMD law, known from TCP, adds `increase` after a round trip within `timeout_ms`, and multiplies
by `backoff` after a longer one.

With both laws, a dropped request (one that timed out, or whose holder died) multiplies the limit by
`backoff`. The limit grows only while at least half of it is in use: otherwise a short round trip
does not show that more would be possible. It stays between `min_limit` and `max_limit`; equal
values fix it.

Round trips are whole milliseconds, at least 1. `tolerance` is 2 by default, so that the step from 1
to 2 ms is not taken for a queue.

The store knows who holds slots. `SlotPools` keeps what is known in this process: the ceilings, how
many slots of each pool were held when it was last read, and when to read it again, because a lease
may have expired by then. At most `max_keys` pools are kept; those in use are never dropped.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import isfinite, sqrt
from typing import Any, Protocol, runtime_checkable

from ..core._validation import MAX_SPAN_MS, reject, require_int
from ..strategies._slots import MAX_SLOTS

__all__ = [
    "Aimd",
    "Ceiling",
    "Gradient",
    "Law",
    "SlidingMinimum",
    "SlotPool",
    "SlotPools",
]


MAX_LIMIT = MAX_SLOTS
MAX_SAMPLES = 100_000
_START = 20


@runtime_checkable
class Law(Protocol):
    """How a ceiling moves with samples. Limits are real numbers here; the number of slots is their
    floor."""

    @property
    def min_limit(self) -> int:
        """The lowest that the ceiling may become."""
        ...

    @property
    def max_limit(self) -> int:
        """The highest that the ceiling may become."""
        ...

    @property
    def initial_limit(self) -> int | None:
        """Where the ceiling starts; None leaves that to the limiter."""
        ...

    @property
    def samples(self) -> int:
        """The number of round trips of which the shortest counts as that of an idle system."""
        ...

    def sampled(self, limit: float, rtt_ms: int, rtt_noload_ms: int, pressed: bool) -> float:
        """The limit after a request that took `rtt_ms`. `pressed` says that at least half of the
        limit was in use."""
        ...

    def dropped(self, limit: float) -> float:
        """The limit after a dropped request."""
        ...


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient law: the ceiling shrinks as requests take longer than in an idle system.

    It stays between `min_limit` and `max_limit` and starts at `initial_limit`. It shrinks when a
    round trip is more than `tolerance` times the shortest of the last `samples`. `smoothing` is the
    fraction of the way that one sample moves it; a dropped request multiplies it by `backoff`.
    """

    min_limit: int = 1
    max_limit: int = 1_000
    initial_limit: int | None = None
    tolerance: float = 2.0
    smoothing: float = 0.2
    samples: int = 5_000
    backoff: float = 0.9

    def __post_init__(self) -> None:
        _require_bounds(self.min_limit, self.max_limit, self.initial_limit)
        _require_number("tolerance", self.tolerance, 1.0, 1_000.0)
        _require_number("smoothing", self.smoothing, 0.001, 1.0)
        _require_number("backoff", self.backoff, 0.1, 1.0)
        require_int("samples", self.samples, high=MAX_SAMPLES)

    def sampled(self, limit: float, rtt_ms: int, rtt_noload_ms: int, pressed: bool) -> float:
        """The ceiling after a request that took `rtt_ms`."""
        gradient = max(0.5, min(1.0, self.tolerance * rtt_noload_ms / rtt_ms))
        target = limit * gradient + sqrt(limit)
        if target > limit and not pressed:
            return limit
        return _clamp(self, limit + self.smoothing * (target - limit))

    def dropped(self, limit: float) -> float:
        """The ceiling after a request that was lost."""
        return _clamp(self, limit * self.backoff)


@dataclass(frozen=True, slots=True)
class Aimd:
    """Additive increase, multiplicative decrease.

    The ceiling stays between `min_limit` and `max_limit` and starts at `initial_limit`. It grows by
    `increase` after a round trip within `timeout_ms`, and is multiplied by `backoff` after a longer
    one or a dropped request.
    """

    min_limit: int = 1
    max_limit: int = 1_000
    initial_limit: int | None = None
    timeout_ms: int = 1_000
    increase: int = 1
    backoff: float = 0.9

    def __post_init__(self) -> None:
        _require_bounds(self.min_limit, self.max_limit, self.initial_limit)
        require_int("timeout_ms", self.timeout_ms, high=MAX_SPAN_MS)
        require_int("increase", self.increase, high=MAX_LIMIT)
        _require_number("backoff", self.backoff, 0.1, 1.0)

    @property
    def samples(self) -> int:
        """1: this law does not use the round trip of an idle system."""
        return 1

    def sampled(self, limit: float, rtt_ms: int, _rtt_noload_ms: int, pressed: bool) -> float:
        """The ceiling after a request that took `rtt_ms`."""
        if rtt_ms > self.timeout_ms:
            return self.dropped(limit)
        return _clamp(self, limit + self.increase) if pressed else limit

    def dropped(self, limit: float) -> float:
        """The ceiling after a request that was lost."""
        return _clamp(self, limit * self.backoff)


class SlidingMinimum:
    """The minimum of the last `size` values, in amortized constant time.

    Keeps only values that may still become the minimum: an ascending sequence.
    """

    __slots__ = ("_rising", "_seen", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._seen = 0
        self._rising: deque[tuple[int, int]] = deque()

    def add(self, value: int) -> int:
        """Add a value. Returns the minimum."""
        while self._rising and self._rising[-1][1] >= value:
            self._rising.pop()
        self._rising.append((self._seen, value))
        self._seen += 1
        if self._rising[0][0] <= self._seen - 1 - self._size:
            self._rising.popleft()
        return self._rising[0][1]


class Ceiling:
    """The limit of a pool, moved by a law. Laws themselves have no state."""

    __slots__ = ("_exact", "_law", "_noload", "limit")

    def __init__(self, law: Law) -> None:
        self._law = law
        first = law.initial_limit
        self._exact = float(
            min(max(_START, law.min_limit), law.max_limit) if first is None else first
        )
        self._noload = SlidingMinimum(law.samples)
        self.limit: int = int(self._exact)

    def sample(self, rtt_ms: int, in_flight: int) -> None:
        """Record a request that took `rtt_ms`, with `in_flight` requests in flight."""
        rtt_ms = max(1, rtt_ms)
        noload = self._noload.add(rtt_ms)
        self._exact = self._law.sampled(self._exact, rtt_ms, noload, 2 * in_flight >= self.limit)
        self.limit = int(self._exact)

    def drop(self) -> None:
        """Record a dropped request."""
        self._exact = self._law.dropped(self._exact)
        self.limit = int(self._exact)


def _clamp(law: Law, limit: float) -> float:
    return max(float(law.min_limit), min(float(law.max_limit), limit))


def _require_bounds(low: Any, high: Any, first: Any) -> None:
    require_int("min_limit", low, high=MAX_LIMIT)
    require_int("max_limit", high, high=MAX_LIMIT)
    if low > high:
        reject(f"min_limit must be at most max_limit, {high}, not {low}")
    if first is not None:
        require_int("initial_limit", first, low=low, high=high)


def _require_number(name: str, value: Any, low: float, high: float) -> None:
    sound = type(value) in (int, float) and isfinite(value)
    if not sound or not low <= value <= high:
        reject(f"{name} must be a number from {low} to {high}, not {value!r}")


# How many stale deadlines may pile up before they are removed.
_SPARE = 64


class SlotPool:
    """What this process knows of the slots under one ceiling."""

    __slots__ = ("ceiling", "due", "in_flight", "name", "rtt_ms")

    def __init__(self, name: str, law: Law) -> None:
        self.name: str = name
        self.ceiling: Ceiling = Ceiling(law)
        self.in_flight: int = 0
        self.rtt_ms: int | None = None
        # When the first lease may expire; None if no slot is known to be held.
        self.due: int | None = None


class SlotPools:
    """The pools of one limiter, by name. Not safe by itself to share between threads."""

    def __init__(self, law: Law, max_keys: int) -> None:
        self._law = law
        self._max_keys = max_keys
        self._busy: dict[str, SlotPool] = {}
        self._idle: OrderedDict[str, SlotPool] = OrderedDict()
        # A heap of (when, pool) to read pools again; some entries are stale.
        self._due: list[tuple[int, str]] = []

    @property
    def limit(self) -> int:
        """The highest ceiling of all pools; that of a new pool if there are none."""
        pools = (*self._busy.values(), *self._idle.values())
        return max((pool.ceiling.limit for pool in pools), default=Ceiling(self._law).limit)

    @property
    def in_flight(self) -> int:
        """How many slots were held when the pools were last read."""
        return sum(pool.in_flight for pool in self._busy.values())

    def busy(self) -> list[str]:
        """The names of the pools in use."""
        return list(self._busy)

    def get(self, name: str) -> SlotPool | None:
        """A pool, made on first use; None if `max_keys` other pools are in use."""
        pool = self._busy.get(name) or self._idle.get(name)
        if pool is None:
            if len(self._busy) >= self._max_keys:
                return None
            if len(self._busy) + len(self._idle) >= self._max_keys:
                self._idle.popitem(last=False)
            pool = self._idle[name] = SlotPool(name, self._law)
        return pool

    def saw(self, pool: SlotPool, in_flight: int) -> None:
        """Record how many slots of the pool are held."""
        pool.in_flight = in_flight
        if in_flight:
            self._idle.pop(pool.name, None)
            self._busy[pool.name] = pool
        else:
            self._busy.pop(pool.name, None)
            self._idle[pool.name] = pool

    def expect(self, pool: SlotPool, deadline: int) -> None:
        """Read the pool again at `deadline`, when a lease may have expired."""
        if pool.due is not None and pool.due <= deadline:
            return
        pool.due = deadline
        heappush(self._due, (deadline, pool.name))
        if len(self._due) > 2 * (len(self._busy) + len(self._idle)) + _SPARE:
            every = (*self._busy.values(), *self._idle.values())
            self._due = [(pool.due, pool.name) for pool in every if pool.due is not None]
            heapify(self._due)

    def is_due(self, now: int) -> bool:
        """Whether a lease may have expired."""
        return bool(self._due) and self._due[0][0] <= now

    def overdue(self, now: int, again_at: int) -> list[str]:
        """The pools to read now. They are due again at `again_at`, in case that fails."""
        names = set()
        while self.is_due(now):
            _, name = heappop(self._due)
            pool = self._busy.get(name) or self._idle.get(name)
            if pool is not None and pool.due is not None and pool.due <= now:
                pool.due = None
                self.expect(pool, again_at)
                names.add(name)
        return list(names)
