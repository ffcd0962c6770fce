"""`python -m bench.wire_peers`: the service on the wire, beside services in Rust and Go.

Each server is alone on the first core, the load (wire_load.c) on the second, with the store, where
there is one. Contenders take turns in short rounds and a figure is the median of its ratio to the
peer in the same round. What is compared are rates, beside the server's own processor time per call,
which other programs disturb least; `--undisturbed` puts all of it in front of other programs (as
root), without which a busy machine is what is measured. Peers are built from their registries when
they are first needed, which takes minutes; whoever is missing is left out and named. The floors
answer from C and decide nothing.

Prints a table. `--save` keeps the figures for the picture of the README and draws it, `--picture`
draws it again from what was kept, `--check` ends with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from tools import foreign

from .wire_chart import draw_wire
from .wire_servers import LOAD_CORE, ROOT, Server, open_servers, place

__all__: list[str] = []

RESULTS = Path(__file__).parent / "results" / "wire.json"
_SECONDS = 0.5


@dataclass(frozen=True)
class Row:
    """One line of the table: `ours` against the first of `peers`, by rates, of which ours is to be
    at least `bound` times as high, or by the median time of a call, at most `bound` times as long.
    """

    name: str
    title: str
    kind: str
    shape: str
    bound: float | None
    redis: bool = False
    times: bool = False

    @property
    def ours(self) -> str:
        return "penstock-redis" if self.redis else "penstock"

    @property
    def peers(self) -> tuple[str, ...]:
        protocol = self.kind.partition("-")[0]
        if self.redis:
            return ("throttle-flow" if protocol == "http" else "envoy-ratelimit",)
        return ("throttlecrab", f"floor-{protocol}")

    @property
    def limit(self) -> str:
        return "at_most" if self.times else "at_least"

    def kept(self, measured: float) -> bool:
        assert self.bound is not None
        return measured <= self.bound if self.times else measured >= self.bound


ROWS = [
    Row("http", "HTTP, memory, 64 connections", "http", "64x1", 1.1),
    Row("http-heads", "the same, every head different", "http-heads", "64x1", 1.0),
    Row("http-paths", "and every path", "http-paths", "64x1", 1.0),
    Row("grpc-8x8", "gRPC, memory, 8 connections x 8 calls", "grpc", "8x8", 1.2),
    Row("grpc-64x1", "gRPC, memory, 64 connections x 1 call", "grpc", "64x1", 1.0),
    Row("http-redis", "HTTP, Redis, one connection", "http", "1x1", 1.0, redis=True),
    Row("http-redis-64", "HTTP, Redis, 64 connections", "http", "64x1", None, redis=True),
    Row("grpc-redis", "gRPC, Redis, 8 connections x 8 calls", "grpc", "8x8", 2.0, redis=True),
    Row("http-one", "HTTP, one call at a time, p50", "http", "1x1", 1.1, times=True),
    Row("grpc-one", "gRPC, one call at a time, p50", "grpc", "1x1", 1.1, times=True),
]
# At half of the peak of the row that is named: the 99th percentile over the median.
TAILS = {
    "http": "HTTP, p99 / p50 at half of the peak",
    "grpc-8x8": "gRPC, p99 / p50 at half of the peak",
}
TAIL_AT_MOST = 3.0


@dataclass(frozen=True)
class Round:
    """What one round of one server came to."""

    rate: float
    p50_us: float
    p99_us: float
    cpu_us: float
    busy: float


class Load:
    """Runs the generator, and rests in between: the system stops whoever is in front of all other
    programs for more than 19 parts of 20 of a second."""

    def __init__(self, undisturbed: bool) -> None:
        self._program = foreign.c_program(ROOT / "bench" / "wire_load.c").get()
        self._undisturbed = undisturbed

    def round(
        self, server: Server, row: Row, rate: float = 0.0, seconds: float = _SECONDS
    ) -> Round:
        asked = server.asked[row.kind]
        # A store on the same core has to get at it.
        spin = int(not row.redis)
        shape = [asked.port, asked.protocol, *row.shape.split("x"), seconds, rate, spin]
        words = [os.fsencode(self._program), *(str(word).encode() for word in shape)]
        time.sleep(seconds if self._undisturbed else 0.1)
        before, began = server.cpu_s(), time.perf_counter()
        process = subprocess.Popen(
            [*words, asked.expected],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=lambda: place(os.getpid(), LOAD_CORE, self._undisturbed),
        )
        told, _ = process.communicate(asked.packed, timeout=60)
        elapsed, used = time.perf_counter() - began, server.cpu_s() - before
        if process.returncode:
            raise RuntimeError(f"{server.name} failed under {row.title}")
        found = json.loads(told)
        cpu_us = used / found["calls"] * 1e6
        return Round(found["rate"], found["p50_us"], found["p99_us"], cpu_us, used / elapsed)


def measure(rounds: int, undisturbed: bool, only: list[str] | None = None) -> dict[str, Any]:
    with TemporaryDirectory() as folder, open_servers(Path(folder), undisturbed) as peers:
        load = Load(undisturbed)
        found: dict[str, Any] = {}
        for row in ROWS:
            if only and row.name not in only:
                continue
            names = [row.ours, *(peer for peer in row.peers if peer in peers.servers)]
            servers = [peers.servers[name] for name in names]
            found[row.name] = _row(row, servers, load, rounds)
            print(_line(row.title, found[row.name]), flush=True)
            if row.name in TAILS:
                tails = _tails(row, servers, load, rounds, found[row.name]["servers"])
                found[f"{row.name}-tail"] = tails
                print(_line(TAILS[row.name], tails), flush=True)
        if not only:
            found["idle"] = _idle()
        return {"environment": _environment(), "rows": found, "missing": peers.missing}


def _row(row: Row, servers: list[Server], load: Load, rounds: int) -> dict[str, Any]:
    samples: dict[str, list[Round]] = {server.name: [] for server in servers}
    for number in range(rounds + 1):
        for server in servers if number % 2 else servers[::-1]:
            figures = load.round(server, row)
            # The first round warms all of them up.
            if number:
                samples[server.name].append(figures)
    ours = samples[row.ours]
    measured: dict[str, Any] = {
        "servers": {name: _medians(figures) for name, figures in samples.items()},
        "ratio": {
            name: _ratio(ours, figures, row.times)
            for name, figures in samples.items()
            if name != row.ours
        },
        "cpu_ratio": {
            name: round(median(b.cpu_us / a.cpu_us for a, b in zip(ours, figures, strict=True)), 2)
            for name, figures in samples.items()
            if name != row.ours
        },
    }
    if row.bound is not None and row.peers[0] in measured["ratio"]:
        kept = row.kept(measured["ratio"][row.peers[0]])
        measured["target"] = {row.limit: row.bound, "kept": kept}
    return measured


def _medians(figures: list[Round]) -> dict[str, float]:
    names = ("rate", "p50_us", "p99_us", "cpu_us", "busy")
    return {name: round(median(getattr(figure, name) for figure in figures), 2) for name in names}


def _ratio(ours: list[Round], theirs: list[Round], times: bool) -> float:
    """Of rates, or of times: above 1 is better, or worse."""
    pairs = zip(ours, theirs, strict=True)
    if times:
        return round(median(a.p50_us / b.p50_us for a, b in pairs), 2)
    return round(median(a.rate / b.rate for a, b in pairs), 2)


def _tails(
    row: Row, servers: list[Server], load: Load, rounds: int, peaks: dict[str, Any]
) -> dict[str, Any]:
    """At half of each one's own peak, in turns, in many short spans: a long one tells more about
    what else the machine did. What the floor has at our rate, too, is not the server's."""
    asked = {server.name: (server, peaks[server.name]["rate"] / 2) for server in servers}
    for server in servers:
        if "floor" in server.name:
            asked[f"{server.name}-at-our-rate"] = server, asked[row.ours][1]
    figures: dict[str, list[Round]] = {name: [] for name in asked}
    for _ in range(4 * rounds):
        for name, (server, rate) in asked.items():
            figures[name].append(load.round(server, row, rate, _SECONDS / 4))
    told: dict[str, Any] = {
        "servers": {
            name: {
                "asked": round(asked[name][1], 2),
                **_medians(spans),
                "p99_over_p50": round(median(one.p99_us / one.p50_us for one in spans), 2),
            }
            for name, spans in figures.items()
        }
    }
    measured = told["servers"][row.ours]["p99_over_p50"]
    told["target"] = {"at_most": TAIL_AT_MOST, "kept": measured <= TAIL_AT_MOST}
    return told


