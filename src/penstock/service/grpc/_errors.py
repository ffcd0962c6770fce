"""What an exception is called on the wire. One table; the rest of the server only raises.

The text of our own exceptions is written for callers and goes out with the status. That of any
other exception stays inside: it is a fault of ours, and is logged with its traceback.

RESOURCE_EXHAUSTED comes with the time to wait, twice: as `grpc-retry-pushback-ms`, which a client
library with a retry policy obeys by itself, and as a `google.rpc.RetryInfo` in the details of the
status, for programs that look.
"""

from __future__ import annotations

import logging
from collections import Counter
from itertools import cycle
from typing import Any, NoReturn

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError

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
        await context.abort(status, text, _retry(text, next(_RETRY_MS)))
    await context.abort(status, text)


# Around a second, each caller another time: those who were refused together come back apart.
_RETRY_MS = cycle(range(500, 1_500, 61))


def _retry(text: str, delay_ms: int) -> tuple[tuple[str, str | bytes], ...]:
    """The trailers that tell a caller to wait."""
    delay = Duration()
    delay.FromMilliseconds(delay_ms)
    info = AnyMessage(
        type_url="type.googleapis.com/google.rpc.RetryInfo",
        value=_field(1, delay.SerializeToString()),
    )
    # google.rpc.Status: code = 1, message = 2, details = 3. Its proto is not worth a dependency.
    code = bytes((1 << 3, grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]))
    details = code + _field(2, text.encode()) + _field(3, info.SerializeToString())
    return (
        ("grpc-retry-pushback-ms", str(delay_ms)),
        ("grpc-status-details-bin", details),
    )


def _field(number: int, payload: bytes) -> bytes:
    """A field of a protobuf message that holds bytes."""
    size, length = len(payload), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((number << 3 | 2, *length, size)) + payload
