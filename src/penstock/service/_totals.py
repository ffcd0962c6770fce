"""The metrics of all workers of a service, added up by their supervisor.

Each worker reports its metrics once a second, and before they are shown. A scrape may reach any
worker, which answers with what the supervisor has received from all. So a counter never decreases:
what was shown has been reported, and what was reported is kept when the worker dies. A worker that
is killed takes with it only what it counted since its last report, which nobody has seen.

Gauges, such as open connections, are the sums of the workers that are running.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Iterator
from dataclasses import dataclass, field

from ._channel import Counted
from ._inline import INLINE
from ._metrics import REMOVED, Tally, folding, policy_in
from .http._pages import SHARED_GAUGES, policy_lines

__all__ = ["Totals", "added", "counters_of"]


@dataclass(slots=True)
class _WorkerTotals:
    policies: dict[str, tuple[int, ...]] = field(default_factory=dict)
    text: str = ""


class Totals:
    """The sums over all workers."""

    def __init__(self) -> None:
        self._workers: dict[Hashable, _WorkerTotals] = {}
        self._gone: dict[str, Tally] = {}
        self._gone_text = ""

    def take(self, worker: Hashable, counted: Counted) -> None:
        known = self._workers.setdefault(worker, _WorkerTotals())
        known.text = counted.text
        for name, counts in counted.policies.items():
            if counts is None:
                known.policies.pop(name, None)
            else:
                known.policies[name] = counts

    def retire(self, worker: Hashable, served: Container[str]) -> None:
        """Record that a worker is gone: its counters are kept, its gauges are not. `served` are the
        policies that the other workers serve."""
        known = self._workers.pop(worker, _WorkerTotals())
        for name, counts in known.policies.items():
            # Moved to the end: the oldest are folded first.
            tally = self._gone.pop(name, None) or Tally()
            tally.add(counts)
            self._gone[name] = tally
        self._gone_text = added([self._gone_text, counters_of(known.text)])
        kept = (REMOVED, INLINE)
        gone = (name for name in self._gone if policy_in(name) not in served and name not in kept)
        for _ in folding(self._gone, dict.fromkeys(gone)):
            pass

    def text(self) -> str:
        """The sums, as on `/metrics`."""
        texts = [self._gone_text, *(worker.text for worker in self._workers.values())]
        return "\n".join([*policy_lines(self._policies()), added(texts)])

    def _policies(self) -> dict[str, tuple[int, ...]]:
        sums: dict[str, Tally] = {}
        gone = {name: tally.counts() for name, tally in self._gone.items()}
        for counted in (*(worker.policies for worker in self._workers.values()), gone):
            for name, counts in counted.items():
                sums.setdefault(name, Tally()).add(counts)
        return {name: tally.counts() for name, tally in sums.items()}


def added(texts: Iterable[str]) -> str:
    """Merge several expositions: equal samples are summed; of a gauge that all workers share, the
    largest value is taken. Descriptions are kept."""
    totals: dict[str, int | float] = {}
    families: dict[str, list[str]] = {}
    for family, line in (line for text in texts for line in _lines(text)):
        lines = families.setdefault(family, [])
        sample, _, value = line.rpartition(" ")
        if line.startswith("#"):
            if line not in lines:
                lines.append(line)
            continue
        if sample not in totals:
            totals[sample] = 0
            lines.append(sample)
        number = int(value) if value.isdecimal() else float(value)
        if family in SHARED_GAUGES:
            totals[sample] = max(totals[sample], number)
        else:
            totals[sample] += number
    merged = (
        line if line.startswith("#") else f"{line} {totals[line]!r}"
        for lines in families.values()
        for line in lines
    )
    return "".join(f"{line}\n" for line in merged)


def counters_of(text: str) -> str:
    """The part of an exposition without gauges."""
    kinds = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE "))
    growing = (line for family, line in _lines(text) if kinds.get(family) != "gauge")
    return "".join(f"{line}\n" for line in growing)


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """Each line with its metric family, which is described before its samples."""
    family = ""
    for line in text.splitlines():
        if line.startswith("#"):
            family = line.split(" ", 3)[2]
        yield family, line
