"""Every exception Penstock raises, each with a stable `code`.

A denial is not an error: it is a `Decision`. What is here are operational faults (a store that
does not answer) and mistakes of the caller (a cost of zero). Programs branch on `code`, which is
never renamed; the text is for people and says what was wrong and what would be right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

if TYPE_CHECKING:
    from .decision import Decision

__all__ = [
    "ConfigInvalidError",
    "PenstockError",
    "QueueFullError",
    "RateLimitExceededError",
    "StoreUnavailableError",
    "UnsupportedError",
    "outage_reason",
]

Reason: TypeAlias = Literal["away", "full"]


class PenstockError(Exception):
    """The root of all exceptions that Penstock raises. `code` is a stable text to branch on."""

    code: ClassVar[str] = "penstock_error"


class ConfigInvalidError(PenstockError, ValueError):
    """A parameter, key, cost or policy that could never be right."""

    code = "config_invalid"


class StoreUnavailableError(PenstockError):
    """The store did not answer, or not in time; whether it acted is said in the text.

    `reason` tells outages apart that want different hands: `"full"`, where the store answers but
    has no room for what a check has to write, and `"away"` for everything else.
    """

    code = "store_unavailable"

    def __init__(self, *args: object, reason: Reason = "away") -> None:
        super().__init__(*args)
        self.reason: Reason = reason


def outage_reason(error: BaseException) -> Reason:
    """What kind of outage an error is. This process may be out of memory, too."""
    if isinstance(error, StoreUnavailableError):
        return error.reason
    return "full" if isinstance(error, MemoryError) else "away"


class UnsupportedError(PenstockError):
    """This store, strategy or policy does not have the operation; the text names one that does."""

    code = "not_implemented"


class QueueFullError(PenstockError):
    """More callers wait for one key than the limiter was told to hold."""

    code = "queue_full"


class RateLimitExceededError(PenstockError):
    """`acquire` could not be admitted in time. `decision` is the last answer it got."""

    code = "rate_limit_exceeded"

    def __init__(self, message: str, decision: Decision) -> None:
        super().__init__(message)
        self.decision = decision

    def __reduce__(self) -> tuple[type[RateLimitExceededError], tuple[str, Decision]]:
        return type(self), (str(self), self.decision)
