"""What an exception is called on the wire. One table; the rest of the server only raises.

The text of our own exceptions is written for callers and goes out with the status. That of any
other exception stays inside: it is a fault of ours, and is logged with its traceback.

RESOURCE_EXHAUSTED comes with the time to wait (`adapters/_grpc_status.py`), unless waiting is of no
use.
"""

from __future__ import annotations

import logging
from itertools import cycle

from google.protobuf.message import DecodeError

from ...adapters._grpc_status import retry_trailers
from ...core._errors import (
    ConfigInvalidError,
    QueueFullError,
    StoreUnavailableError,
    UnsupportedError,
)
from .._core import UnknownPolicyError
from ._protocol import GrpcError, Status

__all__ = ["DeadlineError", "UnknownServiceError", "exhausted", "grpc_error"]

_log = logging.getLogger("penstock.service.grpc")

_MAX_TEXT = 500


class DeadlineError(Exception):
    """The caller's deadline had passed before the call was looked at. Known to this server only: to
    the caller it is a status of the protocol, not an error of ours."""


class UnknownServiceError(Exception):
    """Asked about by a health probe, and not served here."""


# The first class that fits: an unknown policy is also an invalid one.
_STATUSES: tuple[tuple[type[Exception], Status], ...] = (
    (UnknownPolicyError, Status.NOT_FOUND),
    (ConfigInvalidError, Status.INVALID_ARGUMENT),
    (UnsupportedError, Status.UNIMPLEMENTED),
    (StoreUnavailableError, Status.UNAVAILABLE),
    (QueueFullError, Status.RESOURCE_EXHAUSTED),
    (DeadlineError, Status.DEADLINE_EXCEEDED),
    (UnknownServiceError, Status.NOT_FOUND),
)


def grpc_error(error: BaseException) -> GrpcError:
    """What to end a call with instead of `error`."""
    if isinstance(error, GrpcError):
        return error
    if isinstance(error, DecodeError):
        return GrpcError(Status.INVALID_ARGUMENT, "the request is no message of the expected type")
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            return _ours(status, error)
    _log.error("a call failed", exc_info=error)
    return GrpcError(Status.INTERNAL, "the service failed to answer; its log says why")


def _ours(status: Status, error: BaseException) -> GrpcError:
    text = str(error)[:_MAX_TEXT]
    if status is Status.RESOURCE_EXHAUSTED:
        return exhausted(text)
    if isinstance(error, StoreUnavailableError):
        return GrpcError(status, text, trailing=(("reason", error.reason),))
    return GrpcError(status, text)


def exhausted(text: str) -> GrpcError:
    """There is too much of something. Who is told so is told when to come back."""
    pushback, (_, details) = retry_trailers(text, next(_RETRY_MS))
    assert isinstance(details, bytes)
    return GrpcError(Status.RESOURCE_EXHAUSTED, text, details, (pushback,))


# Around a second, each caller another time: those who were refused together come back apart.
_RETRY_MS = cycle(range(500, 1_500, 61))
