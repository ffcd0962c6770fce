"""What all workers of a service have counted, kept by their supervisor.

Each worker tells what it has counted, once a second and before it is shown; a scrape reaches any
of them, and is answered with what the supervisor has heard from all. So a counter never goes back:
what was shown has been told, and what was told stays when the worker dies, however that happens.
One that is killed takes with it what it counted since it last told, which nobody had been shown.

Gauges, such as open connections, are of the workers that are there.

Messages between a supervisor and a worker.

One pair of sockets per worker, with a message in either direction whenever there is something to
say: pickled, after its length. Neither side ever waits for the other. What the other has not taken
yet is kept until it does, so one that is stopped stops nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import socket
from collections.abc import Container, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ._inline import INLINE
from ._metrics import REMOVED, Tally, folding, policy_in
from .http._pages import policy_lines

__all__ = ["Channel", "Counted", "Totals", "added", "counters_of"]


_LENGTH_BYTES = 8


class Channel:
    """One end, to be used on one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Channel:
        return cls(*await asyncio.open_unix_connection(sock=end))

    def send(self, message: object) -> None:
        """Say something. If the other side is gone, nothing happens."""
        self.send_packed(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def send_packed(self, packed: bytes) -> None:
        """The same for a message that was pickled before, to be said to many."""
        if not self._writer.is_closing():
            self._writer.write(len(packed).to_bytes(_LENGTH_BYTES, "big") + packed)

    @property
    def untaken_bytes(self) -> int:
        """How much of what was said the other side has not taken yet."""
        return self._writer.transport.get_write_buffer_size()

    async def receive(self) -> Any:
        """The next message. Raises EOFError when the other side is gone."""
        try:
            length = await self._reader.readexactly(_LENGTH_BYTES)
            packed = await self._reader.readexactly(int.from_bytes(length, "big"))
        except (asyncio.IncompleteReadError, OSError):
            raise EOFError from None
        return pickle.loads(packed)

    def close(self) -> None:
        """The other side is told, by the end of what it receives."""
        self._writer.close()

    async def aclose(self) -> None:
        """The same, once what was said is taken."""
        self.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


@dataclass(frozen=True, slots=True)
class Counted:
    """What a worker tells: the policies whose counts have changed, None for those that it counts
    no more by themselves, and everything else, as `/metrics` shows it."""

    policies: dict[str, tuple[int, ...] | None]
    text: str


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
        """It is gone. Its counters stay, its gauges do not; `served` are the policies that the
        others go on with."""
        known = self._workers.pop(worker, _WorkerTotals())
        for name, counts in known.policies.items():
            # The last to be named are the last to be forgotten.
            tally = self._gone.pop(name, None) or Tally()
            tally.add(counts)
            self._gone[name] = tally
        self._gone_text = added([self._gone_text, counters_of(known.text)])
        kept = (REMOVED, INLINE)
        gone = (name for name in self._gone if policy_in(name) not in served and name not in kept)
        for _ in folding(self._gone, dict.fromkeys(gone)):
            pass

    def text(self) -> str:
        """As `/metrics` shows it."""
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
    """One exposition from several: equal samples are summed, descriptions stay where they were."""
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
        totals[sample] += int(value) if value.isdecimal() else float(value)
    merged = (
        line if line.startswith("#") else f"{line} {totals[line]!r}"
        for lines in families.values()
        for line in lines
    )
    return "".join(f"{line}\n" for line in merged)


def counters_of(text: str) -> str:
    """Those parts of an exposition that only ever grow."""
    kinds = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE "))
    growing = (line for family, line in _lines(text) if kinds.get(family) != "gauge")
    return "".join(f"{line}\n" for line in growing)


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """Each line with the family that it belongs to, which is described before its samples."""
    family = ""
    for line in text.splitlines():
        if line.startswith("#"):
            family = line.split(" ", 3)[2]
        yield family, line
