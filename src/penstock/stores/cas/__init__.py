"""Stores on databases that can write on condition: compare-and-swap.

- requests: the requests to a backend, and names for keys that are too long for it
- compare_and_swap: read, decide, write on condition, repeat if needed: one flow for all backends
- memory: the records that this process last saw
- callers: who works on a key and who waits, so that a process never races with itself
- drivers: threads that wait for a blocking driver, so that deadlines hold, and clients that belong
  to one event loop
- store: the base class, to which a backend adds the two methods that do the I/O
"""

from __future__ import annotations

from .._sheet import ConnectionFailedError
from ._compare_and_swap import RACES, TRAIL
from ._requests import (
    AnyRequest,
    Check,
    Conflict,
    Drop,
    Held,
    Read,
    ReadAll,
    Request,
    Swap,
    SwapAll,
)
from ._store import CasStore

__all__ = [
    "RACES",
    "TRAIL",
    "AnyRequest",
    "CasStore",
    "Check",
    "Conflict",
    "ConnectionFailedError",
    "Drop",
    "Held",
    "Read",
    "ReadAll",
    "Request",
    "Swap",
    "SwapAll",
]
