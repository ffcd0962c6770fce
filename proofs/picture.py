"""The picture of docs/leases.md: what happens at a window's end, and what was found exhaustively.

On the left, three nodes of the library itself, on a clock moved by hand: each leases a batch just
before the window ends, and then all are asked for more than there is. On the right, the most that
any reachable state admitted, for each number of nodes, with every admitted count that occurs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.look import PALETTES, Palette, new_figure, save, strip_frame
from penstock import ManualClock, MemoryStore, fixed_window
from penstock.leasing import two_tier

from .explore import Explored
from .leases import MAIN

__all__ = ["draw"]

_NODES = 3
_WINDOW_MS = 1_000
_LIMIT, _BATCH = MAIN.limit, MAIN.batch
_BOUND = _LIMIT + _NODES * (_BATCH - 1)
# Each node is asked once at the end of the first window, then again and again in the second.
_REQUESTS = [(880 + 40 * node, node) for node in range(_NODES)] + [
    (1_030 + 27 * turn, turn % _NODES) for turn in range(30)
]
_END_MS = 2_000
# The rails of the nodes, below the count.
_FIRST_RAIL, _RAIL_STEP = -3.4, 2.7


@dataclass(frozen=True)
class Event:
    at_ms: int
    node: int
    allowed: bool
    carried: bool


def draw(results: Sequence[Explored], directory: Path) -> list[Path]:
    return [_draw(results, directory, palette) for palette in PALETTES]


def _events(coupled: bool) -> list[Event]:
    """The same requests to three nodes of one store."""
    clock, store = ManualClock(0), MemoryStore()
    strategy = fixed_window(_LIMIT, _WINDOW_MS)
    nodes = [
        two_tier(strategy, store, batch=_BATCH, window_coupled=coupled, clock=clock)
        for _ in range(_NODES)
    ]
    events = []
    for at_ms, node in _REQUESTS:
        clock.set(at_ms)
        decision = nodes[node].check("key")
        carried = decision.allowed and decision.reset_at <= at_ms
        events.append(Event(at_ms, node, decision.allowed, carried))
    return events


def _draw(results: Sequence[Explored], directory: Path, palette: Palette) -> Path:
    figure = new_figure(12.4, 6.6, palette)
    _headline(figure, palette)
    grid = figure.add_gridspec(
        2, 2, width_ratios=(2.05, 1), left=0.2, right=0.975, top=0.81, bottom=0.135,
        hspace=0.24, wspace=0.17,
    )  # fmt: skip
    rows = (
        (False, "carried over", "what nodes hold at the end", "adds to the next window"),
        (True, "window-coupled", "what nodes hold at the end", "is void"),
    )
    for row, (coupled, *words) in enumerate(rows):
        axes = figure.add_subplot(grid[row, 0])
        _strip(axes, _events(coupled), palette)
        _words(axes, words, palette)
        _time_axis(axes, palette, labelled=row == 1)
    _bounds(figure.add_subplot(grid[:, 1]), results, palette)
    _legend(figure, palette)
    return save(figure, directory, "leases", palette)


def _headline(figure: Any, palette: Palette) -> None:
    figure.text(0.02, 0.925, "Leased credits at the end of a window", fontsize=19, weight="bold")
    text = (
        f"{_NODES} nodes lease {_BATCH} credits each just before the window ends, then all are "
        f"asked for more than the limit of {_LIMIT}"
    )
    figure.text(0.02, 0.878, text, fontsize=11, color=palette.faint)


def _strip(axes: Any, events: Sequence[Event], palette: Palette) -> None:
    strip_frame(axes)
    axes.set_xlim(780, _END_MS - 60)
    axes.set_ylim(_rail(_NODES), _BOUND + 5)
    axes.set_yticks([0, _LIMIT])
    axes.tick_params(axis="y", labelsize=9, labelcolor=palette.faint)
    axes.axvline(_WINDOW_MS, color=palette.peer, linewidth=1.2)
    axes.axhline(0, color=palette.peer_soft, linewidth=0.9)
    axes.axhline(_LIMIT, color=palette.faint, linewidth=1, linestyle=(0, (4, 3)))
    for first, last in ((780, _WINDOW_MS), (_WINDOW_MS, _END_MS - 60)):
        _count(axes, [e for e in events if first <= e.at_ms < last], first, last, palette)
    for event in events:
        colour = palette.denied if event.carried else palette.ours
        y = _rail(event.node)
        if event.allowed:
            axes.vlines(event.at_ms, y - 0.85, y + 0.85, color=colour, linewidth=2.6)
        else:
            axes.plot(event.at_ms, y, "|", color=palette.peer_soft, markersize=5)
    for node in range(_NODES):
        y = _rail(node)
        axes.text(772, y, f"node {node + 1}", ha="right", va="center", fontsize=8.5,
                  color=palette.faint)  # fmt: skip


def _rail(node: int) -> float:
    return _FIRST_RAIL - _RAIL_STEP * node


def _count(axes: Any, events: Sequence[Event], first: int, last: int, palette: Palette) -> None:
    """What the window has admitted so far."""
    instants, counts = [first], [0]
    for event in events:
        if event.allowed:
            instants.append(event.at_ms)
            counts.append(counts[-1] + 1)
    instants.append(last)
    counts.append(counts[-1])
    options = {"step": "post", "linewidth": 0}
    within = [min(count, _LIMIT) for count in counts]
    axes.fill_between(instants, within, color=palette.ours, alpha=0.15, **options)
    above = [max(count, _LIMIT) for count in counts]
    axes.fill_between(instants, above, _LIMIT, color=palette.denied, alpha=0.65, **options)
    axes.plot(instants, counts, color=palette.ink, linewidth=1.6, drawstyle="steps-post")
    if counts[-1]:
        axes.annotate(
            f"{counts[-1]}", (last, counts[-1]), xytext=(-4, 4), textcoords="offset points",
            ha="right", fontsize=12, weight="bold",
        )  # fmt: skip


def _words(axes: Any, words: Sequence[str], palette: Palette) -> None:
    for line, text in enumerate(words):
        bold = line == 0
        axes.text(
            -0.372, 0.72 - 0.1 * line - 0.02 * (line > 0), text, transform=axes.transAxes,
            fontsize=12 if bold else 9, weight="bold" if bold else "normal",
            color=palette.ink if bold else palette.faint,
        )  # fmt: skip


def _time_axis(axes: Any, palette: Palette, labelled: bool) -> None:
    ticks = (800, 1_000, 1_200, 1_400, 1_600, 1_800)
    axes.set_xticks(ticks, [f"{tick} ms" if labelled else "" for tick in ticks])
    axes.tick_params(axis="x", labelsize=9, labelcolor=palette.faint)
    if not labelled:
        axes.text(_WINDOW_MS, 1.02, "the window ends", transform=axes.get_xaxis_transform(),
                  ha="center", fontsize=9, color=palette.faint)  # fmt: skip


def _bounds(axes: Any, results: Sequence[Explored], palette: Palette) -> None:
    """For each number of nodes, every count that a window can reach."""
    strip_frame(axes)
    main = [r for r in results if (r.rules.limit, r.rules.batch) == (_LIMIT, _BATCH)]
    sides = {
        False: (palette.denied, -0.13),
        True: (palette.ours, 0.13),
    }
    for result in main:
        colour, shift = sides[result.rules.coupled]
        x = result.rules.nodes + shift
        for count in result.histogram:
            top = count == result.most
            axes.scatter(x, count, s=46 if top else 13, color=colour,
                         alpha=1.0 if top else 0.45, linewidth=0, zorder=3)  # fmt: skip
        if not result.rules.coupled:
            axes.text(x, result.most + 0.75, str(result.most), ha="center", fontsize=10.5,
                      weight="bold", color=palette.ink)  # fmt: skip
    axes.axhline(_LIMIT, color=palette.faint, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_xlim(0.45, 4.6)
    axes.set_ylim(-1, _LIMIT + 4 * (_BATCH - 1) + 2.4)
    axes.set_yticks([0, _LIMIT])
    axes.set_xticks([1, 2, 3, 4], ["1 node", "2", "3", "4 nodes"])
    axes.tick_params(labelsize=9, labelcolor=palette.faint)
    states = sum(result.states for result in main)
    axes.text(0, 1.072, "Every state that can be reached", transform=axes.transAxes,
              fontsize=12, weight="bold")  # fmt: skip
    axes.text(0, 1.027, f"what a window admits, in {states:,} states",
              transform=axes.transAxes, fontsize=9, color=palette.faint)  # fmt: skip


def _legend(figure: Any, palette: Palette) -> None:
    entries = (
        (0.2, "┃", palette.ours, "admitted"),
        (0.29, "┃", palette.denied, "admitted by credits from before"),
        (0.505, "|", palette.peer_soft, "denied"),
        (0.575, "╌", palette.faint, "limit"),
        (0.727, "●", palette.denied, "carried over"),
        (0.825, "●", palette.ours, "window-coupled"),
    )
    for x, mark, colour, text in entries:
        figure.text(x, 0.045, mark, color=colour, fontsize=13, va="center", weight="bold")
        figure.text(x + 0.017, 0.045, text, color=palette.faint, fontsize=9.5, va="center")
