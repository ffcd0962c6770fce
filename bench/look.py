"""How every picture of this project looks: one light and one dark palette, one typeface.

matplotlib is imported by name, here only, so that nothing else needs it to be type-checked or run.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["DARK", "LIGHT", "PALETTES", "Palette", "new_figure", "save", "strip_frame"]


@dataclass(frozen=True)
class Palette:
    """Colours by what they are for. `suffix` goes into the file's name."""

    suffix: str
    paper: str
    ink: str
    faint: str
    line: str
    ours: str
    ours_soft: str
    peer: str
    peer_soft: str
    denied: str


LIGHT = Palette(
    suffix="",
    paper="#ffffff",
    ink="#1c2733",
    faint="#66788a",
    line="#e3e9ef",
    ours="#0b8f83",
    ours_soft="#8fd0c8",
    peer="#7d8fa3",
    peer_soft="#c3cedb",
    denied="#e2705d",
)
DARK = Palette(
    suffix="-dark",
    paper="#0d1117",
    ink="#e8eef4",
    faint="#8b9bab",
    line="#222c37",
    ours="#2cc4b2",
    ours_soft="#1d6f69",
    peer="#8296ab",
    peer_soft="#44525f",
    denied="#ef7e6a",
)
PALETTES = (LIGHT, DARK)


def new_figure(width: float, height: float, palette: Palette) -> Any:
    """An empty figure in inches, drawn without a display."""
    matplotlib = import_module("matplotlib")
    matplotlib.use("Agg")
    matplotlib.rcParams.update(
        {
            "font.family": "DejaVu Sans",
            "font.size": 10,
            "text.color": palette.ink,
            "axes.labelcolor": palette.faint,
            "axes.edgecolor": palette.line,
            "axes.facecolor": palette.paper,
            "xtick.color": palette.faint,
            "ytick.color": palette.ink,
            "svg.hashsalt": "penstock",
        }
    )
    figure_type = import_module("matplotlib.figure").Figure
    return figure_type(figsize=(width, height), dpi=160, facecolor=palette.paper)


def strip_frame(axes: Any) -> None:
    """No box and no tick marks: the grid and the labels carry it."""
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)


def save(figure: Any, directory: Path, name: str, palette: Palette) -> Path:
    """A PNG without anything in it that changes from run to run."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}{palette.suffix}.png"
    figure.savefig(path, facecolor=palette.paper, metadata={"Software": None})
    return path
