"""Every fault of httpx and every HTTP status that is not a success, as one of ours.

No other file translates httpx. The texts name the address and what the server said, never what
was sent: headers hold the token.
"""

from __future__ import annotations

from ...core.errors import ConfigInvalidError
from ..failure import ConnectionFailedError

__all__ = ["refused", "translated"]

# By name, since httpx is only imported when it is used.
_NOT_SENT = frozenset(
    {
        "ConnectError",
        "ConnectTimeout",
        "InvalidURL",
        "LocalProtocolError",
        "PoolTimeout",
        "ProxyError",
        "UnsupportedProtocol",
    }
)
_LATE = frozenset({"PoolTimeout", "ConnectTimeout", "ReadTimeout", "WriteTimeout"})


def translated(error: Exception, where: str) -> Exception:
    """From what httpx raised; what is not httpx's stays itself."""
    if not any(base.__module__.partition(".")[0] == "httpx" for base in type(error).__mro__):
        return error
    name = type(error).__name__
    text = f"{where}: {str(error) or name}"
    return ConnectionFailedError(text, may_have_run=name not in _NOT_SENT, again=name not in _LATE)


def refused(status: int, said: str, where: str) -> Exception:
    """From a status and what the server said about it."""
    text = f"{where} answered {status}: {said[:300]}"
    if status in (401, 403):
        return ConnectionFailedError(
            f"{text}; the token is wrong or lacks a permission", may_have_run=False
        )
    if status == 429:
        return ConnectionFailedError(text, may_have_run=False, again=True)
    if status >= 500 or status == 408:
        return ConnectionFailedError(text, may_have_run=True, again=True)
    return ConfigInvalidError(text)
