"""What a flow may ask of the connections that serve it, and what comes back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...core.flow import Flow

__all__ = [
    "TIME",
    "Address",
    "CloseIdle",
    "Command",
    "Delay",
    "Exchange",
    "Parallel",
    "RedisFlow",
    "RedisRequest",
    "Refusal",
    "ms_of",
]

Command = tuple[bytes, ...]
"""All of it bytes: hiredis turns numbers into text by itself, and ends the process when a signal
handler raises meanwhile."""

TIME: Command = (b"TIME",)

# A script's failure as servers before Redis 7 report it, around the error that caused it.
_IN_SCRIPT = re.compile(r"^ERR Error running script.*?-([A-Z]+) ")


class Address(NamedTuple):
    """Where a server listens. A path instead of a host, with port 0, is a Unix socket."""

    host: str
    port: int
    sentinel: bool = False

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.port else self.host


@dataclass(slots=True)
class Exchange:
    """Send the commands in one write; the answer is one reply each, refusals among them.

    `pinned` asks for a connection that nobody else uses until the flow ends, and `where=None` for
    the one that is pinned already. `share` is how much of the time that the call has left may be
    spent on it.
    """

    where: Address | None
    commands: Sequence[Command]
    pinned: bool = False
    share: float = 1.0


@dataclass(slots=True)
class Parallel:
    """Several exchanges at once; the answer is, for each, its replies or its
    ConnectionFailedError."""

    exchanges: Sequence[Exchange]


@dataclass(slots=True)
class Delay:
    """Wait before going on."""

    ms: float


@dataclass(slots=True)
class CloseIdle:
    """Close idle connections to a server: it is not, or no longer, what we took it for."""

    where: Address


RedisRequest = Exchange | Parallel | Delay | CloseIdle
RedisFlow = Flow[RedisRequest, Any]


class Refusal(Exception):  # noqa: N818
    """An error reply: the server read the command and did not run it to its end."""

    @property
    def text(self) -> str:
        return str(self.args[0]) if self.args else ""

    @property
    def code(self) -> str:
        inner = _IN_SCRIPT.match(self.text)
        return inner[1] if inner else self.text.partition(" ")[0]


def ms_of(time: Any) -> int:
    """The reply to TIME as the scripts read it."""
    return int(time[0]) * 1000 + int(time[1]) // 1000
