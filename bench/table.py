"""The results as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .memory import BARE_DICT, MemoryRow
from .results import Results
from .rounds import Row
from .scenarios import SCENARIOS

__all__ = ["render"]

_ANSWERS = {
    "decision": "limit, remaining, reset, retry",
    "bool": "yes or no",
    "nothing": "nothing; it waits",
}


def render(results: Results) -> str:
    """Everything that was measured, the promises last."""
    return "\n".join(_lines(results))


def _lines(results: Results) -> Iterator[str]:
    for name, rows in results.ratios.items():
        scenario = SCENARIOS[name]
        yield from _block(
            f"{scenario.title} [{name}], as a multiple of {scenario.baseline}",
            ("", "ratio", "ns/call", "baseline ns", ""),
            [_ratio_cells(row) for row in sorted(rows, key=lambda row: row.ratio or 0)],
        )
    if results.memory:
        yield from _block(
            f"Memory with {results.memory_keys:,} keys of 16 characters [memory]",
            ("", "bytes/key", "left after expiry"),
            [_memory_cells(row) for row in results.memory],
        )
    if results.curve:
        yield from _block(
            "Cost per check by number of keys, and its growth from the fewest [curve]",
            ("", "keys", "ratio", "ns/call", "growth", "dict.get ns", "growth"),
            list(_curve_cells(results.curve)),
        )
    yield from _promises(results)


def _ratio_cells(row: Row) -> tuple[str, ...]:
    if row.ratio is None:
        return row.contender, "-", "-", "-", row.note
    answer = _ANSWERS[row.answer]
    return row.contender, f"{row.ratio:.1f}", f"{row.call_ns:.0f}", f"{row.base_ns:.0f}", answer


def _memory_cells(row: MemoryRow) -> tuple[str, ...]:
    if row.bytes_per_key is None:
        return row.contender, "-", row.note
    left = "-" if row.contender == BARE_DICT or row.left is None else f"{row.left:.1%}"
    return row.contender, f"{row.bytes_per_key:.0f}", left


def _curve_cells(curve: dict[int, list[Row]]) -> Iterator[tuple[str, ...]]:
    first = {row.contender: row for row in curve[min(curve)]}
    for contender, start in first.items():
        for size, rows in sorted(curve.items()):
            row = next(row for row in rows if row.contender == contender)
            if row.ratio is None or not (row.call_ns and row.base_ns):
                continue
            assert start.call_ns is not None
            assert start.base_ns is not None
            yield (
                contender,
                f"{size:,}",
                f"{row.ratio:.1f}",
                f"{row.call_ns:.0f}",
                f"x {row.call_ns / start.call_ns:.1f}",
                f"{row.base_ns:.0f}",
                f"x {row.base_ns / start.base_ns:.1f}",
            )


def _promises(results: Results) -> Iterator[str]:
    cells = [
        (
            verdict.promise,
            f"{'<' if verdict.strict else '<='} {verdict.bound:g}",
            f"{verdict.measured:.1f}",
            verdict.unit,
            "kept" if verdict.kept else "MISSED",
        )
        for verdict in results.verdicts()
    ]
    if cells:
        yield from _block("Promises", ("", "bound", "measured", "", ""), cells)


def _block(title: str, head: Sequence[str], cells: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    yield ""
    yield title
    for line in (head, *cells):
        aligned = [
            cell.rjust(width) if line is head or _reads_right(cell) else cell.ljust(width)
            for cell, width in zip(line, widths, strict=True)
        ]
        yield ("  " + "  ".join(aligned)).rstrip()


def _reads_right(cell: str) -> bool:
    """Numbers, with or without a sign before or after them."""
    digits = cell.lstrip("x<= ").rstrip("%").replace(",", "").replace(".", "")
    return cell == "-" or digits.isdigit()
