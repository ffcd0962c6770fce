"""One scenario, tried: run it, follow it with the models, check every law."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .comparing import shadows_change_nothing, stores_agree
from .drawing import DRAWN
from .laws import LAWS
from .leases import laws_of
from .reference import Broken, Reference
from .running import run
from .scenarios import Scenario
from .shrinking import shrink
from .worlds import Transcript

__all__ = ["broken_by", "explain", "find", "tried"]


def tried(scenario: Scenario, twin: str = "") -> Transcript:
    """Run a scenario; raises `Broken` where an answer or a law does not hold. With a `twin`, every
    answer also has to be the same on the store of that name."""
    events = run(scenario)
    if scenario.mode == "strict":
        Reference(scenario).follow(events)
    for law in LAWS if scenario.mode == "strict" else laws_of(scenario):
        law(scenario, events)
    shadows_change_nothing(scenario, events)
    if twin:
        stores_agree(scenario, events, run(replace(scenario, store=twin)), twin)
    return events


def broken_by(scenario: Scenario, twin: str = "") -> Broken | None:
    """What a scenario breaks, if it breaks anything."""
    try:
        tried(scenario, twin)
    except Broken as broken:
        return broken
    return None


def find(
    draw: Callable[[int, str], Scenario], store: str, seeds: range, twin: str = ""
) -> tuple[int, Broken] | None:
    """The first seed whose scenario breaks something."""
    for seed in seeds:
        broken = broken_by(draw(seed, store), twin)
        if broken is not None:
            return seed, broken
    return None


def explain(kind: str, store: str, seed: int, broken: Broken, twin: str = "") -> str:
    """The shrunk scenario, and how to replay it."""

    def same(candidate: Scenario) -> bool:
        try:
            found = broken_by(candidate, twin)
        except Exception:
            return False
        return found is not None and found.law == broken.law

    small = shrink(DRAWN[kind](seed, store), same)
    last = broken_by(small, twin) or broken
    where = f"WORLD={kind} STORE={store} SEED={seed}" + (f" TWIN={twin}" if twin else "")
    return f"{last}\n\nreplay: {where} python -m tests.model\n\n{small.script()}"
