"""How much is tried: a part by default, so that all tests together take minutes, and everything
with LONG=1 in the environment, as `make test-long` does.

A part is always the same one. It is for what differs in figures alone, never for a store, a path or
a kind of caller.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

LONG = os.environ.get("LONG", "") not in ("", "0")


def some(items: Iterable[T], one_in: int, start: int = 0) -> list[T]:
    """One in so many, from that place on; in a long run, all."""
    return list(items)[None if LONG else start :: 1 if LONG else one_in]


def count(usual: int, long: int) -> int:
    """So many, or in a long run so many."""
    return long if LONG else usual
