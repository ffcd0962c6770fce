"""The whole benchmark in one command: `python -m bench`."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from .chart import draw_charts
from .memory import run_memory
from .results import RESULTS, Results
from .rounds import Progress, run_rounds
from .scenarios import CURVE_SIZES, SCENARIOS, curve_at
from .table import render

__all__: list[str] = []

_NAMES = [*SCENARIOS, "memory", "curve"]
_MEMORY_KEYS, _QUICK_MEMORY_KEYS = 1_000_000, 100_000
_QUICK_CURVE_SIZES = (1_000, 10_000, 100_000)
# Where a run that did not measure everything leaves its results; it draws no chart either.
_SCRATCH = Path(__file__).parent.parent / "build" / "bench.json"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Penstock next to its peers: one run, interleaved rounds, medians of ratios.",
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds: under a minute")
    parser.add_argument("--only", choices=_NAMES, action="append", help="one scenario; repeatable")
    parser.add_argument("--json", type=Path, help="where the results go")
    parser.add_argument("--check", action="store_true", help="fail if a promise was missed")
    return parser.parse_args()


def _reporter(title: str) -> Progress:
    """Progress on standard error: one line that is rewritten, or none if nobody watches."""
    if not sys.stderr.isatty():
        print(title, file=sys.stderr, flush=True)
        return lambda _: None
    width = shutil.get_terminal_size().columns - 1

    def show(step: str) -> None:
        print(f"\r\x1b[2K{title}: {step}"[:width], end="", file=sys.stderr, flush=True)

    return show


def _run(names: list[str], quick: bool) -> Results:
    results = Results(quick)
    for name in names:
        progress = _reporter(f"[{names.index(name) + 1}/{len(names)}] {name}")
        if name == "memory":
            results.memory_keys = _QUICK_MEMORY_KEYS if quick else _MEMORY_KEYS
            results.memory = run_memory(results.memory_keys, progress)
        elif name == "curve":
            for size in _QUICK_CURVE_SIZES if quick else CURVE_SIZES:
                point = curve_at(size)
                rounds = point.quick_rounds if quick else point.rounds
                results.curve[size] = run_rounds(point, rounds, progress)
        else:
            scenario = SCENARIOS[name]
            rounds = scenario.quick_rounds if quick else scenario.rounds
            results.ratios[name] = run_rounds(scenario, rounds, progress)
    if sys.stderr.isatty():
        print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
    return results


def main() -> int:
    arguments = _arguments()
    whole = not arguments.quick and not arguments.only
    results = _run(arguments.only or _NAMES, arguments.quick)
    print(render(results))
    saved = arguments.json or (RESULTS if whole else _SCRATCH)
    results.save(saved)
    print(f"\nSaved to {os.path.relpath(saved)}")
    if whole:
        for path in draw_charts(results):
            print(f"Drew {os.path.relpath(path)}")
    missed = any(not verdict.kept for verdict in results.verdicts())
    return 1 if missed and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
