"""The picture of the README of the service on the wire, from what bench.wire_peers measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .chart import PICTURES
from .look import PALETTES, Palette, new_figure, save, strip_frame

__all__ = ["draw_wire"]

_NAMES = {
    "throttlecrab": "throttlecrab (Rust)",
    "throttle-flow": "Throttle-Flow (Go)",
    "envoy-ratelimit": "Envoy's ratelimit (Go)",
}
_LINES = {
    "http": "HTTP, 64 connections",
    "http-heads": "HTTP, every head different",
    "http-paths": "HTTP, every path and head different",
    "grpc-8x8": "gRPC, 8 connections x 8 calls",
    "grpc-64x1": "gRPC, 64 connections x 1 call",
    "http-one": "HTTP, one call at a time",
    "grpc-one": "gRPC, one call at a time",
    "http-redis": "HTTP on Redis, one connection",
    "http-redis-64": "HTTP on Redis, 64 connections",
    "grpc-redis": "gRPC on Redis, 8 connections x 8 calls",
}


@dataclass(frozen=True)
class _Pair:
    """Ours and a peer's, in calls a second."""

    label: str
    peer: str
    ours: float
    theirs: float
    ratio: float


def draw_wire(results: dict[str, Any], directory: Path = PICTURES) -> list[Path]:
    """In each palette. Rows without a peer are left out."""
    pairs = list(filter(None, (_pair(name, results["rows"].get(name)) for name in _LINES)))
    return [_draw(pairs, results, directory, palette) for palette in PALETTES]


def _pair(name: str, row: dict[str, Any] | None) -> _Pair | None:
    if not row:
        return None
    servers = row["servers"]
    ours = next(server for server in servers if server.startswith("penstock"))
    for peer, text in _NAMES.items():
        if peer in servers:
            rates = servers[ours]["rate"], servers[peer]["rate"]
            ratio = row["ratio"][peer]
            # Where times were compared, less was better.
            return _Pair(_LINES[name], text, *rates, 1 / ratio if "one" in name else ratio)
    return None


def _draw(
    pairs: Sequence[_Pair], results: dict[str, Any], directory: Path, palette: Palette
) -> Path:
    notes = _notes(results)
    foot = 0.95 + 0.24 * len(notes)
    height = 1.3 + foot + 0.62 * len(pairs)
    figure = new_figure(12.4, height, palette)
    axes = figure.add_axes((0.275, foot / height, 0.60, 1 - (1.3 + foot) / height))
    _bars(axes, pairs, palette)
    figure.text(0.02, 1 - 0.5 / height, "On the wire", fontsize=21, fontweight="bold")
    figure.text(
        0.02,
        1 - 0.85 / height,
        "Checks a second of one process on one core, the load on the other. In bold, how many "
        "times the peer's: the median over rounds.",
        fontsize=11,
        color=palette.faint,
    )
    for line, text in enumerate(reversed(notes)):
        at = (0.58 + 0.24 * line) / height
        figure.text(0.02, at, text, fontsize=9.5, color=palette.faint, va="center")
    _legend(figure, 0.26 / height, palette)
    return save(figure, directory, "wire", palette)


def _notes(results: dict[str, Any]) -> list[str]:
    """What is not a rate."""
    rows, notes = results["rows"], []
    tails = {"HTTP": rows.get("http-tail"), "gRPC": rows.get("grpc-8x8-tail")}
    for protocol, row in tails.items():
        if row:
            told = [
                f"{name.replace('-at-', ' at ').replace('our-rate', 'our rate')} "
                f"{one['p99_over_p50']:.1f}"
                for name, one in row["servers"].items()
            ]
            notes.append(f"p99 / p50 at half of the peak, {protocol}: {', '.join(told)}")
    if idle := rows.get("idle"):
        first, second = (idle[key] / 1024 for key in ("http1", "http2"))
        notes.append(f"Memory per idle connection: HTTP/1.1 {first:.1f} KB, HTTP/2 {second:.1f} KB")
    environment = results["environment"]
    notes.append(
        f"{environment['python']}, {environment['machine']}, a load of {environment['load']}"
    )
    return notes


def _bars(axes: Any, pairs: Sequence[_Pair], palette: Palette) -> None:
    strip_frame(axes)
    most = max(max(pair.ours, pair.theirs) for pair in pairs)
    for at, pair in enumerate(pairs):
        for offset, rate, colour in (
            (-0.2, pair.ours, palette.ours),
            (0.2, pair.theirs, palette.peer),
        ):
            axes.barh(at + offset, rate, height=0.36, color=colour)
            text = f"{rate:,.0f}" + (f"  {pair.peer}" if offset > 0 else "")
            axes.annotate(
                text,
                (rate, at + offset),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=8.5,
                color=palette.faint,
            )
        axes.text(
            1.14,
            at,
            f"{pair.ratio:.2f} x",
            transform=axes.get_yaxis_transform(),
            ha="right",
            va="center",
            fontsize=13,
            fontweight="bold",
        )
    axes.set_yticks(range(len(pairs)), [pair.label for pair in pairs])
    axes.invert_yaxis()
    axes.set_xlim(0, most * 1.12)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.tick_params(axis="x", labelsize=8.5)
    axes.grid(axis="x", color=palette.line, linewidth=0.8)
    axes.set_axisbelow(True)


def _legend(figure: Any, at: float, palette: Palette) -> None:
    for x, colour, text in ((0.02, palette.ours, "Penstock"), (0.13, palette.peer, "the peer")):
        figure.text(x, at, "■", color=colour, fontsize=14, va="center")
        figure.text(x + 0.018, at, text, color=palette.faint, fontsize=10, va="center")
