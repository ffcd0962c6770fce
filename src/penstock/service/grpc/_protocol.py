"""gRPC over HTTP/2: the head of a call, its messages, and its status.

A call is a POST whose content type begins with `application/grpc`. Its messages follow each other
in the body, each after a byte that says whether it is compressed and four with its length. The
answer is a head, messages of the same form, and trailers with the status; a call that is refused
before any message has the status in its head, and nothing after that.

The functions here work on the streams of either HTTP/2 implementation and send through their
connections. An invalid call raises a `GrpcError`, which `refuse` sends.
"""

from __future__ import annotations

import binascii
import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ..http2 import HeaderBlock, compiled

__all__ = [
    "CallHead",
    "GrpcError",
    "MessageReader",
    "Status",
    "answer_plainly",
    "frame_message",
    "is_grpc",
    "parse_timeout",
    "percent_encode",
    "plain_call",
    "read_call",
    "read_message",
    "read_metadata",
    "refuse",
    "reply",
    "send_message",
    "send_status",
    "too_large",
    "write_metadata",
]

_CONTENT_TYPE = re.compile(r"application/grpc(?:\+proto)?(?:[ \t]*;.*)?")
_PLAIN_TYPES = ("application/grpc", "application/grpc+proto")
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
_UNIT_NS = {"H": 3600 * 10**9, "M": 60 * 10**9, "S": 10**9, "m": 10**6, "u": 10**3, "n": 1}
_METADATA_NAME = re.compile(rb"[0-9a-z_.-]+")
_METADATA_VALUE = re.compile(rb"[ -~]*")
# The only reserved name for which a server chooses a value.
_PUSHBACK = b"grpc-retry-pushback-ms"
_PREFIX_BYTES = 5
_ENCODINGS = ("identity", "gzip")

_TYPE = ((b":status", b"200"), (b"content-type", b"application/grpc"))
_ACCEPTED = (b"grpc-accept-encoding", b"identity,gzip")
_HEAD = HeaderBlock((*_TYPE, _ACCEPTED))
_HEAD_GZIP = HeaderBlock((*_TYPE, _ACCEPTED, (b"grpc-encoding", b"gzip")))
_STATUS_OK = HeaderBlock(((b"grpc-status", b"0"),))


