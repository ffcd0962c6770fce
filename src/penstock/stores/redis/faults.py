"""Every fault of a driver, a socket or a server, as one of ours. No other file translates.

A driver is only used to connect, so whatever it raises happened before a command was sent. After
that, the sole question is whether the server may have acted: if so, the text says that the
request may have been charged, because repeating it could charge it twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...core.errors import ConfigInvalidError, PenstockError, StoreUnavailableError
from ..record import foreign_state
from .requests import Address, LinkError, Refusal

__all__ = [
    "DISOWNED",
    "PASSING",
    "PATIENT",
    "cannot_connect",
    "late_connect",
    "late_reply",
    "lost_reply",
    "refused",
    "unavailable",
]

PASSING = frozenset(
    {"BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "NOAUTH", "READONLY", "TRYAGAIN"}
)
"""Refusals that may be over in a moment, and before which nothing was run."""

PATIENT = PASSING - {"NOAUTH"}
"""Those that only time can cure, not another attempt to log in."""

DISOWNED = frozenset({"CLUSTERDOWN", "MASTERDOWN", "NOAUTH", "READONLY"})
"""Those after which the server should be looked up, or logged into, anew."""


def cannot_connect(address: Address, error: BaseException) -> LinkError:
    """From what a driver raised while it connected, authenticated or selected a database."""
    refused = any(
        isinstance(cause, (ConnectionRefusedError, FileNotFoundError)) for cause in _causes(error)
    )
    text = f"cannot connect to {address}: {str(error) or type(error).__name__}"
    return LinkError(text, may_have_run=False, again=refused)


def late_connect(address: Address) -> LinkError:
    return LinkError(f"no connection to {address} in time", may_have_run=False)


def late_reply(address: Address) -> LinkError:
    return LinkError(f"no reply from {address} in time", may_have_run=True)


def lost_reply(address: Address, error: object = None) -> LinkError:
    reason = f": {error}" if error else ""
    return LinkError(
        f"the connection to {address} ended before the reply{reason}", may_have_run=True, again=True
    )


def unavailable(error: Exception, *, consuming: bool) -> StoreUnavailableError:
    """The end of a call that a link or a server failed."""
    if not consuming:
        effect = "nothing was charged"
    elif isinstance(error, LinkError) and error.may_have_run:
        effect = "the request may have been charged, and was not repeated for that reason"
    else:
        effect = "the request was not charged"
    text = error.text if isinstance(error, Refusal) else str(error)
    return StoreUnavailableError(f"{text}; {effect}")


def refused(refusal: Refusal, keys: str, *, consuming: bool) -> PenstockError:
    """The end of a call that a server refused for good."""
    code, text = refusal.code, refusal.text
    if code == "WRONGTYPE" or ("user_script" in text and code == "ERR"):
        return foreign_state(keys, text)
    if code in ("MOVED", "ASK", "CROSSSLOT"):
        return ConfigInvalidError(
            f"this server is part of a cluster ({text}); use a redis+cluster:// URL or a "
            "cluster client"
        )
    if code in ("NOPERM", "WRONGPASS", "NOAUTH"):
        return StoreUnavailableError(
            f"the server refuses these credentials: {text}; allow EVALSHA, EVAL, GET, SET, DEL, "
            "TIME, WATCH, MULTI and what the scripts use, on the keys of the limiter"
        )
    return unavailable(refusal, consuming=consuming)


def _causes(error: BaseException | None) -> Iterator[Any]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
