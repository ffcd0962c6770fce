"""What carries a call to a service: its name and fields there, the fields of the answer back.

Both transports speak the names of the HTTP server (docs/http.md), so that what asks does not know
which one it has. A transport raises `store_unavailable` where there was no answer, and says whether
the call may have been obeyed; the service's own refusals are raised with its words.

No call that spends is sent twice: a connection that died may have died after the service decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ..core._errors import (
    ConfigInvalidError,
    PenstockError,
    StoreUnavailableError,
    UnsupportedError,
)

__all__ = ["SPENDING", "Answer", "ServiceTransport", "no_answer", "refusal"]

Answer = Mapping[str, Any]

SPENDING = frozenset({"admit", "check", "check-many", "debit", "reserve"})
"""Calls that must not be repeated when their answer was lost; all others may be."""

_BUSY = (408, 425, 429)


class ServiceTransport(Protocol):
    """Sync and async; `call` is the last part of a path below /v1."""

    def call(self, name: str, fields: Mapping[str, Any]) -> Answer: ...

    async def acall(self, name: str, fields: Mapping[str, Any]) -> Answer: ...

    def close(self) -> None: ...

    async def aclose(self) -> None: ...


def no_answer(where: str, name: str, error: object, *, sent: bool) -> StoreUnavailableError:
    """The error for a call whose answer did not come."""
    told = str(error) or type(error).__name__
    doubt = ""
    if name in SPENDING:
        doubt = "; it may have been charged" if sent else "; nothing was charged"
    return StoreUnavailableError(f"no answer from the service at {where}: {told}{doubt}")


def refusal(where: str, status: int, problem: Answer) -> PenstockError:
    """The error for an HTTP status that is no success, in the words of the service."""
    detail = str(problem.get("detail") or "no details")[:1_000]
    text = f"the service at {where} answered {status}: {detail}"
    if status == 501:
        return UnsupportedError(text)
    if status >= 500 or status in _BUSY:
        is_full = problem.get("reason") == "full"
        return StoreUnavailableError(text, reason="full" if is_full else "away")
    if status == 401:
        return ConfigInvalidError(f"{text}; pass the service's token as token=...")
    if "code" not in problem:
        return ConfigInvalidError(f"{text}; is this the address of a Penstock service?")
    return ConfigInvalidError(text)
