"""Sample strategies, made from the declarations of the registered ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from typing import Any

from ..core._errors import ConfigInvalidError
from ..core._register import registered
from ..core._strategy import Parameter, Strategy
from ..core._validation import MAX_SPAN_MS

__all__ = ["draw_strategy", "sample_strategies"]


_TRIES = 1_000
# On both hemispheres, with a skipped midnight, a skipped day, half an hour's shift and none at all.
_ZONES = (
    "America/New_York",
    "America/Sao_Paulo",
    "Asia/Kolkata",
    "Australia/Lord_Howe",
    "Europe/Berlin",
    "Pacific/Apia",
)


def sample_strategies() -> list[Strategy]:
    """Small ones of every registered class: each parameter given, and each left to its default."""
    return [strategy for cls in registered() for strategy in _samples(cls)]


def _samples(cls: type[Strategy]) -> Iterator[Strategy]:
    values = [_sample_values(parameter) for parameter in cls.parameters]
    for chosen in product(*values):
        given = zip(cls.parameters, chosen, strict=True)
        # Not all values of one parameter go with all of another.
        with suppress(ConfigInvalidError):
            yield cls(**{each.name: value for each, value in given if value is not each.default})


def _sample_values(parameter: Parameter) -> list[Any]:
    if parameter.kind == "choice":
        return list(parameter.choices)
    if parameter.kind == "span":
        return [1_000]
    if parameter.kind == "rate":
        return [3.3]
    if parameter.kind == "zone":
        return ["UTC"]  # which needs no data
    # Odd, so that most quotients have a fraction.
    given = min(max(7, parameter.low), parameter.high)
    return [given] if parameter.is_required else [given, parameter.default]


def draw_strategy(cls: type[Strategy], rng: random.Random) -> Strategy:
    """One with random parameters; those that the class refuses are drawn again."""
    for _ in range(_TRIES):
        values = {
            each.name: _draw(each, rng)
            for each in cls.parameters
            if each.is_required or rng.random() < 0.7
        }
        try:
            return cls(**values)
        except ConfigInvalidError:
            continue
    raise AssertionError(f"{cls.name} refuses all of {_TRIES} draws within its declared bounds")


def _draw(parameter: Parameter, rng: random.Random) -> Any:
    if parameter.kind == "choice":
        return rng.choice(parameter.choices)
    if parameter.kind == "span":
        usual = rng.choice((1, 2, 7, 100, 333, 1_000, 60_000, 86_400_000, rng.randint(1, 10**6)))
        rare = rng.choice((10**10, MAX_SPAN_MS, rng.randint(1, MAX_SPAN_MS)))
        return usual if rng.random() < 0.8 else rare
    if parameter.kind == "rate":
        usual_rate = rng.choice((0.1, 1 / 3, 0.5, 1.0, 3.3, 10.0, 100.0, rng.uniform(1e-3, 10)))
        rare_rate = rng.random() * 10 ** rng.randint(-6, 9)
        return usual_rate if rng.random() < 0.6 else rare_rate
    if parameter.kind == "zone":
        return rng.choice(("UTC", *_ZONES))
    low, high = parameter.low, parameter.high
    usual = rng.choice((low, 2, 3, 5, 7, 10, 60, rng.randint(1, 30), rng.randint(1, 5_000)))
    rare = rng.choice((rng.randint(1, 10**6), 2 ** rng.randint(1, 53) - 1, 10**6, high))
    return min(max(usual if rng.random() < 0.75 else rare, low), high)
