"""What is measured, with the bound that each promise sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from .contenders import CONTENDERS, Contender
from .probes import Probe, async_probe, batch_probe, hot_probe, keys_probe

__all__ = ["CURVE_SIZES", "SCENARIOS", "Scenario", "curve_at"]

_HOT_CALLS = 2_000
_BATCH_KEYS = 100
_RESIDENT_KEYS = 100_000
_CURVE_VISITS = 100_000

NATIVE, INTERPRETED = "penstock", "penstock, interpreted"


@dataclass(frozen=True)
class Scenario:
    """One question, put to every contender that can answer it.

    `bounds` are the highest ratios to the baseline that Penstock promises, by contender.
    """

    name: str
    title: str
    baseline: str
    rounds: int
    quick_rounds: int
    serves: Callable[[Contender], bool]
    prepare: Callable[[Contender], Probe]
    bounds: dict[str, float] = field(default_factory=dict)

    def contenders(self) -> list[Contender]:
        return [contender for contender in CONTENDERS.values() if self.serves(contender)]


def _sync(contender: Contender) -> bool:
    return contender.open is not None


def _hot(name: str, title: str, allowed: bool) -> Scenario:
    return Scenario(
        name,
        title,
        "dict.get",
        rounds=51,
        quick_rounds=15,
        serves=_sync,
        prepare=partial(hot_probe, calls=_HOT_CALLS, allowed=allowed),
        bounds={NATIVE: 3.3, INTERPRETED: 100},
    )


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        _hot("hot-allowed", "One hot key, allowed", True),
        _hot("hot-denied", "One hot key, denied", False),
        Scenario(
            "keys-100k",
            f"{_RESIDENT_KEYS:,} resident keys, shuffled",
            "dict.get on the same keys in the same order",
            rounds=9,
            quick_rounds=3,
            serves=_sync,
            prepare=partial(keys_probe, count=_RESIDENT_KEYS, passes=1),
            bounds={NATIVE: 2.5},
        ),
        Scenario(
            "check-many",
            f"check_many, batches of {_BATCH_KEYS}, per key",
            "dict.get per key",
            rounds=51,
            quick_rounds=15,
            serves=lambda contender: contender.open_many is not None,
            prepare=partial(batch_probe, calls=_HOT_CALLS, batch_size=_BATCH_KEYS),
            bounds={NATIVE: 4},
        ),
        Scenario(
            "async",
            "One hot key, awaited",
            "await of an empty coroutine",
            rounds=51,
            quick_rounds=15,
            serves=lambda contender: contender.aopen is not None,
            prepare=partial(async_probe, calls=_HOT_CALLS),
            bounds={NATIVE: 1.5},
        ),
    )
}

CURVE_SIZES = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)


def curve_at(size: int) -> Scenario:
    """One point of the curve: what a check costs with that many keys resident."""
    return Scenario(
        f"curve-{size}",
        f"{size:,} resident keys",
        "dict.get on the same keys in the same order",
        rounds=5,
        quick_rounds=3,
        serves=lambda contender: contender.package == "penstock",
        prepare=partial(keys_probe, count=size, passes=max(1, _CURVE_VISITS // size)),
    )


def find(name: str) -> Scenario:
    """A scenario by name, points of the curve included."""
    lead, _, size = name.partition("curve-")
    return curve_at(int(size)) if size and not lead else SCENARIOS[name]
