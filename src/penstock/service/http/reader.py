"""Bytes in, requests out. No I/O.

`feed` takes what has arrived; `take` returns the next whole request, None when it is not all there
yet, or raises the problem that ends the connection. Requests that arrive together are taken one
after the other, at the pace of whoever answers them.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from .bounds import Bounds
from .chunks import ChunkReader
from .head import CHUNKED
from .plan import Plan, Plans
from .problem import ProblemError

__all__ = ["Reader"]

_BARE_LF = re.compile(rb"(?<!\r)\n")
_END = b"\r\n\r\n"


class Reader:
    """The incoming half of a connection.

    `hold(bytes)` reserves room for a long body, and raises if there is none; a negative number
    gives it back. `urge()` is called when the client waits to be told to go on.
    """

    __slots__ = (
        "_at",
        "_body",
        "_bounds",
        "_chunks",
        "_data",
        "_held",
        "_hold",
        "_plan",
        "_plans",
        "_urge",
        "more",
    )

    def __init__(
        self,
        plans: Plans,
        bounds: Bounds,
        hold: Callable[[int], None],
        urge: Callable[[], None],
    ) -> None:
        self._plans = plans
        self._bounds = bounds
        self._hold = hold
        self._urge = urge
        self._data = b""
        self._at = 0
        # The request whose body is still arriving, and what there is of it.
        self._plan: Plan | None = None
        self._body = bytearray()
        self._chunks: ChunkReader | None = None
        self._held = 0
        # Whether there are bytes behind the request that was taken last.
        self.more: bool = False

    @property
    def buffered(self) -> int:
        """Bytes that were fed and not yet taken."""
        return len(self._data) - self._at

    @property
    def phase(self) -> str:
        """Which part of a request is incomplete: "head", "body", or "" if none is."""
        if self._plan is not None:
            return "body"
        return "head" if self._at < len(self._data) else ""

    def feed(self, data: bytes) -> bool:
        """Returns whether a new request begins with these bytes."""
        if self._at == len(self._data):
            self._data, self._at = data, 0
            return self._plan is None
        self._data, self._at = self._data[self._at :] + data, 0
        return False

    def take(self) -> tuple[Plan, bytes] | None:
        """The next request: what to do, and the body to do it with."""
        if self._plan is not None:
            return self._take_body(self._plan)
        data, start = self._data, self._at
        end = data.find(_END, start)
        if end < 0 or end - start > self._bounds.head_bytes:
            self._await_head()
            return None
        end += 4
        plan = self._plans[data[start:end]]
        length = plan.length
        stop = end + length
        if 0 <= length <= plan.max_bytes and stop <= len(data):
            self._at = stop
            self.more = stop < len(data)
            return plan, data[end:stop]
        self._at = end
        return self._begin_body(plan)

    def release(self) -> None:
        """Give back what is reserved; the connection is over."""
        self._hold(-self._held)
        self._held = 0

    def _await_head(self) -> None:
        if len(self._data) - self._at > self._bounds.head_bytes:
            limit = self._bounds.head_bytes
            raise ProblemError("head_too_large", f"at most {limit} bytes of headers are read")
        if _BARE_LF.search(self._data, self._at):
            raise ProblemError("malformed_request", "a line ends with LF instead of CRLF")

    def _begin_body(self, plan: Plan) -> tuple[Plan, bytes] | None:
        if plan.length > plan.max_bytes:
            raise ProblemError("body_too_large", f"at most {plan.max_bytes} bytes are read here")
        expected = plan.max_bytes if plan.length == CHUNKED else plan.length
        if expected > self._bounds.body_bytes:
            self._hold(expected)
            self._held = expected
        if plan.length == CHUNKED:
            self._chunks = ChunkReader(plan.max_bytes)
        self._plan = plan
        if plan.expects and not self.buffered:
            self._urge()
        return self._take_body(plan)

    def _take_body(self, plan: Plan) -> tuple[Plan, bytes] | None:
        if self._chunks is not None:
            rest = self._chunks.feed(self._data[self._at :])
            self._data, self._at = rest, 0
            body = self._chunks.body
            if body is None:
                return None
        else:
            stop = self._at + plan.length - len(self._body)
            self._body += self._data[self._at : stop]
            self._at = min(stop, len(self._data))
            if len(self._body) < plan.length:
                return None
            body = bytes(self._body)
        self._plan = self._chunks = None
        self._body = bytearray()
        self.release()
        self.more = self._at < len(self._data)
        return plan, body
