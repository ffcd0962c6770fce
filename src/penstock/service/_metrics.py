"""The metrics of a service: totals per policy and outcome, never by key.

A service belongs to one event loop, and so do its counters: an increment is a plain addition.

Counters never decrease. The counts of a policy that is removed from the policy file are kept, and
continue if it comes back. So that removed policies cannot pile up without bound, the last MAX_GONE
of them are counted separately, and all earlier ones together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from ..core import native
from ..core._clock import FOREIGN_CLOCKS
from ..core._store import COUNTED, Store

__all__ = [
    "BUCKETS_S",
    "MAX_GONE",
    "REMOVED",
    "GrpcReplies",
    "Histogram",
    "HistogramSnapshot",
    "Metrics",
    "MetricsSnapshot",
    "Tally",
    "folding",
    "policy_in",
    "tally_name",
]


BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
"""The upper bounds of the latency buckets, in seconds; one more catches the rest."""


class Tally:
    """The counts of one policy."""

    __slots__ = (
        "allowed",
        "denied",
        "failed_closed",
        "failed_error",
        "failed_open",
        "reclaimed",
        "store_away",
        "store_full",
    )

    def __init__(self) -> None:
        self.allowed: int = 0
        self.denied: int = 0
        # Calls that failed because the store was full, and for other reasons.
        self.store_away: int = 0
        self.store_full: int = 0
        self.failed_open: int = 0
        self.failed_closed: int = 0
        self.failed_error: int = 0
        self.reclaimed: int = 0

    def count(self, allowed: bool) -> None:
        if allowed:
            self.allowed += 1
        else:
            self.denied += 1

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}

    def counts(self) -> tuple[int, ...]:
        """All of them, in the order of `__slots__`."""
        return _counts_of(self)

    def add(self, counts: tuple[int, ...]) -> None:
        for name, count in zip(self.__slots__, counts, strict=True):
            setattr(self, name, getattr(self, name) + count)


_counts_of = attrgetter(*Tally.__slots__)


def tally_name(policy: str, limit: str, shadow: bool) -> str:
    """The name under which one of several limits of a policy is counted. Names of policies contain
    no slash."""
    return f"{policy}/{limit}/shadow" if shadow else f"{policy}/{limit}"


def policy_in(name: str) -> str:
    """The policy that a count belongs to."""
    return name.partition("/")[0]


MAX_GONE = 1_000
REMOVED = "(removed)"
"""Not the name of any policy."""


def folding(tallies: dict[str, Tally], gone: dict[str, None]) -> Iterator[None]:
    """Count all removed policies but the last MAX_GONE together. In small steps, after each of
    which every count is in exactly one place."""
    for name in list(gone):
        if not any(tallies[name].counts()):
            del tallies[name], gone[name]
        yield
    for name in list(gone)[:-MAX_GONE]:
        del gone[name]
        tallies.setdefault(REMOVED, Tally()).add(tallies.pop(name).counts())
        yield


@dataclass(slots=True)
class GrpcReplies:
    """The replies of the gRPC server by the name of the status, and how many calls it shed because
    there were too many."""

    codes: Counter[str] = field(default_factory=Counter)
    shed: int = 0


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """`counts[i]` observations were at most `bounds_s[i]` and above the bound before it; the last
    count has no bound. Not cumulative."""

    bounds_s: tuple[float, ...]
    counts: tuple[int, ...]
    sum_s: float

    @property
    def count(self) -> int:
        return sum(self.counts)


class Durations:
    """Counts of durations by their upper bounds, in seconds. Has a compiled twin."""

    __slots__ = ("_bounds_s", "_counts", "sum_s")

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self._bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self.sum_s: float = 0.0

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(self._counts)

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds_s, seconds)] += 1
        self.sum_s += seconds


class Histogram:
    """Durations by bucket. Compiled servers count into `durations` by themselves."""

    __slots__ = ("durations", "observe")

    def __init__(self) -> None:
        make = Durations if native is None else native.Durations
        self.durations: Any = make(BUCKETS_S)
        self.observe: Callable[[float], None] = self.durations.observe

    def snapshot(self) -> HistogramSnapshot:
        return HistogramSnapshot(BUCKETS_S, self.durations.counts, self.durations.sum_s)


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """All metrics at one moment.

    `policies` maps a policy, or the `tally_name` of one of its limits, to the fields of its Tally.
    `slots` maps a policy with a concurrency axis to `limit`, `in_flight` and `reclaimed`. `latency`
    maps a server, such as "http" or "grpc", to its histogram. `reloads` counts "ok" and "failed".
    `grpc_codes` maps the name of a status to a count. `stores` maps a kind of store in this process
    to the sum of their statistics. `foreign_clocks` is how often a clock ahead of the deciding one
    was detected (`core/_clock.py`). `degraded` maps a policy that has answered by its fail mode to
    that mode, and to whether it did so a moment ago.
    """

    policies: dict[str, dict[str, int]] = field(default_factory=dict)
    slots: dict[str, dict[str, int]] = field(default_factory=dict)
    latency: dict[str, HistogramSnapshot] = field(default_factory=dict)
    reloads: dict[str, int] = field(default_factory=dict)
    inline_policies: int = 0
    stores: dict[str, Mapping[str, int]] = field(default_factory=dict)
    grpc_codes: dict[str, int] = field(default_factory=dict)
    grpc_shed: int = 0
    foreign_clocks: int = 0
    degraded: dict[str, tuple[str, bool]] = field(default_factory=dict)


class _Stores:
    """The statistics of stores in this process, by kind. The counters of a store that is no longer
    passed in are kept."""

    def __init__(self) -> None:
        self._last: dict[Store, tuple[str, Mapping[str, int]]] = {}
        self._gone: dict[str, Counter[str]] = {}

    def told(self, stores: Iterable[tuple[str, Store]]) -> dict[str, Mapping[str, int]]:
        now = {store: (kind, stats) for kind, store in stores if (stats := store.stats())}
        for store in self._last.keys() - now.keys():
            kind, stats = self._last[store]
            counted = {name: count for name, count in stats.items() if name in COUNTED}
            self._gone.setdefault(kind, Counter()).update(counted)
        self._last = now
        sums = {kind: Counter(counted) for kind, counted in self._gone.items()}
        for kind, stats in now.values():
            sums.setdefault(kind, Counter()).update(stats)
        return dict(sums)


class Metrics:
    """All metrics of a service. A policy keeps its counts over reloads."""

    def __init__(self) -> None:
        self._tallies: dict[str, Tally] = {}
        self._gone: dict[str, None] = {}
        self._latency: dict[str, Histogram] = {}
        self._stores = _Stores()
        self.reloads: dict[str, int] = {"ok": 0, "failed": 0}
        self.grpc: GrpcReplies = GrpcReplies()

    def tally(self, policy: str) -> Tally:
        """The counts of a policy, or of one of its limits, made on first use."""
        return self._tallies.setdefault(policy, Tally())

    @property
    def policy_count(self) -> int:
        """How many policies and limits have counts."""
        return len(self._tallies)

    def keeping(self, policies: Container[str]) -> Iterator[None]:
        """Record that these policies are served now, and no others. In small steps."""
        for name in list(self._tallies):
            if policy_in(name) in policies:
                self._gone.pop(name, None)
            elif name != REMOVED:
                self._gone.setdefault(name)
            yield
        yield from folding(self._tallies, self._gone)

    def changes(
        self, told: dict[str, tuple[int, ...]]
    ) -> Iterator[tuple[str, tuple[int, ...] | None]]:
        """The counts that differ from those in `told`, which is updated; None for a policy that is
        no longer counted separately. As of now, in small steps."""
        return _differing(self.counted(), told)

    def counted(self) -> dict[str, tuple[int, ...]]:
        """The counts of each policy, all at one moment, so that the counts of a removed policy are
        either under its name or under REMOVED."""
        return {name: tally.counts() for name, tally in self._tallies.items()}

    def latency(self, server: str) -> Histogram:
        """The histogram of a server; keep it and call `observe`."""
        return self._latency.setdefault(server, Histogram())

    def snapshot(
        self,
        slots: dict[str, dict[str, int]] | None = None,
        inline_policies: int = 0,
        policies: bool = True,
        stores: Iterable[tuple[str, Store]] = (),
        degraded: dict[str, tuple[str, bool]] | None = None,
    ) -> MetricsSnapshot:
        return MetricsSnapshot(
            policies={name: tally.as_dict() for name, tally in self._tallies.items()}
            if policies
            else {},
            slots=slots or {},
            latency={server: histogram.snapshot() for server, histogram in self._latency.items()},
            reloads=dict(self.reloads),
            inline_policies=inline_policies,
            stores=self._stores.told(stores),
            grpc_codes=dict(self.grpc.codes),
            grpc_shed=self.grpc.shed,
            foreign_clocks=FOREIGN_CLOCKS.met,
            degraded=degraded or {},
        )


def _differing(
    counted: dict[str, tuple[int, ...]], told: dict[str, tuple[int, ...]]
) -> Iterator[tuple[str, tuple[int, ...] | None]]:
    for name, counts in counted.items():
        if told.get(name) != counts:
            told[name] = counts
            yield name, counts
    for name in told.keys() - counted.keys():
        del told[name]
        yield name, None
