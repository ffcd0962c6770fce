"""The sans-I/O parser of requests: bytes in, requests out.

`feed` takes what has arrived; `take` returns the next whole request, None if it is not complete
yet, or raises the problem that ends the connection. Requests that arrive together are taken one
after the other.

Chunked bodies are decoded as they arrive, as strictly as the head. Extensions are skipped and
trailers dropped, as the specification allows; both are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ._answers import ProblemError
from ._head import CHUNKED, Bounds
from ._router import Route, Routes

__all__ = ["ChunkReader", "Reader"]


_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})(?:;[\t -~\x80-\xff]*)?")
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t -~\x80-\xff]*")
_LINE_BYTES = 1_024
_TRAILERS = 16
# Chunks may be as small as a byte, so their number is what takes time: this many in one step.
_STEPS = 384


class ChunkReader:
    """Decodes a chunked body. Feed it bytes until `body` is there; what follows the body is
    returned. `has_more` means that it has bytes that it has not parsed yet: feed it again, even
    with nothing. `steps` is how many parts of chunks it has read since it was fed."""

    def __init__(self, max_bytes: int) -> None:
        self.body: bytes | None = None
        self.has_more: bool = False
        self.steps: int = 0
        self._max_bytes = max_bytes
        self._parts = bytearray()
        self._data = b""
        self._at = 0
        self._left = 0
        self._trailers = 0
        self._step = self._read_size

    def feed(self, data: bytes) -> bytes:
        """Take what belongs to the body. Returns the rest, which is empty until the end."""
        if data:
            self._data, self._at = self._data[self._at :] + data, 0
        self.steps = 1
        while self._step() and self.steps < _STEPS:
            self.steps += 1
        self.has_more = self.steps == _STEPS
        if self.body is None:
            return b""
        return self._data[self._at :]

    @property
    def kept_bytes(self) -> int:
        """The bytes of the body that are kept."""
        return len(self._parts)

    @property
    def unread_bytes(self) -> int:
        """How many bytes it has not parsed yet."""
        return len(self._data) - self._at

    def _read_size(self) -> bool:
        line = self._line()
        if line is None:
            return False
        match = _SIZE.fullmatch(line)
        if match is None:
            raise _malformed("a chunk does not begin with its size in hexadecimal")
        self._left = int(match[1], 16)
        if len(self._parts) + self._left > self._max_bytes:
            raise ProblemError("body_too_large", f"at most {self._max_bytes} bytes are read here")
        self._step = self._read_data if self._left else self._read_trailer
        return True

    def _read_data(self) -> bool:
        taken = self._data[self._at : self._at + self._left]
        self._parts += taken
        self._at += len(taken)
        self._left -= len(taken)
        if not self._left:
            self._step = self._read_end
        return not self._left

    def _read_end(self) -> bool:
        end = self._data[self._at : self._at + 2]
        if not b"\r\n".startswith(end):
            raise _malformed("a chunk is longer than its size")
        if len(end) < 2:
            return False
        self._at += 2
        self._step = self._read_size
        return True

    def _read_trailer(self) -> bool:
        line = self._line()
        if line is None:
            return False
        if not line:
            self.body = bytes(self._parts)
            return False
        self._trailers += 1
        if self._trailers > _TRAILERS or not _TRAILER.fullmatch(line):
            raise _malformed("a trailer is not NAME: VALUE on a line of its own, or one too many")
        return True

    def _line(self) -> bytes | None:
        """The next line without its end, or None if it is not there yet."""
        end = self._data.find(b"\n", self._at, self._at + _LINE_BYTES)
        if end < 0:
            if len(self._data) - self._at >= _LINE_BYTES:
                raise _malformed(f"a line between chunks has more than {_LINE_BYTES} bytes")
            return None
        line = self._data[self._at : end]
        self._at = end + 1
        if line[-1:] != b"\r":
            raise _malformed("a line between chunks does not end with CRLF")
        return line[:-1]


def _malformed(detail: str) -> ProblemError:
    return ProblemError("malformed_request", detail)


_BARE_LF = re.compile(rb"(?<!\r)\n")
_END = b"\r\n\r\n"
_STEPS_PER_UNIT = 12


class Reader:
    """The incoming half of a connection.

    `begin(route, reserved, waits)` is called when the body of a request has not arrived yet: so
    many bytes have to be reserved for it, if it may be long, and the client may wait for 100
    Continue. `unread` is the number of bytes that are kept and not taken, without reserved ones;
    `has_more` says whether `take` could continue without further bytes. `effort` adds up extra work
    of reading, in units; the caller that counts it resets it.
    """

    __slots__ = (
        "_at",
        "_begin",
        "_body",
        "_bounds",
        "_chunks",
        "_data",
        "_length",
        "_reserved",
        "_route",
        "_routes",
        "_searched",
        "effort",
        "has_more",
        "unread",
    )

    def __init__(
        self, routes: Routes, bounds: Bounds, begin: Callable[[Route, int, bool], None]
    ) -> None:
        self._routes = routes
        self._bounds = bounds
        self._begin = begin
        self._data = b""
        self._at = 0
        # The position up to which an incomplete head has been searched.
        self._searched = 0
        # The request whose body is still arriving, and the part that has arrived.
        self._route: Route | None = None
        self._length = 0
        self._body = bytearray()
        self._chunks: ChunkReader | None = None
        self._reserved = 0
        self.has_more: bool = False
        self.unread: int = 0
        self.effort: int = 0

    @property
    def phase(self) -> str:
        """Which part of a request is incomplete: "head", "body", or "" if none is."""
        if self._route is not None:
            return "body"
        return "head" if self.unread else ""

    @property
    def is_idle(self) -> bool:
        """Whether the next bytes begin a request."""
        return self._route is None and not self.unread

    @property
    def held(self) -> bytes:
        """The bytes that are kept, if none of them was taken yet."""
        return self._data if self._route is None and not self._at else b""

    def drop(self) -> None:
        """Drop the bytes that are kept, which have been answered."""
        if self.unread:
            self._advance(len(self._data))

    def feed(self, data: bytes) -> None:
        """Keep what has arrived."""
        if self._route is not None and self._is_short_by(len(data)):
            self._body += data
            self.unread += 0 if self._reserved else len(data)
            return
        if self._data:
            self._searched -= self._at
            self._data, self._at = self._data[self._at :] + data, 0
        else:
            self._data = data
        self.unread += len(data)
        self.has_more = True

    def take(self) -> tuple[Route, bytes] | None:
        """The next request: its route and its body."""
        if self._route is not None:
            return self._take_body(self._route)
        data, start = self._data, self._at
        end = data.find(_END, start)
        if end < 0 or end - start > self._bounds.head_bytes:
            self._await_head()
            return None
        end += 4
        route, length = self._routes.find(data[start:end])
        stop = end + length
        if 0 <= length <= route.max_bytes and stop <= len(data):
            if stop == len(data):
                self._data, self._at, self._searched = b"", 0, 0
                self.unread, self.has_more = 0, False
            else:
                self._at = self._searched = stop
                self.unread = len(data) - stop
            return route, data[end:stop]
        self._advance(end)
        return self._begin_body(route, length)

    def begins_with(self, text: bytes) -> bool:
        """Whether the next bytes are `text`."""
        return self._data.startswith(text, self._at)

    def rest(self) -> bytes:
        """The bytes that were not taken."""
        return self._data[self._at :]

    def forget(self) -> None:
        """Drop everything: the connection is over."""
        self._data, self._at, self._body = b"", 0, bytearray()
        self._chunks = self._route = None
        self.unread, self.has_more = 0, False

    def _is_short_by(self, more: int) -> bool:
        """Whether a body would be incomplete even with so many more bytes."""
        return self._chunks is None and len(self._body) + more < self._length

    def _advance(self, at: int) -> None:
        self.unread = unread = len(self._data) - at
        if unread:
            self._at = self._searched = at
        else:
            self._data, self._at, self._searched, self.has_more = b"", 0, 0, False

    def _await_head(self) -> None:
        self.has_more = False
        if self.unread > self._bounds.head_bytes:
            limit = self._bounds.head_bytes
            raise ProblemError("head_too_large", f"at most {limit} bytes of headers are read")
        if _BARE_LF.search(self._data, max(self._at, self._searched)):
            raise ProblemError("malformed_request", "a line ends with LF instead of CRLF")
        self._searched = len(self._data)

    def _begin_body(self, route: Route, length: int) -> tuple[Route, bytes] | None:
        too_large = length > route.max_bytes
        if route.problem is not None and (too_large or route.expects or not route.is_known):
            # Its body does not matter, so it is neither kept nor requested by 100 Continue.
            raise ProblemError.of(route.problem)
        if too_large:
            raise ProblemError("body_too_large", f"at most {route.max_bytes} bytes are read here")
        expected = route.max_bytes if length == CHUNKED else length
        reserved = expected if expected > self._bounds.body_bytes else 0
        self._begin(route, reserved, route.expects and not self.unread)
        if length == CHUNKED:
            self._chunks = ChunkReader(route.max_bytes)
        self._route, self._length, self._reserved = route, length, reserved
        return self._take_body(route)

    def _take_body(self, route: Route) -> tuple[Route, bytes] | None:
        body = self._rest_of_body() if self._chunks is None else self._rest_of_chunks()
        if body is not None:
            self._route = self._chunks = None
            self._body, self._reserved = bytearray(), 0
            return route, body
        return None

    def _rest_of_body(self) -> bytes | None:
        stop = min(self._at + self._length - len(self._body), len(self._data))
        self._body += self._data[self._at : stop]
        self._advance(stop)
        if len(self._body) == self._length:
            return bytes(self._body)
        self.has_more = False
        if not self._reserved:
            self.unread = len(self._body)
        return None

    def _rest_of_chunks(self) -> bytes | None:
        chunks = self._chunks
        assert chunks is not None
        rest = chunks.feed(self._data[self._at :])
        self.effort += chunks.steps // _STEPS_PER_UNIT
        self._data, self._at, self._searched = rest, 0, 0
        if chunks.body is not None:
            self.unread, self.has_more = len(rest), bool(rest)
            return chunks.body
        self.has_more = chunks.has_more
        self.unread = chunks.unread_bytes + (0 if self._reserved else chunks.kept_bytes)
        return None