class Status(IntEnum):
    """The codes of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class GrpcError(Exception):
    """A call that cannot be answered with a message. `details` is a google.rpc.Status, and
    `trailing` metadata beside it."""

    def __init__(
        self,
        status: Status,
        text: str,
        details: bytes = b"",
        trailing: Sequence[tuple[str, str | bytes]] = (),
    ) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.details = details
        self.trailing = trailing


@dataclass(frozen=True, slots=True)
class CallHead:
    """The head of a call. A `timeout_ms` of None means no deadline."""

    timeout_ms: int | None
    encoding: str
    accepts_gzip: bool


def is_grpc(stream: Any) -> bool:
    """Whether a request is a call, by its content type. One of another type is answered 415 where
    only calls are expected."""
    return _CONTENT_TYPE.fullmatch(stream.get("content-type") or "") is not None


def read_call(stream: Any) -> CallHead:
    if stream.method != "POST":
        raise GrpcError(Status.INTERNAL, "a call is a POST")
    # If it is missing, a proxy in between drops trailers, also those of the answer.
    if stream.get("te") != "trailers":
        raise GrpcError(Status.INTERNAL, "a call has the field te: trailers")
    timeout = stream.get("grpc-timeout")
    timeout_ms = None if timeout is None else parse_timeout(timeout)
    encoding = stream.get("grpc-encoding")
    if encoding is None:
        encoding = "identity"
    elif encoding not in _ENCODINGS:
        raise GrpcError(Status.UNIMPLEMENTED, "grpc-encoding is none of identity and gzip")
    accepted = (stream.get("grpc-accept-encoding") or "").split(",")
    return CallHead(timeout_ms, encoding, any(word.strip(" \t") == "gzip" for word in accepted))


def _plain_call(stream: Any, max_bytes: int) -> tuple[int | None, bytes] | None:
    """The deadline, in milliseconds, and the message of a unary call of the common form. None for
    other calls, which may be valid as well: `read_call` and `read_message` decide that."""
    content_type = stream.get("content-type")
    if stream.fault or not stream.ended or content_type not in _PLAIN_TYPES:
        return None
    try:
        call = read_call(stream)
        if call.encoding != "identity":
            return None
        return call.timeout_ms, read_message(stream.body, call.encoding, max_bytes)
    except GrpcError:
        return None


plain_call: Callable[[Any, int], tuple[int | None, bytes] | None] = (
    _plain_call if compiled is None else compiled.plain_call
)


def parse_timeout(text: str) -> int:
    """Milliseconds, rounded up."""
    match = _TIMEOUT.fullmatch(text)
    if match is None:
        raise GrpcError(Status.INTERNAL, "grpc-timeout is not up to 8 digits and one of HMSmun")
    return -(-int(match[1]) * _UNIT_NS[match[2]] // 10**6)


# --- Messages -----------------------------------------------------------------------------------


class MessageReader:
    """Reads the messages of a call from its body as it arrives."""

    __slots__ = ("_data", "_gzipped", "_max_bytes")

    def __init__(self, encoding: str, max_bytes: int) -> None:
        self._gzipped = encoding == "gzip"
        self._max_bytes = max_bytes
        self._data = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are complete."""
        self._data += data
        messages = []
        at = 0
        while len(self._data) - at >= _PREFIX_BYTES:
            flag = self._data[at]
            length = int.from_bytes(self._data[at + 1 : at + _PREFIX_BYTES], "big")
            self._check_prefix(flag, length)
            end = at + _PREFIX_BYTES + length
            if end > len(self._data):
                break
            message = bytes(self._data[at + _PREFIX_BYTES : end])
            messages.append(_decompress(message, self._max_bytes) if flag else message)
            at = end
        del self._data[:at]
        return messages

    def finish(self) -> None:
        """Check, at the end of the body, that no message is incomplete."""
        if self._data:
            raise GrpcError(Status.INTERNAL, "the body ends within a message")

    def _check_prefix(self, flag: int, length: int) -> None:
        if flag > 1:
            raise GrpcError(Status.INTERNAL, "a message begins with neither 0 nor 1")
        if flag and not self._gzipped:
            raise GrpcError(Status.INTERNAL, "a compressed message without grpc-encoding")
        if length > self._max_bytes:
            raise _message_too_large(self._max_bytes)


