"""What a service counts about itself: totals per policy and outcome, never a key.

A service belongs to one event loop, and so do its counters: an increment is a plain addition.

Counters never go back. What a policy has counted stays when it leaves the policy file, and goes on
when it comes back. Files that change their names without end must not add up, though: of policies
that are gone the last MAX_GONE are told apart, and those before them are counted together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from operator import attrgetter

__all__ = [
    "BUCKETS_S",
    "MAX_GONE",
    "REMOVED",
    "Histogram",
    "HistogramSnapshot",
    "Metrics",
    "MetricsSnapshot",
    "Replies",
    "Tally",
    "folding",
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
        "store_errors",
    )

    def __init__(self) -> None:
        self.allowed = 0
        self.denied = 0
        self.store_errors = 0
        self.failed_open = 0
        self.failed_closed = 0
        self.failed_error = 0
        self.reclaimed = 0

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

MAX_GONE = 1_000
REMOVED = "(removed)"
"""Not the name of any policy."""


def folding(tallies: dict[str, Tally], gone: dict[str, None]) -> Iterator[None]:
    """Of the policies that are gone, in the order in which they went, count all but the last
    MAX_GONE together. In small steps, after each of which every count is in one place."""
    for name in list(gone):
        if not any(tallies[name].counts()):
            del tallies[name], gone[name]
        yield
    for name in list(gone)[:-MAX_GONE]:
        del gone[name]
        tallies.setdefault(REMOVED, Tally()).add(tallies.pop(name).counts())
        yield


@dataclass(slots=True)
class Replies:
    """What the gRPC door has answered: by the name of the status, and how many calls it turned
    away because there were too many."""

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


class Histogram:
    """Durations by bucket."""

    __slots__ = ("_counts", "_sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS_S) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(BUCKETS_S, seconds)] += 1
        self._sum_s += seconds

    def snapshot(self) -> HistogramSnapshot:
        return HistogramSnapshot(BUCKETS_S, tuple(self._counts), self._sum_s)


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """Everything counted, at one moment.

    `policies`: policy to the fields of its Tally. `slots`: policy to `limit`, `in_flight` and
    `reclaimed`, for those with a concurrency axis. `latency`: what a door called it, such as
    "http" or "grpc", to its histogram. `reloads`: "ok" and "failed" to a count. `grpc_codes`: the
    name of a status to a count.
    """

    policies: dict[str, dict[str, int]] = field(default_factory=dict)
    slots: dict[str, dict[str, int]] = field(default_factory=dict)
    latency: dict[str, HistogramSnapshot] = field(default_factory=dict)
    reloads: dict[str, int] = field(default_factory=dict)
    inline_policies: int = 0
    grpc_codes: dict[str, int] = field(default_factory=dict)
    grpc_shed: int = 0


class Metrics:
    """The registry. A policy keeps its counts over reloads."""

    def __init__(self) -> None:
        self._tallies: dict[str, Tally] = {}
        self._gone: dict[str, None] = {}
        self._latency: dict[str, Histogram] = {}
        self.reloads = {"ok": 0, "failed": 0}
        self.grpc = Replies()

    def tally(self, policy: str) -> Tally:
        """The counts of a policy, made on first use."""
        return self._tallies.setdefault(policy, Tally())

    @property
    def policy_count(self) -> int:
        """Of how many policies there are counts."""
        return len(self._tallies)

    def keeping(self, policies: Container[str]) -> Iterator[None]:
        """These are served now, and the others are gone. In small steps."""
        for name in list(self._tallies):
            if name in policies:
                self._gone.pop(name, None)
            elif name != REMOVED:
                self._gone.setdefault(name)
            yield
        yield from folding(self._tallies, self._gone)

    def changes(
        self, told: dict[str, tuple[int, ...]]
    ) -> Iterator[tuple[str, tuple[int, ...] | None]]:
        """The counts that differ from those in `told`, which is brought up to date; None for a
        policy that is counted no more by itself. As of now, in small steps."""
        return _differing(self.counted(), told)

    def counted(self) -> dict[str, tuple[int, ...]]:
        """The counts of each policy, all at one moment: what moves from a policy that is gone to
        REMOVED is in one of the two."""
        return {name: tally.counts() for name, tally in self._tallies.items()}

    def latency(self, door: str) -> Histogram:
        """The histogram of a door; keep it and call `observe`."""
        return self._latency.setdefault(door, Histogram())

    def snapshot(
        self,
        slots: dict[str, dict[str, int]] | None = None,
        inline_policies: int = 0,
        policies: bool = True,
    ) -> MetricsSnapshot:
        return MetricsSnapshot(
            policies={name: tally.as_dict() for name, tally in self._tallies.items()}
            if policies
            else {},
            slots=slots or {},
            latency={door: histogram.snapshot() for door, histogram in self._latency.items()},
            reloads=dict(self.reloads),
            inline_policies=inline_policies,
            grpc_codes=dict(self.grpc.codes),
            grpc_shed=self.grpc.shed,
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
