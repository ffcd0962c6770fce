"""What a flow asks of a backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from ...core.errors import StoreUnavailableError
from ...core.flow import Flow

__all__ = [
    "CasFlow",
    "Conflict",
    "Drop",
    "Held",
    "Pause",
    "Read",
    "Request",
    "Step",
    "Swap",
    "unavailable",
]


class Held(NamedTuple):
    """What a key holds. `stamp` is the backend's own mark of this write, where it has one."""

    record: str
    version: str
    stamp: str = ""


@dataclass(frozen=True, slots=True)
class Read:
    """The answer is the key's Held, or None; it must not be older than the request."""

    key: str


@dataclass(frozen=True, slots=True)
class Swap:
    """Write the record, if the key still holds what was `expected` (None: nothing).

    `keep_ms` is how long from now the backend has to keep it. The answer is the stamp of what was
    written, or a Conflict.
    """

    key: str
    expected: Held | None
    version: str
    record: str
    keep_ms: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Delete the key: if it still holds what was `expected`, or whatever it holds if that is None.

    The answer is True, or a Conflict.
    """

    key: str
    expected: Held | None


@dataclass(frozen=True, slots=True)
class Conflict:
    """The key held something else, and nothing was written.

    `found` is what it held (None: nothing), if `known`: not every backend says it.
    """

    found: Held | None = None
    known: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait before going on."""

    ms: float


Request = Read | Swap | Drop
Step = Request | Pause
CasFlow = Flow[Step, Any]


def unavailable(reason: object, *, in_doubt: bool) -> StoreUnavailableError:
    """The end of a call that a backend failed."""
    effect = "may have been charged" if in_doubt else "was not charged"
    return StoreUnavailableError(f"{reason}; the request {effect}")