def read_message(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """The one message of a unary call."""
    reader = MessageReader(encoding, max_bytes)
    messages = reader.feed(body)
    reader.finish()
    if not messages:
        raise GrpcError(Status.INVALID_ARGUMENT, "the call came without a message")
    if len(messages) > 1:
        raise GrpcError(Status.UNIMPLEMENTED, "the call came with more than one message")
    return messages[0]


def frame_message(message: bytes, *, compress: bool = False) -> bytes:
    """A message as it is sent."""
    if compress:
        message = gzip.compress(message, 6, mtime=0)
    return bytes((compress,)) + len(message).to_bytes(4, "big") + message


def _decompress(data: bytes, max_bytes: int) -> bytes:
    inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        message = inflate.decompress(data, max_bytes + 1)
    except zlib.error:
        raise GrpcError(Status.INTERNAL, "a message is not compressed with gzip") from None
    if len(message) > max_bytes:
        raise _message_too_large(max_bytes)
    if not inflate.eof or inflate.unused_data:
        raise GrpcError(Status.INTERNAL, "a message is not compressed with gzip")
    return message


def too_large(text: str) -> GrpcError:
    """The error for a message that is too large; it tells libraries not to retry."""
    return GrpcError(Status.RESOURCE_EXHAUSTED, text, trailing=((_PUSHBACK.decode(), "-1"),))


def _message_too_large(max_bytes: int) -> GrpcError:
    return too_large(f"a message has at most {max_bytes} bytes here")


# --- Metadata -----------------------------------------------------------------------------------


def read_metadata(stream: Any) -> list[tuple[str, str | bytes]]:
    """The fields of a call that are not reserved by the protocol. The values of names that end with
    -bin are bytes."""
    found: list[tuple[str, str | bytes]] = []
    for name_bytes, value in stream.fields:
        name = name_bytes.decode("ascii")
        if name in ("te", "content-type") or name.startswith("grpc-"):
            continue
        if name.endswith("-bin"):
            # A proxy may have joined several values of one name.
            found += [(name, _decode_binary(part.strip(b" \t"))) for part in value.split(b",")]
        else:
            found.append((name, value.decode("latin-1")))
    return found


def write_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> list[tuple[bytes, bytes]]:
    """The fields of metadata."""
    fields = []
    for name_text, value in metadata:
        name = name_text.encode()
        if not _METADATA_NAME.fullmatch(name) or (name.startswith(b"grpc-") and name != _PUSHBACK):
            raise ValueError(f"{name_text!r} is no name for metadata")
        if name.endswith(b"-bin") != isinstance(value, bytes):
            raise ValueError(
                f"the value of {name_text!r}: names with -bin, and only they, have bytes"
            )
        text = _encode_binary(value) if isinstance(value, bytes) else value.encode()
        if not _METADATA_VALUE.fullmatch(text) or text.strip() != text:
            raise ValueError(f"the value of {name_text!r} is not printable ASCII")
        fields.append((name, text))
    return fields


def _decode_binary(text: bytes) -> bytes:
    try:
        return binascii.a2b_base64(text.rstrip(b"=") + b"=" * (-len(text.rstrip(b"=")) % 4))
    except binascii.Error:
        raise GrpcError(Status.INTERNAL, "metadata of a name with -bin is not base64") from None


def _encode_binary(value: bytes) -> bytes:
    return binascii.b2a_base64(value, newline=False).rstrip(b"=")


# --- Answers ------------------------------------------------------------------------------------


def reply(
    connection: Any,
    stream: Any,
    message: bytes,
    *,
    metadata: Sequence[tuple[str, str | bytes]] = (),
    trailing: Sequence[tuple[str, str | bytes]] = (),
    compress: bool = False,
) -> bool:
    """Send the whole answer to a unary call. False if its stream is closed."""
    return send_message(
        connection, stream, message, metadata=metadata, compress=compress
    ) and send_status(connection, stream, Status.OK, trailing=trailing)


answer_plainly: Callable[[Any, Any, bytes], bool] = (
    reply if compiled is None else compiled.Http2Connection.reply
)
"""The same for an answer of the common form."""


def send_message(
    connection: Any,
    stream: Any,
    message: bytes,
    *,
    metadata: Sequence[tuple[str, str | bytes]] = (),
    compress: bool = False,
) -> bool:
    """Send one message of several; before the first one, the head with `metadata`."""
    if not stream.head_sent:
        head = _HEAD_GZIP if compress else _HEAD
        if metadata:
            head = HeaderBlock(head.repeated, write_metadata(metadata))
        connection.send_head(stream, head)
    sent: bool = connection.send_data(stream, frame_message(message, compress=compress))
    return sent


def send_status(
    connection: Any,
    stream: Any,
    status: int,
    text: str = "",
    *,
    details: bytes = b"",
    trailing: Sequence[tuple[str, str | bytes]] = (),
) -> bool:
    """Send the status of a call, which is the whole answer if nothing was sent before."""
    fields = _status_fields(status, text, details) + write_metadata(trailing)
    sent: bool
    if not stream.head_sent:
        head = HeaderBlock((*_TYPE, _ACCEPTED), fields)
        sent = connection.send_head(stream, head, end=True)
    elif len(fields) == 1 and status == Status.OK:
        sent = connection.send_trailers(stream, _STATUS_OK)
    else:
        sent = connection.send_trailers(stream, HeaderBlock((), fields))
    return sent


def refuse(connection: Any, stream: Any, error: GrpcError) -> bool:
    """End a call with an error."""
    return send_status(
        connection,
        stream,
        error.status,
        error.text,
        details=error.details,
        trailing=error.trailing,
    )


def percent_encode(text: str) -> bytes:
    """The encoding of `grpc-message`: printable ASCII, everything else as %XX of its UTF-8."""
    raw = text.encode("utf-8", "replace")
    # No field begins or ends with a space.
    spaces = {at for at in (0, len(raw) - 1) if raw[at : at + 1] == b" "}
    out = bytearray()
    for at, byte in enumerate(raw):
        if 0x20 <= byte <= 0x7E and byte != 0x25 and at not in spaces:
            out.append(byte)
        else:
            out += b"%%%02X" % byte
    return bytes(out)


def _status_fields(status: int, text: str, details: bytes) -> list[tuple[bytes, bytes]]:
    fields = [(b"grpc-status", b"%d" % status)]
    if text:
        fields.append((b"grpc-message", percent_encode(text)))
    if details:
        fields.append((b"grpc-status-details-bin", _encode_binary(details)))
    return fields
