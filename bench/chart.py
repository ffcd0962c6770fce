"""The chart of the README: what one check costs, and what one key weighs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .contenders import CONTENDERS
from .look import PALETTES, Palette, new_figure, save, strip_frame
from .memory import BARE_DICT
from .results import RESULTS, Results
from .rounds import Row
from .scenarios import INTERPRETED, NATIVE

__all__ = ["PICTURES", "draw_charts"]

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"


@dataclass(frozen=True)
class _Bar:
    label: str
    value: float
    text: str


def draw_charts(results: Results, directory: Path = PICTURES) -> list[Path]:
    """The chart in each palette."""
    return [_draw(results, directory, palette) for palette in PALETTES]


def _draw(results: Results, directory: Path, palette: Palette) -> Path:
    figure = new_figure(12.4, 8.3, palette)
    grid = figure.add_gridspec(
        2, 2, left=0.17, right=0.975, top=0.80, bottom=0.105, wspace=0.5, hspace=0.36
    )
    panels = (
        ("One hot key, allowed", "times a dict.get", _ratios(results, "hot-allowed")),
        ("100,000 keys", "times a dict.get on the same keys", _ratios(results, "keys-100k")),
        ("One hot key, awaited", "times an empty await", _ratios(results, "async")),
        ("One key of a million", "bytes resident, key included", _bytes(results)),
    )
    for position, (title, unit, bars) in enumerate(panels):
        axes = figure.add_subplot(grid[position // 2, position % 2])
        _panel(axes, title, unit, bars, palette)
    python = results.environment["python"].rpartition(".")[0]
    figure.text(0.02, 0.945, "What a check costs", fontsize=21, fontweight="bold")
    figure.text(
        0.02,
        0.905,
        f"{python}, medians of interleaved rounds. Shorter is better; time is on a log scale.",
        fontsize=11,
        color=palette.faint,
    )
    _legend(figure, palette)
    return save(figure, directory, "bench", palette)


def _ratios(results: Results, name: str) -> list[_Bar]:
    def text(row: Row, ratio: float) -> str:
        return f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0f}"

    rows = [(row, row.ratio) for row in results.ratios.get(name, []) if row.ratio is not None]
    bars = [_Bar(row.contender, ratio, text(row, ratio)) for row, ratio in rows]
    return sorted(bars, key=lambda bar: bar.value)


def _bytes(results: Results) -> list[_Bar]:
    bars = [
        _Bar(row.contender, row.bytes_per_key, f"{row.bytes_per_key:.0f}")
        for row in results.memory
        if row.bytes_per_key is not None
    ]
    return sorted(bars, key=lambda bar: bar.value)


def _panel(axes: Any, title: str, unit: str, bars: Sequence[_Bar], palette: Palette) -> None:
    strip_frame(axes)
    axes.set_title(title, loc="left", fontsize=13, fontweight="bold", pad=22)
    axes.text(0, 1.035, unit, transform=axes.transAxes, fontsize=9.5, color=palette.faint)
    if not bars:
        axes.set_axis_off()
        return
    logarithmic = "times" in unit
    positions = range(len(bars))
    values = [bar.value for bar in bars]
    axes.barh(positions, values, height=0.66, color=[_colour(bar, palette) for bar in bars])
    axes.set_yticks(positions, [bar.label for bar in bars])
    axes.invert_yaxis()
    if logarithmic:
        axes.set_xscale("log")
        axes.set_xlim(1, max(values) * 1.9)
        ticks = [tick for tick in (1, 2, 5, 10, 20, 50, 100, 200, 500) if tick < max(values) * 1.3]
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
    else:
        axes.set_xlim(0, max(values) * 1.12)
    axes.grid(axis="x", color=palette.line, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", labelsize=8.5)
    for position, bar in zip(positions, bars, strict=True):
        ours = bar.label in (NATIVE, INTERPRETED)
        axes.annotate(
            bar.text,
            (bar.value, position),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=10,
            fontweight="bold" if ours else "normal",
            color=palette.ink if ours else palette.faint,
        )
    for label in axes.get_yticklabels():
        if label.get_text() == NATIVE:
            label.set_fontweight("bold")


def _colour(bar: _Bar, palette: Palette) -> str:
    if bar.label == BARE_DICT:
        return palette.line
    if bar.label in (NATIVE, INTERPRETED):
        return palette.ours if bar.label == NATIVE else palette.ours_soft
    return palette.peer if CONTENDERS[bar.label].answer == "decision" else palette.peer_soft


def _legend(figure: Any, palette: Palette) -> None:
    entries = (
        (0.02, palette.ours, "Penstock, returns a full decision"),
        (0.275, palette.ours_soft, "Penstock without its native extension"),
        (0.56, palette.peer, "peer, returns a full decision"),
        (0.785, palette.peer_soft, "peer, returns yes or no at most"),
    )
    for x, colour, text in entries:
        figure.text(x, 0.031, "■", color=colour, fontsize=14, va="center")
        figure.text(x + 0.018, 0.03, text, color=palette.faint, fontsize=10, va="center")


if __name__ == "__main__":
    draw_charts(Results.load(RESULTS))
