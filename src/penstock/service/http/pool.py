"""Counts of several workers as one.

A scrape reaches whichever worker the system picks. So each worker leaves its counts in a folder
that they share, once a second, and whoever is asked adds up what lies there. A worker that was
replaced starts from zero, which is what a counter's reader expects of a restart.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["Pool"]


class Pool:
    """`member` is this worker's name in the folder."""

    def __init__(self, folder: str, member: str) -> None:
        self._folder = Path(folder)
        self._own = self._folder / f"{member}.counts"

    def publish(self, text: str) -> None:
        """Leave this worker's counts for the others."""
        # Whole or not at all: a reader never sees half of it.
        fresh = self._own.with_suffix(".new")
        with contextlib.suppress(OSError):
            fresh.write_text(text)
            os.replace(fresh, self._own)

    def total(self, text: str) -> str:
        """This worker's counts and those of the others, added up."""
        texts = [text]
        for path in sorted(self._folder.glob("*.counts")):
            if path != self._own:
                with contextlib.suppress(OSError):
                    texts.append(path.read_text())
        return added(texts)


def added(texts: list[str]) -> str:
    """One exposition from several: equal samples are summed, descriptions stay where they were."""
    totals: dict[str, int | float] = {}
    lines: dict[str, None] = {}
    for line in (line for text in texts for line in text.splitlines()):
        sample, _, value = line.rpartition(" ")
        if line.startswith("#"):
            lines[line] = None
        else:
            number = int(value) if value.isdecimal() else float(value)
            totals[sample] = totals.get(sample, 0) + number
            lines[sample] = None
    return "\n".join(_grouped(list(lines), totals)) + "\n"


def _grouped(lines: list[str], totals: dict[str, int | float]) -> list[str]:
    """Samples under the description of their family, also those that only another worker has."""
    families: dict[str, list[str]] = {}
    for line in lines:
        if line.startswith("#"):
            families.setdefault(line.split(" ", 3)[2], []).append(line)
    for sample in totals:
        name = sample.partition("{")[0]
        stems = [name, *(name.removesuffix(end) for end in ("_bucket", "_sum", "_count"))]
        family = next(stem for stem in stems if stem in families)
        families[family].append(f"{sample} {totals[sample]!r}")
    return [line for family in families.values() for line in family]
