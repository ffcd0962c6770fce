"""One request of HTTP/2, from its fields to the end of its answer (RFC 9113, sections 5.1 and 8).

A stream is in the table of its connection from the field block that opens it to the last frame
that either side may send; no state is kept for one that is not open yet, or not any more. If
`Stream.read_head` refuses a request, it is malformed: the stream is reset without an event.

Request smuggling relies on programs that parse a message differently, such as where it ends or how
a name is spelled. So the grammar of fields and targets is narrower than the RFCs allow, and invalid
input is never repaired.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ._hpack import HeaderBlock

__all__ = ["NO_ROUTE", "Fields", "KnownPath", "MalformedError", "Room", "Stream", "are_trailers"]

_METHOD = re.compile(rb"[A-Z]{1,32}")
# A path and a query, of characters that need no encoding, and percent-encoded ones.
_CHARACTER = rb"[A-Za-z0-9\-._~!$&'()*+,;=:@%b]|%%[0-9A-Fa-f]{2}"
_TARGET = re.compile(rb"((?:/(?:%b)*)+)(?:\?((?:%b)*))?" % (_CHARACTER % b"", _CHARACTER % b"/?"))
# Authorities that proxies invent for their backends may have any printable character.
_AUTHORITY = re.compile(rb"[!-~]*")
# In lower case, as HTTP/2 requires.
_FIELD_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
# With spaces around it, though RFC 9113 forbids them: libraries of gRPC send metadata as programs
# gave it to them, and the call is to be refused for what it says. Nothing is stripped.
_FIELD_VALUE = re.compile(rb"[\t -~\x80-\xff]*")
_LENGTH = re.compile(rb"[0-9]{1,15}")

_SINGLE_FIELDS = frozenset(
    {b"host", b"content-length", b"transfer-encoding", b"authorization", b"expect"}
)
"""Fields that decide how a message is read, routed or authorized: allowed once."""


@dataclass(frozen=True, slots=True)
class KnownPath:
    """A path that is known in advance. `body_bytes` bounds the body of a request to it; a
    `streaming` request is reported as soon as its head has arrived."""

    number: int
    body_bytes: int = 32_768
    streaming: bool = False


NO_ROUTE = -1
"""The number of an unknown path."""


class Room:
    """Bytes that all connections together may hold beyond their own shares."""

    __slots__ = ("limit", "taken")

    def __init__(self, limit: int) -> None:
        self.limit: int = limit
        self.taken: int = 0

    def take(self, amount: int) -> bool:
        if self.taken + amount > self.limit:
            return False
        self.taken += amount
        return True

    def give(self, amount: int) -> None:
        self.taken -= amount


def _joined(fields: Iterable[tuple[bytes, bytes]]) -> Mapping[str, str]:
    """Fields by name; values of one name are joined (RFC 9110, section 5.3)."""
    found: dict[str, str] = {}
    for name_bytes, value_bytes in fields:
        name, value = name_bytes.decode("ascii"), value_bytes.decode("latin-1")
        if name in found:
            # A client may send each cookie as a field of its own (RFC 9113, section 8.2.3).
            found[name] += ("; " if name == "cookie" else ", ") + value
        else:
            found[name] = value
    return found


_PSEUDO_FIELDS = frozenset({b":method", b":scheme", b":path", b":authority"})
# The connection fields of HTTP/1.1 are not allowed here (section 8.2.2).
_FORBIDDEN = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_SCHEMES = frozenset({b"http", b"https"})

Fields = list[tuple[bytes, bytes]]


class MalformedError(Exception):
    """A malformed request. Its stream is reset: PROTOCOL_ERROR."""


class Stream:
    """A request, and the state of its answer.

    For the server: `method`, `path`, `query`, `scheme`, `authority` and `headers` are what the
    client sent; `route` is the number of a path that is known in advance. `body` is the part of the
    body that has arrived, and `ended` says whether it is complete. `fault`, if not empty, says why
    the request cannot be served. `context` belongs to the server.
    """

    __slots__ = (
        "_headers",
        "authority",
        "begun_ms",
        "blocked_ms",
        "body_bytes",
        "closed",
        "collected",
        "context",
        "credit",
        "declared",
        "ended",
        "fault",
        "fields",
        "handed_over",
        "head_sent",
        "held",
        "id",
        "method",
        "path",
        "pending",
        "pending_end",
        "pending_trailers",
        "query",
        "received",
        "route",
        "scheme",
        "streaming",
        "unread",
        "window",
    )

    def __init__(self, stream_id: int, begun_ms: int, body_bytes: int, credit: int) -> None:
        self.id: int = stream_id
        self.begun_ms: int = begun_ms
        self.method: str = ""
        self.scheme: str = ""
        self.path: str = ""
        self.query: str = ""
        self.authority: str = ""
        self.fields: Fields = []
        self._headers: Mapping[str, str] | None = None
        self.route: int = NO_ROUTE
        self.streaming: bool = False
        self.fault: str = ""
        self.context: Any = None
        # The request's side: bytes that are here, that were counted, that the head announced (-1
        # if it did not), that the path may have; and what is not given back to the client yet.
        self.collected: bytearray = bytearray()
        self.received: int = 0
        self.declared: int = -1
        self.body_bytes: int = body_bytes
        self.held: int = 0
        self.unread: int = 0
        self.credit: int = credit
        self.ended: bool = False
        self.handed_over: bool = False
        # The answer's side. `window` is relative to the client's initial window, so that a change
        # of that setting changes all streams at once.
        self.window: int = 0
        self.head_sent: bool = False
        self.pending: bytearray = bytearray()
        self.pending_end: bool = False
        self.pending_trailers: HeaderBlock | None = None
        self.blocked_ms: int = 0
        self.closed: bool = False

    def __repr__(self) -> str:
        return f"<Stream {self.id} {self.method} {self.path}>"

    @property
    def body(self) -> bytes:
        """The part of the body that has arrived."""
        return bytes(self.collected)

    @property
    def headers(self) -> Mapping[str, str]:
        """The fields by name; those of one name are joined."""
        if self._headers is None:
            self._headers = _joined(self.fields)
        return self._headers

    def get(self, name: str) -> str | None:
        return self.headers.get(name)

    def has_declared_length(self) -> bool:
        """Whether the body has, or can still reach, the length in the head."""
        if self.declared < 0:
            return True
        return self.received == self.declared if self.ended else self.received <= self.declared

    def read_head(self, fields: Fields, routes: Mapping[bytes, KnownPath]) -> None:
        pseudo = _take_pseudo_fields(fields)
        _check_fields(fields)
        self.fields = fields
        self._read_target(pseudo, routes)
        self.authority = _authority(pseudo, fields)
        length = next((value for name, value in fields if name == b"content-length"), None)
        if length is not None:
            if not _LENGTH.fullmatch(length):
                raise MalformedError("content-length is no whole number")
            self.declared = int(length)

    def _read_target(self, pseudo: dict[bytes, bytes], routes: Mapping[bytes, KnownPath]) -> None:
        method = pseudo.get(b":method", b"")
        if not _METHOD.fullmatch(method):
            raise MalformedError(":method is missing, or no word of capital letters")
        self.method = method.decode("ascii")
        if method == b"CONNECT":
            if b":scheme" in pseudo or b":path" in pseudo or not pseudo.get(b":authority"):
                raise MalformedError("CONNECT goes to an :authority, and to nothing else")
            return
        scheme, target = pseudo.get(b":scheme", b""), pseudo.get(b":path", b"")
        if scheme not in _SCHEMES:
            raise MalformedError(":scheme is missing, or neither http nor https")
        self.scheme = scheme.decode("ascii")
        if target == b"*" and method == b"OPTIONS":
            self.path = "*"
            return
        match = _TARGET.fullmatch(target)
        if match is None:
            raise MalformedError(":path is missing, or has characters that must be encoded")
        path, query = match[1], match[2] or b""
        self.path, self.query = path.decode("ascii"), query.decode("ascii")
        if route := routes.get(path):
            self.route = route.number
            self.body_bytes = route.body_bytes
            self.streaming = route.streaming


def are_trailers(fields: Fields) -> bool:
    """Whether fields are allowed as trailers."""
    try:
        _check_fields(fields)
    except MalformedError:
        return False
    return True


def _take_pseudo_fields(fields: Fields) -> dict[bytes, bytes]:
    """Remove the pseudo-fields from the front of the list."""
    pseudo: dict[bytes, bytes] = {}
    for name, value in fields:
        if name[:1] != b":":
            break
        if name not in _PSEUDO_FIELDS or name in pseudo:
            raise MalformedError("an unknown pseudo-field, or one that is there twice")
        pseudo[name] = value
    del fields[: len(pseudo)]
    return pseudo


def _check_fields(fields: Fields) -> None:
    singles = set()
    for name, value in fields:
        if not _FIELD_NAME.fullmatch(name):
            raise MalformedError("the name of a field is no token in lower case")
        if not _FIELD_VALUE.fullmatch(value):
            raise MalformedError("the value of a field has characters that none may have")
        if name in _FORBIDDEN or (name == b"te" and value != b"trailers"):
            raise MalformedError("a field that belongs to connections of HTTP/1.1")
        if name in _SINGLE_FIELDS:
            if name in singles:
                raise MalformedError("a field that may be there once is there twice")
            singles.add(name)


def _authority(pseudo: dict[bytes, bytes], fields: Fields) -> str:
    named = pseudo.get(b":authority")
    host = next((value for name, value in fields if name == b"host"), None)
    if named is not None and host is not None and named != host:
        raise MalformedError(":authority and host differ")
    authority = named if named is not None else host or b""
    if not _AUTHORITY.fullmatch(authority):
        raise MalformedError("the authority has characters that none may have")
    return authority.decode("ascii")
