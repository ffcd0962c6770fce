"""How a ceiling follows the latency, by one of two laws, each a pure function of the limit and a
sample; and what one process knows of the pools that it takes slots from.

The gradient law compares a request's round trip with that of an idle system:

    gradient = clamp(tolerance * rtt_noload / rtt, 0.5, 1)
    limit'   = limit * gradient + sqrt(limit)

and moves a fraction, `smoothing`, of the way from limit to limit'. While round trips stay within
`tolerance` of the idle one the limit grows by the room for a short queue, sqrt(limit); as they
stretch it shrinks in proportion, by half at most. rtt_noload is the least of the last `samples`
round trips, so it is found anew when the backend changes for good. It also means that a backend
without one quiet moment in so many requests forgets what idle was, and the limit creeps up: choose
`samples` to span a lull, and `max_limit` as what must never be exceeded.

The AIMD law, of TCP's fame, adds `increase` after a round trip within `timeout_ms` and multiplies
by `backoff` after a longer one. It needs a notion of "too long", and nothing else.

In both a drop (a request that timed out, a holder that died) contracts the limit by `backoff`, and
the limit grows only while it is pressed: when less than half of it is in use, a short round trip
says nothing about whether more would do. It stays between `min_limit` and `max_limit`; equal values
pin it.

Time is in whole milliseconds, and a round trip counts as one at least: shorter ones are not told
apart. `tolerance` is 2 by default so that the step from 1 to 2 ms is not taken for a queue.

Who holds slots is known to the store. `SlotPools` has the ceilings, which are learned from what
comes back to this process; how many slots were held when a pool was last looked at; and from when
on it is worth looking again, because somebody may not have given a slot back. At most `max_keys`
pools are remembered. Those that are in use are not forgotten.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import isfinite, sqrt
from typing import Any, Protocol

from ..core._validation import MAX_SPAN_MS, reject, require_int

__all__ = [
    "Aimd",
    "Ceiling",
    "Gradient",
    "Law",
    "SlidingMinimum",
    "SlotPool",
    "SlotPools",
]


MAX_LIMIT = 1_000_000
MAX_SAMPLES = 100_000
_START = 20


class Law(Protocol):
    """What moves a ceiling. Limits are real numbers here; slots are counted by their floor."""

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
        """Of how many round trips the shortest is taken for that of an idle system."""
        ...

    def sampled(self, limit: float, rtt_ms: int, rtt_noload_ms: int, pressed: bool) -> float:
        """The limit after a request that took `rtt_ms`."""
        ...

    def dropped(self, limit: float) -> float:
        """The limit after a request that was lost."""
        ...


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient law: the ceiling follows how much longer than idle requests take.

    It stays between `min_limit` and `max_limit` and starts at `initial_limit`. A round trip may be
    `tolerance` times the shortest of the last `samples` before the ceiling shrinks; `smoothing` is
    the share of the way that one sample moves it, and `backoff` what a dropped request multiplies
    it by.
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
        """1: this law does not ask what idle was."""
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
    """The least of the last `size` values, in amortized constant time.

    Kept are only values that may still become the least: each one larger than those before it.
    """

    __slots__ = ("_rising", "_seen", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._seen = 0
        self._rising: deque[tuple[int, int]] = deque()

    def add(self, value: int) -> int:
        """Take a value in; returns the least."""
        while self._rising and self._rising[-1][1] >= value:
            self._rising.pop()
        self._rising.append((self._seen, value))
        self._seen += 1
        if self._rising[0][0] <= self._seen - 1 - self._size:
            self._rising.popleft()
        return self._rising[0][1]


class Ceiling:
    """A limit under a law: the only state that the laws have."""

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
        """A request came back after `rtt_ms`, one of `in_flight`."""
        rtt_ms = max(1, rtt_ms)
        noload = self._noload.add(rtt_ms)
        self._exact = self._law.sampled(self._exact, rtt_ms, noload, 2 * in_flight >= self.limit)
        self.limit = int(self._exact)

    def drop(self) -> None:
        """A request was lost."""
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
