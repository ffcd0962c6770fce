"""The head and the body of a request, parsed strictly; which sites may ask; and the bounds of both.

Request smuggling exploits servers that read the same bytes differently. So nothing is repaired or
guessed here. A line ends with CRLF; a name is a token directly followed by a colon; a continued
line, a second length, a length beside a transfer coding, a coding other than `chunked` or a second
host is refused, and the connection closed, since it is unknown where the next request begins. What
is accepted is less than the specification allows, and never more.

Most of a head does not affect the answer: trace and request ids, cookies, the user agent.
`reduced_head` validates a head and removes that, and the key from a path that ends with one. The
result is a head again, the same for all requests of a kind. It has a compiled twin.

Bodies are JSON. What parsers of JSON may treat differently is refused: a name that occurs twice,
NaN and the like, text that is not UTF-8. Names and types of fields are checked here; whether a
value is a valid key, cost or limit is up to the core.

A web page of any site can make its visitor's browser send requests here, and use up the limits of
the visitor's machine or network. Browsers say for which site they ask, in `Sec-Fetch-Site` and
`Origin`. A site can also let its own name resolve to this machine, so that it asks for itself (DNS
rebinding); but then the browser sends that name as `Host`.

`Bounds` says how large one request may be, and how long it may take.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from json.scanner import make_scanner
from typing import Any, NoReturn, TypeAlias

from ...core import native
from ..connections import ConnectionBounds
from ._answers import ProblemError

__all__ = [
    "CHUNKED",
    "CLIENT_LEAD",
    "ESSENTIAL",
    "Bounds",
    "Head",
    "Hosts",
    "Reduced",
    "decode",
    "is_cross_site",
    "parse_head",
    "reduce_head",
    "reduced_head",
    "require_fields",
]


@dataclass(frozen=True, slots=True)
class Bounds(ConnectionBounds):
    """Those of every connection, and those of HTTP. The defaults are what `penstock serve` runs
    with."""

    head_bytes: int = 16_384
    """A request line and its headers; the longest key fits in a path, percent-encoded."""

    head_fields: int = 64

    body_bytes: int = 32_768
    """A body with one key; the longest key fits, written in JSON's longest form."""

    batch_bytes: int = 5 * 2**20
    """A body with many keys; 1,000 of the longest fit."""

    charge_bytes: int = 2**18
    """A body with the id of a charge, which names all of its keys."""

    head_s: float = 10.0
    """From a request's first byte to the end of its headers."""

    request_s: float = 30.0
    """From a request's first byte to its last."""

    idle_s: float = 75.0
    """Between requests."""


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
# Headers that decide how a message is read, routed or authorized: allowed once.
_SINGLE = frozenset({"host", "content-length", "transfer-encoding", "authorization", "expect"})
ESSENTIAL = frozenset(
    {
        *(b"host", b"connection", b"expect", b"transfer-encoding", b"authorization"),
        *(b"origin", b"sec-fetch-site", b"x-ratelimit-format"),
    }
)
"""The headers that an answer may depend on, apart from the length of the body."""

CLIENT_LEAD = b"GET /check/"
"""The start of the first line, before the name of a client."""

_CLIENT = re.compile(
    rb"%b((?:[A-Za-z0-9\-._~!$&'()*+,;=:@]|%%[0-9A-Fa-f]{2})+)(?=[ ?])" % CLIENT_LEAD
)
Reduced: TypeAlias = tuple[bytes, int, "bytes | None"]
"""A reduced head, the length of the body, and the client in its path."""


@dataclass(frozen=True, slots=True)
class Head:
    """The first line and the headers. Names of headers are in lower case. `is_modern` means
    HTTP/1.1, so that the client may be sent 100 Continue."""

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


def reduce_head(raw: bytes, bounds: Bounds) -> Reduced:
    """Validate the head in `raw`, and remove what no answer depends on. The rest is validated when
    it is parsed."""
    if native is not None:
        reduced: Reduced | None = native.reduced_head(raw, bounds.head_fields, CLIENT_LEAD)
        if reduced is not None:
            return reduced
    return reduced_head(raw, bounds)


