"""The requests of a flow to its connections, and the errors of drivers, sockets and servers.

Errors are translated here and in no other file. A driver is only used to connect, so whatever it
raises happened before a command was sent. After that, it matters whether the server may have acted:
if so, the error says that the request may have been charged, because repeating it could charge it
twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ...core._errors import (
    ConfigInvalidError,
    OverloadedError,
    PenstockError,
    StoreUnavailableError,
)
from ...core._flow import Flow
from ...core._lua import OTHER_PERIOD
from ...core._validation import MAX_STORED_MS, shown
from .._sheet import ConnectionFailedError, telling_of_others
from ..record import foreign_state

__all__ = [
    "DISOWNED",
    "PASSING",
    "PATIENT",
    "TIME",
    "Address",
    "Answer",
    "CloseIdle",
    "Command",
    "Delay",
    "Enter",
    "Exchange",
    "OtherPeriodError",
    "Parallel",
    "Pulse",
    "RedisFlow",
    "RedisRequest",
    "Refusal",
    "beside_others",
    "cannot_connect",
    "is_full",
    "late_connect",
    "late_reply",
    "lost_reply",
    "malformed",
    "ms_of",
    "no_room",
    "refused",
    "stopped_midway",
    "text_or_none",
    "unavailable",
    "whole_numbers",
]


Command = tuple[bytes, ...]
"""All of it bytes: hiredis turns numbers into text by itself, and ends the process when a signal
handler raises meanwhile."""

TIME: Command = (b"TIME",)

_OTHER_PERIOD = re.compile(rf"{OTHER_PERIOD} [a-z ]*([0-9]+)")

# A script's failure as servers before Redis 7 report it, around the error that caused it.
_IN_SCRIPT = re.compile(r"^ERR Error running script.*?-([A-Z]+) ")


class Address(NamedTuple):
    """Where a server listens. A path instead of a host, with port 0, is a Unix socket."""

    host: str
    port: int
    sentinel: bool = False

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.port else self.host


class Answer(Protocol):
    """Receives the replies to a request: a future, or a callback."""

    def done(self) -> bool: ...

    def set_result(self, result: list[Any], /) -> None: ...

    def set_exception(self, error: ConnectionFailedError, /) -> None: ...


class _Nobody:
    """Has been told already."""

    def done(self) -> bool:
        return True

    def set_result(self, _replies: list[Any]) -> None: ...

    def set_exception(self, _error: ConnectionFailedError) -> None: ...


_NOBODY = _Nobody()


@dataclass(slots=True)
class Exchange:
    """Send the commands in one write; the answer is one reply each, refusals among them.

    `pinned` asks for a connection that nobody else uses until the flow ends, and `where=None` for
    the one that is pinned already. `share` is how much of the time that the call has left may be
    spent on it. The rest is of the connection that it waits on: who is told the replies, those that
    are there, and by when they have to be.
    """

    where: Address | None
    commands: Sequence[Command]
    pinned: bool = False
    share: float = 1.0
    answer: Answer = field(init=False, repr=False, compare=False)
    replies: list[Any] = field(init=False, repr=False, compare=False)
    deadline: float = field(init=False, repr=False, compare=False)

    def wait(self, answer: Answer, deadline: float) -> None:
        """Before it is put into a queue."""
        self.answer = answer
        self.replies = []
        self.deadline = deadline

    def forget(self) -> None:
        """Tell nobody."""
        self.answer = _NOBODY


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
    """Close idle connections to a server, whose role has changed."""

    where: Address


@dataclass(slots=True)
class Enter:
    """Wait for room for a heavy call, which keeps it until the flow ends: see `_room.py`."""

    weight: int


RedisRequest = Exchange | Parallel | Delay | CloseIdle | Enter
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


_BACKLOG_S = 1.0


class Pulse:
    """When a server last answered in time: whether a late reply means that it is away, or that
    this process asks for more than it can answer.

    A server that is away answers nothing at all for a whole deadline. If it has answered other
    requests within the last half of it, the late one has waited behind those. Then the connection
    is abandoned, and the server first works off what it has read from there: for `_BACKLOG_S`
    after its last answer, further late replies are put down to that.
    """

    __slots__ = ("_overloaded_at", "_timeout_s", "answered_at")

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._overloaded_at = -_BACKLOG_S
        self.answered_at: float = -_BACKLOG_S

    def judge(self, late: ConnectionFailedError, now: float) -> ConnectionFailedError:
        """The error of a late reply or connection, marked if it is one of overload."""
        silent_s = now - self.answered_at
        was_overloaded = now - self._overloaded_at < _BACKLOG_S
        if silent_s < (_BACKLOG_S if was_overloaded else self._timeout_s / 2):
            self._overloaded_at = now
            late.is_overload = True
        return late

    @staticmethod
    def judge_all(
        pulses: Iterable[Pulse], late: ConnectionFailedError, now: float
    ) -> ConnectionFailedError:
        """The same, of a call that has not come to a server."""
        newest = max(list(pulses), key=lambda pulse: pulse.answered_at, default=None)
        return late if newest is None else newest.judge(late, now)


class OtherPeriodError(StoreUnavailableError):
    """The server's clock shows `server_now`, which is in none of the periods that a script was
    sent. Nothing was charged, by this script or another one of the call; else it is 0."""

    server_now: int = 0


def malformed(reply: Any) -> StoreUnavailableError:
    """The error of a reply that has not the form of an answer to the request. The server has
    read the request, and may have run it."""
    return StoreUnavailableError(
        f"the server replied {shown(reply)}, which is not an answer to the request; is it Redis or "
        "Valkey? The request may have been charged"
    )


def whole_numbers(reply: Any, count: int) -> list[int]:
    """A reply that has to be so many integers."""
    if type(reply) is not list or len(reply) != count:
        raise malformed(reply)
    for number in reply:
        if type(number) is not int:
            raise malformed(reply)
    return reply


def ms_of(time: Any) -> int:
    """The reply to TIME as the scripts read it."""
    try:
        seconds, micros = map(int, time)
    except (ValueError, TypeError):
        raise malformed(time) from None
    if not (0 <= seconds <= MAX_STORED_MS // 1000 and 0 <= micros < 1_000_000):
        raise malformed(time)
    return seconds * 1000 + micros // 1000


def text_or_none(reply: Any) -> Any:
    """The reply to GET: the bytes or text of a record, or None."""
    if reply is None or isinstance(reply, (bytes, str)):
        return reply
    raise malformed(reply)


PASSING = frozenset(
    {"BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "NOAUTH", "READONLY", "TRYAGAIN"}
)
"""Refusals that may be over in a moment, and before which nothing was run."""

PATIENT = PASSING - {"NOAUTH"}
"""Errors that pass with time, and not by logging in again."""

DISOWNED = frozenset({"CLUSTERDOWN", "MASTERDOWN", "NOAUTH", "READONLY"})
"""Those after which the server should be looked up, or logged into, anew."""

# Errors of a server that cannot write its log, and of Upstash.
_NO_ROOM = ("No space left on device", "capacity quota exceeded")


def cannot_connect(address: Address, error: BaseException) -> ConnectionFailedError:
    """The error of a driver while it connected, authenticated or selected a database."""
    refused = any(
        isinstance(cause, (ConnectionRefusedError, FileNotFoundError)) for cause in _causes(error)
    )
    text = f"cannot connect to {address}: {str(error) or type(error).__name__}"
    return ConnectionFailedError(text, may_have_run=False, again=refused)


def late_connect(address: Address) -> ConnectionFailedError:
    return ConnectionFailedError(f"no connection to {address} in time", may_have_run=False)


def no_room() -> ConnectionFailedError:
    return ConnectionFailedError(
        "this process has other large calls under way, and no room for this one in time",
        may_have_run=False,
    )


def late_reply(address: Address) -> ConnectionFailedError:
    return ConnectionFailedError(f"no reply from {address} in time", may_have_run=True)


def lost_reply(address: Address, error: object = None) -> ConnectionFailedError:
    reason = f": {error}" if error else ""
    return ConnectionFailedError(
        f"the connection to {address} ended before the reply{reason}", may_have_run=True, again=True
    )


def never_sent(address: Address) -> ConnectionFailedError:
    """The connection has ended while its caller was waiting for it."""
    text = f"the connection to {address} ended before the request"
    return ConnectionFailedError(text, may_have_run=False, again=True)


def unavailable(
    error: Exception, *, consuming: bool, others: bool = False
) -> StoreUnavailableError:
    """The end of a call that a connection or a server failed; `others` if the call had further
    keys, and those may have been charged."""
    if consuming and isinstance(error, ConnectionFailedError) and error.may_have_run:
        effect = "the request may have been charged, and was not repeated for that reason"
    elif others:
        effect = "this part of the call was not charged"
    else:
        effect = "the request was not charged" if consuming else "nothing was charged"
    text = error.text if isinstance(error, Refusal) else str(error)
    if isinstance(error, ConnectionFailedError) and error.is_overload:
        failure: StoreUnavailableError = OverloadedError(
            f"{text}, because more is asked than the server can answer; {effect}; ask for less at "
            "once, or raise timeout_ms"
        )
    else:
        full = isinstance(error, Refusal) and is_full(error)
        failure = StoreUnavailableError(f"{text}; {effect}", reason="full" if full else "away")
    return beside_others(failure) if others else failure


def refused(refusal: Refusal, keys: str, *, consuming: bool, others: bool = False) -> PenstockError:
    """The end of a call that a server refused for good."""
    code, text = refusal.code, refusal.text
    failure: PenstockError
    if (shown := _OTHER_PERIOD.search(text)) is not None:
        failure = OtherPeriodError(
            f"the server's clock shows {shown[1]}, which is more than a period away from this "
            "machine's; set the clocks right; this part of the call was not charged"
        )
        failure.server_now = 0 if others else int(shown[1])
    elif stopped_midway(refusal):
        failure = foreign_state(keys, _said_by_script(text))
    elif code in ("MOVED", "ASK", "CROSSSLOT"):
        failure = ConfigInvalidError(
            f"this server is part of a cluster ({text}); use a redis+cluster:// URL or a "
            "cluster client"
        )
    elif code in ("NOPERM", "WRONGPASS", "NOAUTH"):
        failure = StoreUnavailableError(
            f"the server refuses these credentials: {text}; allow EVALSHA, EVAL, GET, SET, DEL, "
            "TIME, WATCH, MULTI and what the scripts use, on the keys of the limiter"
        )
    else:
        return unavailable(refusal, consuming=consuming, others=others)
    return beside_others(failure) if others else failure


def _said_by_script(text: str) -> str:
    """The message of an error in a script, without its position."""
    text = re.sub(
        r"^ERR (Error running script.*?@user_script:\d+: )?(user_script:\d+: )*", "", text
    )
    return re.sub(r" script: (\w+, )?on @user_script:\d+\.?$", "", text)


def stopped_midway(refusal: Refusal) -> bool:
    """A script found a key that it cannot read; of several keys, those before it are written."""
    return refusal.code == "WRONGTYPE" or ("user_script" in refusal.text and refusal.code == "ERR")


def is_full(refusal: Refusal) -> bool:
    """The server is full: its memory, its disk, or the quota of a plan."""
    return refusal.code == "OOM" or any(sign in refusal.text for sign in _NO_ROOM)


def beside_others(error: PenstockError) -> Any:
    """The same error, for a call that had done something before it failed."""
    return telling_of_others(error, None)


def _causes(error: BaseException | None) -> Iterator[Any]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
