"""The requests of a flow to a backend, and names for long keys.

Keys may be 4,096 bytes long, which some backends do not accept. A key of `limit` bytes or more is
replaced by a name of exactly `limit` bytes (`fit`): its first characters, for people who read the
table, and its SHA-256. Keys that are kept unchanged are shorter than `limit`, so nobody can make up
a key that equals the name of another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

from ...core._errors import StoreUnavailableError
from ...core._flow import Flow
from ...core._validation import reject

__all__ = [
    "AnyRequest",
    "CasFlow",
    "Check",
    "Conflict",
    "Drop",
    "Held",
    "Read",
    "ReadAll",
    "Request",
    "RetryPause",
    "Step",
    "Swap",
    "SwapAll",
    "fit",
    "require_name",
    "unavailable",
]


class Held(NamedTuple):
    """The record of a key. `stamp` is the backend's own mark of this write, if it has one."""

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
class Check:
    """Part of a SwapAll: the key must still hold what was `expected`, and is left as it is."""

    key: str
    expected: Held | None


@dataclass(frozen=True, slots=True)
class ReadAll:
    """The answer is, for each key, its Held or None, all as of one instant not before the request;
    or a Conflict, if others were writing."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SwapAll:
    """Do all of these, if every key still holds what was expected, else nothing.

    The answer is the stamp of what was written, or a Conflict.
    """

    writes: tuple[Swap | Drop | Check, ...]


@dataclass(frozen=True, slots=True)
class Conflict:
    """The key held something else, and nothing was written.

    `found` is what it held (None: nothing), if `known`: not every backend says it.
    """

    found: Held | None = None
    known: bool = False


@dataclass(frozen=True, slots=True)
class RetryPause:
    """Wait before going on."""

    ms: float


Request = Read | Swap | Drop
"""On one key."""
AnyRequest = Request | ReadAll | SwapAll
Step = AnyRequest | RetryPause
CasFlow = Flow[Step, Any]


def unavailable(reason: object, *, in_doubt: bool) -> StoreUnavailableError:
    """The end of a call that a backend failed."""
    effect = "may have been charged" if in_doubt else "was not charged"
    return StoreUnavailableError(f"{reason}; the request {effect}")


def fit(key: str, limit: int) -> str:
    """The key, or what stands for it in a backend that takes names of up to `limit` bytes."""
    raw = key.encode()
    if len(raw) < limit:
        return key
    digest = sha256(raw).hexdigest()
    lead = raw[: limit - len(digest)].decode(errors="ignore")
    return lead + "." * (limit - len(digest) - len(lead.encode())) + digest


def require_name(what: str, name: object, pattern: str) -> str:
    """A table, namespace or account, before it becomes part of a statement or a path."""
    if not isinstance(name, str) or not re.fullmatch(pattern, name, re.ASCII):
        reject(f"{what} must match {pattern}, not {name!r}")
    return name
