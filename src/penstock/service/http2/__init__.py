"""HTTP/2 without I/O: bytes go in and requests come out, answers go in and bytes come out.

Nothing here opens a socket, reads a clock or knows what a request is about, and nothing of the
package is imported: `service/http` and `service/grpc` put it between their connections and the
service. `_connection` reads frames and keeps flow control and bounds, `_frames` has their format,
`_bounds` the numbers, `_streams` the requests, `_hpack` the fields.

Connections exist twice, interpreted and compiled, and do the same with the same bytes; `compiled`
says which of them these names are, by the rule of `accel/_choice.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...accel._choice import interpreted_because
from ._frames import PREFACE, ErrorCode
from ._hpack import HeaderBlock
from ._streams import KnownPath

__all__ = [
    "PREFACE",
    "ErrorCode",
    "HeaderBlock",
    "Http2Connection",
    "Http2Options",
    "KnownPath",
    "Room",
    "compiled",
]


def _load() -> Any:
    if interpreted_because:
        return None
    try:
        from ...accel import _http2
    except ImportError:
        return None
    return _http2


compiled: Any = _load()
"""The compiled module, or None."""

if TYPE_CHECKING or compiled is None:
    from ._bounds import Http2Options
    from ._connection import Http2Connection
    from ._streams import Room
else:
    Http2Connection = compiled.Http2Connection
    Http2Options = compiled.Http2Options
    Room = compiled.Room