def _idle() -> dict[str, Any] | None:
    """What a connection that says nothing costs, by the measurement of that, if it is there."""
    if find_spec("bench.idle_connections") is None:
        return None
    words = [sys.executable, "-m", "bench.idle_connections"]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    told: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    return told


def _environment() -> dict[str, str]:
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "machine": f"{platform.system()} {platform.machine()}",
        "load": f"{os.getloadavg()[0]:.0f} on {os.cpu_count()} cores",
    }


def _line(title: str, row: dict[str, Any]) -> str:
    parts = [f"{title:40}"]
    for name, figures in row["servers"].items():
        text = f"{name} {figures['rate']:,.0f}/s p50 {figures['p50_us']:.0f} us"
        text += f" cpu {figures['cpu_us']:.1f} us ({figures['busy']:.0%} busy)"
        if "p99_over_p50" in figures:
            text += f" p99 {figures['p99_us']:.0f} us p99/p50 {figures['p99_over_p50']}"
            if figures["rate"] < 0.98 * figures["asked"]:
                text += f", of {figures['asked']:,.0f}/s that were to be asked"
        parts.append(text)
    for name, ratio in row.get("ratio", {}).items():
        parts.append(f"{ratio} x {name} (by CPU {row['cpu_ratio'][name]})")
    if "target" in row:
        parts.append("kept" if row["target"]["kept"] else f"MISSED {row['target']}")
    return "\n    ".join(parts)


def missed(results: dict[str, Any]) -> list[str]:
    """The rows whose target was not reached; what was not measured is not missed."""
    return [
        name
        for name, row in results["rows"].items()
        if row and "target" in row and not row["target"]["kept"]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.wire_peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", choices=[row.name for row in ROWS], action="append")
    parser.add_argument("--undisturbed", action="store_true", help="before other programs (root)")
    parser.add_argument("--save", action="store_true", help="keep the figures, draw the picture")
    parser.add_argument("--picture", action="store_true", help="draw it from what was kept")
    parser.add_argument("--check", action="store_true", help="end with 1 if a target is missed")
    args = parser.parse_args()
    if args.picture:
        draw_wire(json.loads(RESULTS.read_text()))
        return 0
    results = measure(args.rounds, args.undisturbed, args.only)
    for name, why in results["missing"].items():
        print(f"left out: {name}: {why}")
    print(json.dumps(results))
    if args.save and not args.only:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        draw_wire(results)
    return 1 if args.check and missed(results) else 0


if __name__ == "__main__":
    sys.exit(main())
