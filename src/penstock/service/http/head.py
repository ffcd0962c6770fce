"""The head of a request: its first line and its headers, read strictly.

Requests are smuggled through readings that differ: one server takes a message to end where
another does not. So nothing here is repaired or guessed. A line ends with CRLF; a name is a token
with the colon right behind it; a continued line, a second length, a length beside a transfer
coding, a coding other than `chunked` or a second host is refused, and the connection closed,
since nobody knows where the next request would begin. What is accepted is less than the
specification allows, and never more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .bounds import Bounds
from .problem import ProblemError

__all__ = ["CHUNKED", "Head", "parse_head"]

CHUNKED = -1
"""The length of a body that comes in chunks."""

_REQUEST_LINE = re.compile(rb"([A-Z]{1,32}) ([!-~]+) HTTP/([0-9])\.([0-9])")
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):([\t -~\x80-\xff]*)")
_LENGTH = re.compile(rb"[0-9]{1,15}")
_HOST = r"(?:[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"
_IS_HOST = re.compile(_HOST)
_ABSOLUTE = re.compile(rf"https?://({_HOST})(?=[/?]|$)", re.IGNORECASE)
_TARGET = re.compile(
    r"((?:/(?:[A-Za-z0-9\-._~!$&'()*+,;=:@]|%[0-9A-Fa-f]{2})*)+)"
    r"(?:\?((?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?]|%[0-9A-Fa-f]{2})*))?"
)
# Headers that decide where a message ends, or for whom it is, may be there once at most.
_SINGLE = frozenset({"host", "content-length", "transfer-encoding", "authorization", "expect"})


@dataclass(frozen=True, slots=True)
class Head:
    """What the first line and the headers say. Names of headers are in lower case. `is_modern`
    means HTTP/1.1, and that the request may be told to go on."""

    method: str
    path: str
    query: str
    is_modern: bool
    keep_alive: bool
    length: int
    headers: dict[str, str] = field(default_factory=dict)


def parse_head(raw: bytes, bounds: Bounds) -> Head:
    """The head in `raw`, which ends with its empty line; or a ProblemError."""
    lines = raw[:-4].split(b"\r\n")
    line = _REQUEST_LINE.fullmatch(lines[0])
    if line is None:
        raise _malformed("the first line is not METHOD SP TARGET SP HTTP/1.1")
    if line[3] != b"1":
        raise ProblemError("version_not_supported", "speak HTTP/1.1 or HTTP/1.0")
    if len(lines) > bounds.head_fields + 1:
        raise ProblemError("head_too_large", f"at most {bounds.head_fields} headers are read")
    headers = _headers(lines[1:])
    modern = line[4] != b"0"
    if modern and "host" not in headers:
        raise _malformed("HTTP/1.1 asks for a Host header")
    if "host" in headers and not _IS_HOST.fullmatch(headers["host"]):
        raise _malformed("Host is not a name or an address, with or without a port")
    options = [word.strip(" \t") for word in headers.get("connection", "").lower().split(",")]
    path, query = _path_and_query(line[2].decode("ascii"), headers.get("host"))
    return Head(
        method=line[1].decode("ascii"),
        path=path,
        query=query,
        is_modern=modern,
        keep_alive=modern and "close" not in options,
        length=_length(headers, modern),
        headers=headers,
    )


def _headers(lines: list[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        match = _FIELD.fullmatch(line)
        if match is None:
            raise _malformed("a header is not NAME: VALUE on a line of its own")
        name = match[1].decode("ascii").lower()
        value = match[2].strip(b" \t").decode("latin-1")
        if name not in headers:
            headers[name] = value
        elif name in _SINGLE:
            raise _malformed(f"more than one {name} header")
        else:
            headers[name] += ", " + value
    return headers


def _length(headers: dict[str, str], modern: bool) -> int:
    coding, length = headers.get("transfer-encoding"), headers.get("content-length")
    if coding is not None:
        if length is not None:
            raise _malformed("both Transfer-Encoding and Content-Length")
        if not modern:
            raise _malformed("Transfer-Encoding in an HTTP/1.0 request")
        if coding.lower() != "chunked":
            raise ProblemError("not_implemented", "the one transfer coding known here is chunked")
        return CHUNKED
    if length is None:
        return 0
    if not _LENGTH.fullmatch(length.encode("latin-1")):
        raise _malformed("Content-Length is not a whole number of bytes")
    return int(length)


def _path_and_query(target: str, host: str | None) -> tuple[str, str]:
    """A proxy's form of the target carries the host in front of the path: the same one as Host."""
    if not target.startswith("/"):
        absolute = _ABSOLUTE.match(target)
        if absolute is None:
            raise _malformed("the target is neither a path nor an http:// address")
        if host is not None and host.lower() != absolute[1].lower():
            raise _malformed("the target names another host than Host does")
        rest = target[absolute.end() :]
        target = rest if rest.startswith("/") else f"/{rest}"
    match = _TARGET.fullmatch(target)
    if match is None:
        raise _malformed("the target has characters that must be percent-encoded, or a bad %")
    return match[1], match[2] or ""


def _malformed(detail: str) -> ProblemError:
    return ProblemError("malformed_request", detail)
