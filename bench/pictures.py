"""The pictures of docs/strategies.md: `python -m bench.pictures`. The same input, the same bytes.

Each strategy is one strip. The line counts what was admitted in the ten seconds that end there,
against the limit. Under it every request is a tick: admitted ones on the upper rail, denied ones
on the lower.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .chart import PICTURES
from .look import PALETTES, Palette, new_figure, save, strip_frame
from .traffic import LIMIT, REQUESTS, SPAN_MS, STRATEGIES, WINDOW_MS, Replay, replay

__all__ = ["draw_pictures"]

_TOP, _BOTTOM = 2.15 * LIMIT, -0.92 * LIMIT
_UPPER_RAIL, _LOWER_RAIL = (-2, -8), (-10, -16)
_OVERVIEW = [
    "gcra",
    "gcra, burst=5",
    "token_bucket",
    'fixed_window, "epoch"',
    'fixed_window, "first"',
    "sliding_window",
    "sliding_window_log",
]
_REMARKS = (
    (10_700, "across a boundary"),
    (28_000, "2.5 times the rate"),
    (44_850, "a spike"),
    (53_500, "exactly the rate"),
)
_STRIPS = {
    "gcra": ["gcra", "gcra, burst=5"],
    "token-bucket": ["token_bucket"],
    "fixed-window": ['fixed_window, "epoch"', 'fixed_window, "first"'],
    "sliding-window": ["sliding_window", "sliding_window, buckets=1"],
    "sliding-window-log": ["sliding_window_log"],
}


def draw_pictures(directory: Path = PICTURES) -> list[Path]:
    """The overview, and one picture per strategy, in each palette."""
    replays = {name: replay(strategy) for name, strategy in STRATEGIES.items()}
    paths = []
    for palette in PALETTES:
        paths.append(_draw("strategies", _OVERVIEW, replays, directory, palette, True))
        for picture, names in _STRIPS.items():
            paths.append(_draw(picture, names, replays, directory, palette, False))
    return paths


def _draw(
    picture: str,
    names: Sequence[str],
    replays: dict[str, Replay],
    directory: Path,
    palette: Palette,
    overview: bool,
) -> Path:
    head, foot, strip = (1.0 if overview else 0.1), 0.75, 1.45
    rows = len(names) + overview
    height = head + foot + strip * rows
    figure = new_figure(12.4, height, palette)
    grid = figure.add_gridspec(
        rows,
        1,
        left=0.225,
        right=0.955,
        top=1 - (head + 0.1) / height,
        bottom=foot / height,
        hspace=0.2,
    )
    if overview:
        figure.text(
            0.02,
            1 - 0.5 / height,
            "The same minute of traffic, seven ways to limit it",
            fontsize=19,
            fontweight="bold",
        )
        figure.text(
            0.02,
            1 - 0.85 / height,
            f"{LIMIT} requests per {WINDOW_MS // 1000} seconds for one key, "
            f"{len(REQUESTS)} requests in a minute",
            fontsize=11,
            color=palette.faint,
        )
        _strip_of_demand(figure.add_subplot(grid[0, 0]), palette)
    for row, name in enumerate(names):
        axes = figure.add_subplot(grid[row + overview, 0])
        _strip(axes, name, replays[name], palette)
        _time_axis(axes, palette, labelled=row == len(names) - 1)
    _legend(figure, height, palette)
    return save(figure, directory, picture, palette)


def _ticks(axes: Any, offsets: Sequence[int], colour: str, rail: tuple[int, int]) -> None:
    axes.vlines(offsets, rail[1], rail[0], color=colour, linewidth=1.1)


def _strip_of_demand(axes: Any, palette: Palette) -> None:
    _frame(axes, "requests", f"{len(REQUESTS)} arrive", "", palette)
    axes.set_yticks([])
    _ticks(axes, REQUESTS, palette.peer, (_LOWER_RAIL[1], _UPPER_RAIL[0] + LIMIT))
    for at_ms, text in _REMARKS:
        axes.text(at_ms, 0.72, text, transform=axes.get_xaxis_transform(), ha="center", fontsize=9)
    _time_axis(axes, palette, labelled=False)


def _strip(axes: Any, name: str, result: Replay, palette: Palette) -> None:
    most = result.most_trailing
    _frame(axes, name, f"{len(result.admitted)} admitted", f"at most {most} in 10 s", palette)
    _ticks(axes, result.admitted, palette.ours, _UPPER_RAIL)
    _ticks(axes, result.denied, palette.denied, _LOWER_RAIL)
    instants = range(0, SPAN_MS + 1, 10)
    trailing = [result.trailing(at_ms) for at_ms in instants]
    axes.plot(instants, trailing, color=palette.ink, linewidth=1.4, drawstyle="steps-post")
    within = [min(count, LIMIT) for count in trailing]
    axes.fill_between(instants, within, step="post", color=palette.ours, alpha=0.13, linewidth=0)
    axes.fill_between(
        instants,
        trailing,
        LIMIT,
        where=[count > LIMIT for count in trailing],
        step="post",
        color=palette.denied,
        alpha=0.6,
        linewidth=0,
    )
    axes.axhline(LIMIT, color=palette.faint, linewidth=1, linestyle=(0, (4, 3)))


def _frame(axes: Any, name: str, first: str, second: str, palette: Palette) -> None:
    strip_frame(axes)
    axes.set_xlim(0, SPAN_MS)
    axes.set_ylim(_BOTTOM, _TOP)
    axes.set_yticks([0, LIMIT, 2 * LIMIT])
    axes.yaxis.tick_right()
    axes.tick_params(axis="y", labelsize=8, labelcolor=palette.faint)
    axes.grid(axis="x", color=palette.line, linewidth=0.9)
    axes.axhline(0, color=palette.peer_soft, linewidth=0.9)
    axes.set_axisbelow(True)
    for height, text, size, weight, colour in (
        (0.76, name, 11.5, "bold", palette.ink),
        (0.54, first, 9.5, "normal", palette.faint),
        (0.36, second, 9.5, "normal", palette.faint),
    ):
        axes.text(
            -0.28,
            height,
            text,
            transform=axes.transAxes,
            fontsize=size,
            fontweight=weight,
            color=colour,
        )


def _time_axis(axes: Any, palette: Palette, labelled: bool) -> None:
    ticks = range(0, SPAN_MS + 1, WINDOW_MS)
    clock = [f"12:{tick // 60_000:02}:{tick // 1000 % 60:02}" for tick in ticks]
    axes.set_xticks(ticks, clock if labelled else [""] * len(clock))
    axes.tick_params(axis="x", labelsize=9, labelcolor=palette.faint)


def _legend(figure: Any, height: float, palette: Palette) -> None:
    entries = (
        (0.225, "┃", palette.ours, "admitted"),
        (0.325, "┃", palette.denied, "denied"),
        (0.41, "━", palette.ink, f"admitted in the last {WINDOW_MS // 1000} s"),
        (0.59, "╌", palette.faint, "limit"),
        (0.665, "■", palette.denied, "above the limit"),
    )
    y = 0.2 / height
    for x, mark, colour, text in entries:
        figure.text(x, y, mark, color=colour, fontsize=13, va="center", fontweight="bold")
        figure.text(x + 0.021, y, text, color=palette.faint, fontsize=9.5, va="center")


if __name__ == "__main__":
    for path in draw_pictures():
        print(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
