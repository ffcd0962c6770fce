"""Long work on the event loop, in slices: requests are answered in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from time import perf_counter
from typing import TypeVar

__all__ = ["in_slices"]

T = TypeVar("T")

# A gRPC call comes round to the loop some ten times, and may meet a slice each time.
_SLICE_S = 0.002


async def in_slices(steps: Iterable[T]) -> list[T]:
    """What `steps` brings. Each step must be short; between some of them the loop moves on."""
    made = []
    until = perf_counter() + _SLICE_S
    for step in steps:
        made.append(step)
        if perf_counter() >= until:
            await asyncio.sleep(0)
            until = perf_counter() + _SLICE_S
    return made
