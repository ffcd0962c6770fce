"""When to come back, in the trailers of a gRPC call. Pure: neither gRPC nor protobuf is needed.

A refusal says it twice: as `grpc-retry-pushback-ms`, which a client library with a retry policy
obeys by itself, and as a `google.rpc.RetryInfo` in the details of the status, for programs that
look. The few fields are written and read here: their protos are not worth a dependency.

google.rpc.Status: code = 1, message = 2, details = 3, each an Any: type_url = 1, value = 2.
RetryInfo: retry_delay = 1, a Duration: seconds = 1, nanos = 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["retry_delay_ms", "retry_trailers"]

_RESOURCE_EXHAUSTED = 8
_PUSHBACK = "grpc-retry-pushback-ms"
_DETAILS = "grpc-status-details-bin"
_RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"

_VARINT, _BYTES = 0, 2


def retry_trailers(text: str, delay_ms: int) -> tuple[tuple[str, str | bytes], ...]:
    """The trailers of a RESOURCE_EXHAUSTED that tell a caller to wait."""
    seconds, ms = divmod(delay_ms, 1000)
    delay = _number(1, seconds) + _number(2, ms * 1_000_000)
    info = _field(1, _RETRY_INFO.encode()) + _field(2, _field(1, delay))
    status = _number(1, _RESOURCE_EXHAUSTED) + _field(2, text.encode()) + _field(3, info)
    return ((_PUSHBACK, str(delay_ms)), (_DETAILS, status))


def retry_delay_ms(trailers: Iterable[Any] | None) -> int | None:
    """How long the trailers of a refused call tell to wait; None if they do not, or cannot be
    read."""
    told = {str(key).lower(): value for key, value in trailers or ()}
    text = str(told.get(_PUSHBACK, ""))
    if text.isascii() and text.isdigit():
        return int(text)
    details = told.get(_DETAILS)
    try:
        return _retry_info_ms(details) if isinstance(details, bytes) else None
    except (IndexError, ValueError):
        return None


def _retry_info_ms(status: bytes) -> int | None:
    for number, detail in _fields(status):
        if number != 3 or not isinstance(detail, bytes):
            continue
        parts: dict[int, Any] = dict(_fields(detail))
        if parts.get(1) != _RETRY_INFO.encode():
            continue
        delay: dict[int, Any] = dict(_fields(dict(_fields(parts.get(2, b""))).get(1, b"")))
        return int(delay.get(1, 0)) * 1000 + -(-int(delay.get(2, 0)) // 1_000_000)
    return None


def _number(field: int, value: int) -> bytes:
    return bytes((field << 3 | _VARINT,)) + _varint(value) if value else b""


def _field(field: int, payload: bytes) -> bytes:
    return bytes((field << 3 | _BYTES,)) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _fields(message: Any) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message; IndexError or ValueError if it is none."""
    if not isinstance(message, bytes):
        raise ValueError("not a message")
    at = 0
    while at < len(message):
        tag, at = _read(message, at)
        value, at = _read(message, at)
        if tag & 7 == _VARINT:
            yield tag >> 3, value
        elif tag & 7 == _BYTES:
            yield tag >> 3, message[at : at + value]
            at += value
        else:
            raise ValueError("a field of another type")


def _read(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
