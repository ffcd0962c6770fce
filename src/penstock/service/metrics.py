"""What a service counts about itself: totals per policy and outcome, never a key.

A service belongs to one event loop, and so do its counters: an increment is a plain addition.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

__all__ = [
    "BUCKETS_S",
    "Histogram",
    "HistogramSnapshot",
    "Metrics",
    "MetricsSnapshot",
    "Replies",
    "Tally",
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
        "store_errors",
    )

    def __init__(self) -> None:
        self.allowed: int = 0
        self.denied: int = 0
        self.store_errors: int = 0
        self.failed_open: int = 0
        self.failed_closed: int = 0
        self.failed_error: int = 0

    def count(self, allowed: bool) -> None:
        if allowed:
            self.allowed += 1
        else:
            self.denied += 1

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}


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
    """The registry. A policy keeps its counts over reloads, for as long as it has its name."""

    def __init__(self) -> None:
        self._tallies: dict[str, Tally] = {}
        self._latency: dict[str, Histogram] = {}
        self.reloads: dict[str, int] = {"ok": 0, "failed": 0}
        self.grpc: Replies = Replies()

    def tally(self, policy: str) -> Tally:
        """The counts of a policy, made on first use."""
        return self._tallies.setdefault(policy, Tally())

    def keep(self, policies: set[str]) -> None:
        """Forget policies that are no more, so that reloads without end do not add up."""
        for gone in self._tallies.keys() - policies:
            del self._tallies[gone]

    def latency(self, door: str) -> Histogram:
        """The histogram of a door; keep it and call `observe`."""
        return self._latency.setdefault(door, Histogram())

    def snapshot(
        self, slots: dict[str, dict[str, int]] | None = None, inline_policies: int = 0
    ) -> MetricsSnapshot:
        return MetricsSnapshot(
            policies={name: tally.as_dict() for name, tally in self._tallies.items()},
            slots=slots or {},
            latency={door: histogram.snapshot() for door, histogram in self._latency.items()},
            reloads=dict(self.reloads),
            inline_policies=inline_policies,
            grpc_codes=dict(self.grpc.codes),
            grpc_shed=self.grpc.shed,
        )
