"""A body that comes in chunks, taken apart as it arrives, and as strictly as the head.

Extensions are read over and trailers thrown away, as the specification allows; both are bounded.
"""

from __future__ import annotations

import re

from .problem import ProblemError

__all__ = ["ChunkReader"]

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})(?:;[\t -~\x80-\xff]*)?")
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t -~\x80-\xff]*")
_LINE_BYTES = 1_024
_TRAILERS = 16
# Chunks may be as small as a byte, so their number is what takes time: this many in one step.
_STEPS = 384


class ChunkReader:
    """Feed it bytes until `body` is there; what lies behind the body is returned. `has_more` means
    that it has bytes that it has not looked at: feed it, be it with nothing. `steps` is how many
    parts of chunks it has read since it was fed."""

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
        """Of the body."""
        return len(self._parts)

    @property
    def unread_bytes(self) -> int:
        """That it has not looked at."""
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
