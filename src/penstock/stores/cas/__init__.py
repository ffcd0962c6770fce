"""Stores on a database whose one atomic step is "write, if nobody else has": compare-and-swap.

- requests: what is asked of a backend, and names for keys that are too long for it
- compare_and_swap: read, decide, write on condition, again if need be: one flow for all backends
- memory: what this process last saw under its keys
- callers: who works on a key and who waits, so that a process never races with itself
- drivers: threads that wait for a driver in the caller's place, so that deadlines hold, and clients
  that belong to one event loop
- store: the store, to which a backend adds the two methods that do the I/O
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
