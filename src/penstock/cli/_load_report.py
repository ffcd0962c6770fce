"""What came back: counts, and latencies in buckets that grow by one percent each.

Buckets keep the memory the same however long it runs; a quantile is right to within half of one.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

__all__ = ["LoadReport"]

_STEP = math.log(1.01)
_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}


class LoadReport:
    """Filled in while it runs."""

    def __init__(self) -> None:
        self.seconds: float = 0.0
        self.allowed: int = 0
        self.denied: int = 0
        self.troubles: Counter[str] = Counter()
        self._buckets: Counter[int] = Counter()
        self._longest_s = 0.0

    @property
    def answered(self) -> int:
        """Requests that got a decision."""
        return self.allowed + self.denied

    @property
    def rate(self) -> float:
        return self.answered / self.seconds if self.seconds else 0.0

    def decided(self, allowed: bool, latency_s: float) -> None:
        """One request was answered with a decision."""
        if allowed:
            self.allowed += 1
        else:
            self.denied += 1
        self._buckets[int(math.log(max(latency_s, 1e-6) * 1e6) / _STEP)] += 1
        self._longest_s = max(self._longest_s, latency_s)

    def failed(self, why: str) -> None:
        """One request was not."""
        self.troubles[why] += 1

    def quantile_s(self, share: float) -> float:
        """The latency that `share` of the requests did not exceed."""
        wanted, seen = share * self.answered, 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                return min(math.exp((bucket + 0.5) * _STEP) / 1e6, self._longest_s)
        return self._longest_s

    def line(self) -> str:
        """One line, for while it runs."""
        p50, p99 = _shown(self.quantile_s(0.5)), _shown(self.quantile_s(0.99))
        return (
            f"{self.seconds:5.1f} s {self.rate:9,.0f}/s  allowed {self.allowed:,}  denied "
            f"{self.denied:,}  failed {self.troubles.total():,}  p50 {p50}  p99 {p99}"
        )

    def table(self, title: str) -> str:
        """All of it, for a reader."""
        latencies = {name: self.quantile_s(share) for name, share in _SHARES.items()}
        latencies["max"] = self._longest_s
        rows = [
            f"{self.seconds:.1f} s, {title}",
            "",
            f"  answered {self.answered:14,}{self.rate:14,.0f}/s",
            f"  allowed  {self.allowed:14,}",
            f"  denied   {self.denied:14,}",
            f"  failed   {self.troubles.total():14,}",
            *(f"    {count:,} x {why}" for why, count in self.troubles.most_common(5)),
            "",
            "  latency" + "".join(f"{name:>10}" for name in latencies),
            "         " + "".join(f"{_shown(seconds):>10}" for seconds in latencies.values()),
        ]
        return "\n".join(rows)

    def as_dict(self) -> dict[str, Any]:
        """All of it, for a program."""
        return {
            "seconds": round(self.seconds, 3),
            "answered": self.answered,
            "rate_per_s": round(self.rate, 1),
            "allowed": self.allowed,
            "denied": self.denied,
            "failed": dict(self.troubles),
            "latency_ms": {
                **{name: round(self.quantile_s(share) * 1e3, 3) for name, share in _SHARES.items()},
                "max": round(self._longest_s * 1e3, 3),
            },
        }


def _shown(seconds: float) -> str:
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
