"""How much a fleet that leases can admit in one window, by looking at every order of events.

`python -m proofs.leases` explores each case below, prints what it found as a table, refutes the
flawed variants with their shortest counter-examples, and draws the picture of docs/leases.md.
It fails if a claim does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .explore import Explored, explore
from .model import FLAWS, Rules, Step

__all__ = ["CASES", "MAIN", "REFUTED", "prove", "refute", "table", "tell"]

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"

MAIN = Rules(nodes=4, limit=12, batch=4, coupled=False)
_AHEAD = Rules(nodes=4, limit=4, batch=3, coupled=False, low_water=1)
_COSTS = Rules(nodes=3, limit=5, batch=3, coupled=False, costs=(1, 2, 4))

CASES: tuple[Rules, ...] = tuple(
    replace(rules, nodes=nodes, coupled=coupled)
    for rules in (MAIN, _AHEAD, _COSTS)
    for coupled in (False, True)
    for nodes in range(1, rules.nodes + 1)
)

# Each flaw in a fleet that is right but for it.
REFUTED: tuple[Rules, ...] = tuple(
    replace(_AHEAD, nodes=2, coupled=flaw != "whole batch", flaw=flaw) for flaw in FLAWS
)


def prove(cases: Sequence[Rules] = CASES) -> list[Explored]:
    return [explore(rules) for rules in cases]


def refute(cases: Sequence[Rules] = REFUTED) -> list[Explored]:
    return [explore(rules) for rules in cases]


def table(results: Sequence[Explored]) -> str:
    """As it stands in proofs/README.md."""
    rows = [
        "| credits | leases | nodes | limit | batch | states | transitions | most admitted |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for result in results:
        rules = result.rules
        cells = (
            "coupled" if rules.coupled else "carried over",
            _variant(rules),
            str(rules.nodes),
            str(rules.limit),
            str(rules.batch),
            f"{result.states:,}",
            f"{result.steps:,}",
            f"{result.most} of {rules.bound}",
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _variant(rules: Rules) -> str:
    if rules.low_water:
        return f"also ahead, at {rules.low_water}"
    if rules.costs != (1,):
        return f"costs of {', '.join(map(str, rules.costs))}"
    return "on demand"


def tell(result: Explored) -> str:
    """The shortest way to the most that was admitted, a line per step."""
    lines = []
    for number, (step, state) in enumerate(result.way(), 1):
        held = "  ".join(f"{'*' if node.stale else ''}{node.credits}" for node in state.nodes)
        lines.append(
            f"{number:4}  {_said(step):24}  credits {held:8}  "
            f"granted {state.used:2}  admitted {state.admitted:2}"
        )
    return "\n".join(lines)


def _said(step: Step) -> str:
    if step.node < 0:
        return "the window rolls"
    return f"node {step.node + 1} {step.verb} {step.amount or ''}".rstrip()


def main() -> int:
    results = prove()
    print(table(results))
    failed = [result for result in results if not result.holds]
    for result in failed:
        print(f"REFUTED: {result.rules}\n{tell(result)}\n")
    for result in refute():
        claim = f"{result.most} admitted where {result.rules.bound} are claimed"
        print(f"{result.rules.flaw}: {FLAWS[result.rules.flaw]}\n{claim}\n{tell(result)}\n")
        if not result.stopped:
            failed.append(result)
    _draw(results)
    return 1 if failed else 0


def _draw(results: Sequence[Explored]) -> None:
    from .picture import draw

    try:
        paths = draw(results, PICTURES)
    except ModuleNotFoundError as error:
        print(f"no picture drawn, for want of {error.name}: pip install {error.name}")
        return
    for path in paths:
        print(f"drawn: {path.name}")


if __name__ == "__main__":
    sys.exit(main())
