"""What an exception is called on the wire. One table; the rest of the server only raises.

The text of our own exceptions is written for callers and goes out with the status. That of any
other exception stays inside: it is a fault of ours, and is logged with its traceback.

RESOURCE_EXHAUSTED comes with the time to wait (`adapters/_grpc_status.py`).
"""

from __future__ import annotations

import logging
from collections import Counter
from itertools import cycle
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from ...adapters._grpc_status import retry_trailers
from ...core._errors import (
    ConfigInvalidError,
    QueueFullError,
    StoreUnavailableError,
    UnsupportedError,
)
from .._core import UnknownPolicyError

__all__ = ["DeadlineError", "UnknownServiceError", "refuse", "refuse_with", "status_of"]

_log = logging.getLogger("penstock.service.grpc")

_MAX_TEXT = 500


class DeadlineError(Exception):
    """The caller's deadline had passed before the call was looked at. Known to this server only: to
    the caller it is a status of the protocol, not an error of ours."""


class UnknownServiceError(Exception):
    """Asked about by a health probe, and not served here."""


# The first class that fits: an unknown policy is also an invalid one.
_STATUSES: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (UnknownPolicyError, grpc.StatusCode.NOT_FOUND),
    (ConfigInvalidError, grpc.StatusCode.INVALID_ARGUMENT),
    (UnsupportedError, grpc.StatusCode.UNIMPLEMENTED),
    (StoreUnavailableError, grpc.StatusCode.UNAVAILABLE),
    (QueueFullError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (DeadlineError, grpc.StatusCode.DEADLINE_EXCEEDED),
    (UnknownServiceError, grpc.StatusCode.NOT_FOUND),
)


def status_of(error: Exception) -> tuple[grpc.StatusCode, str]:
    """The status and the text to answer instead of `error`."""
    if isinstance(error, DecodeError):
        return grpc.StatusCode.INVALID_ARGUMENT, "the request is no message of the expected type"
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            return status, str(error)[:_MAX_TEXT]
    return grpc.StatusCode.INTERNAL, "the service failed to answer; its log says why"


async def refuse(
    context: grpc.aio.ServicerContext[Any, Any], error: Exception, codes: Counter[str]
) -> NoReturn:
    """End the call with the status that stands for `error`, and count it."""
    status, text = status_of(error)
    if status is grpc.StatusCode.INTERNAL:
        _log.error("a call failed", exc_info=error)
    if isinstance(error, StoreUnavailableError):
        context.set_trailing_metadata((("reason", error.reason),))
    await refuse_with(context, status, text, codes)


async def refuse_with(
    context: grpc.aio.ServicerContext[Any, Any],
    status: grpc.StatusCode,
    text: str,
    codes: Counter[str],
) -> NoReturn:
    """End the call, and count it. Who is told that there is too much is told when to come back."""
    codes[status.name] += 1
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED:
        await context.abort(status, text, retry_trailers(text, next(_RETRY_MS)))
    await context.abort(status, text)


# Around a second, each caller another time: those who were refused together come back apart.
_RETRY_MS = cycle(range(500, 1_500, 61))
