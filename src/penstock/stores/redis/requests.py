"""What a flow may ask of its shell, and how a link may fail it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...core.flow import Flow
from ..failure import ConnectionFailedError as LinkError

__all__ = [
    "TIME",
    "Address",
    "Ask",
    "Command",
    "Discard",
    "LinkError",
    "Pause",
    "RedisFlow",
    "Refusal",
    "Request",
    "Scatter",
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
class Ask:
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
class Scatter:
    """Several asks at once; the answer is, for each, its replies or the LinkError it met."""

    asks: Sequence[Ask]


@dataclass(slots=True)
class Pause:
    """Wait before going on."""

    ms: float


@dataclass(slots=True)
class Discard:
    """Close idle connections to a server: it is not, or no longer, what we took it for."""

    where: Address


Request = Ask | Scatter | Pause | Discard
RedisFlow = Flow[Request, Any]


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