def reduced_head(raw: bytes, bounds: Bounds) -> Reduced:
    """`reduce_head`, interpreted. In the place of a client's name is an asterisk."""
    head = parse_head(raw, bounds)
    first, *fields = raw[:-4].split(b"\r\n")
    method, target, version = first.split(b" ")
    if not target.startswith(b"/"):
        target = f"{head.path}?{head.query}".encode() if head.query else head.path.encode()
    first = b"%b %b %b" % (method, target, version)
    named = _CLIENT.match(first)
    if named is not None:
        first = CLIENT_LEAD + b"*" + first[named.end() :]
    essential = [line for line in fields if line.partition(b":")[0].lower() in ESSENTIAL]
    reduced = b"\r\n".join([first, *essential, b"", b""])
    return reduced, head.length, None if named is None else named[1]


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
    """Path and query of a target. A proxy may send an absolute one, whose host must be that of
    Host."""
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


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ProblemError("malformed_json", "a name occurs twice in one object")
    return fields


def _constant(text: str) -> NoReturn:
    raise ProblemError("malformed_json", f"{text} is not JSON")


_decoder = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
# The decoder's engine. What the decoder adds, spaces around the value, few clients send.
_scan: Any = make_scanner(_decoder)  # type: ignore[arg-type]


MAX_VALUES = 20_000
"""How many values and members the JSON of a body may have. A value takes up to a microsecond to
parse, during which no other request is served."""


def decode(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`."""
    if len(body) > MAX_VALUES:
        _require_few_values(body)
    try:
        text = body.decode()
        if text[:1] == "{":
            value, end = _scan(text, 0)
            if end == len(text):
                return value  # type: ignore[no-any-return]
        value = _decoder.decode(text)
    except ProblemError:
        raise
    except StopIteration:
        # The engine's error for a missing value: `{"key":}`.
        raise ProblemError("malformed_json", "not JSON: a value is missing") from None
    except UnicodeDecodeError:
        raise ProblemError("malformed_json", "the body is not UTF-8") from None
    except RecursionError:
        raise ProblemError("malformed_json", "the body is nested too deeply") from None
    except ValueError as error:
        # A number of thousands of digits is a ValueError too, with a text about the interpreter.
        known = isinstance(error, json.JSONDecodeError)
        detail = f"not JSON: {error}" if known else "a number has too many digits"
        raise ProblemError("malformed_json", detail) from None
    if type(value) is not dict:
        raise ProblemError("malformed_json", "the body must be a JSON object, such as {}")
    return value


def _require_few_values(body: bytes) -> None:
    """Reject a body with too many values before it is parsed. Each is preceded by a comma or a
    bracket; those within strings are counted as well, since finding out takes as long as to
    parse."""
    if body.count(b",") + body.count(b"{") + body.count(b"[") > MAX_VALUES:
        raise ProblemError(
            "too_much_at_once",
            f"the body has more than {MAX_VALUES} commas and opening brackets; split the request",
        )


def require_fields(
    fields: dict[str, Any], required: Mapping[str, type], optional: Mapping[str, type]
) -> None:
    """Check the names and types of `fields` for one call."""
    for name, value in fields.items():
        wanted = required.get(name) or optional.get(name)
        if wanted is None:
            known = ", ".join([*required, *optional])
            raise ProblemError("config_invalid", f"unknown field {name[:80]!r}; known: {known}")
        if type(value) is not wanted:
            raise ProblemError("config_invalid", f"{name} must be {_NAMES[wanted]}")
    for name in required:
        if name not in fields:
            raise ProblemError("config_invalid", f"{name} is missing")


_NAMES = {
    str: "a string",
    int: "an integer",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


class Hosts:
    """The host names of this service: the given ones, where `*.example.com` means all names below
    it, and those of this machine."""

    def __init__(self, names: Iterable[str]) -> None:
        given = {name.lower().strip("[].") for name in names}
        self._suffixes = tuple(name[1:] for name in given if name.startswith("*."))
        self._names = given | {"localhost"}

    def accept(self, host: str) -> bool:
        """Whether the value of a `Host` header is one of them, on whatever port."""
        name = _without_port(host.lower())
        return name in self._names or name.endswith(self._suffixes) or _is_loopback(name)


def is_cross_site(headers: dict[str, str]) -> bool:
    """Whether the headers say that a page of another site has caused the request."""
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return True
    origin = headers.get("origin")
    if origin is None:
        return False
    scheme, _, authority = origin.lower().partition("://")
    return scheme not in ("http", "https") or authority != headers.get("host", "").lower()


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".")


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
