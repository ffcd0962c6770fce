"""The bounds of everything that a client can make grow, and of frames without progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ._frames import DEFAULT_WINDOW, MAX_WINDOW
from ._streams import KnownPath, Room

__all__ = ["Allowance", "Http2Options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Http2Options:
    """What all connections of a server have in common: the known paths, and the bounds."""

    routes: Mapping[bytes, KnownPath] = field(default_factory=dict)

    room: Room = field(default_factory=lambda: Room(64 * 2**20))
    """Bodies that are not complete, beyond `held_bytes` of each connection, and answers that wait,
    beyond `pending_bytes`."""

    concurrent_streams: int = 256
    """Concurrent requests; one more is refused, and may be retried."""

    header_list_bytes: int = 16_384
    """The decoded fields of a request: their text and 32 bytes each."""

    header_fields: int = 128

    header_block_bytes: int = 32_768
    """The encoded fields of a request; a longer block ends the connection."""

    header_frames: int = 16
    """Frames of one block: HEADERS and its CONTINUATIONs."""

    stream_window: int = 65_535
    connection_window: int = 2**20

    body_bytes: int = 32_768
    """The body of a request to an unknown path."""

    held_bytes: int = 65_536
    """Bytes of bodies that each connection may hold before it uses the shared `Room`."""

    pending_bytes: int = 2**20
    """Bytes of answers that wait for the client's windows, for each connection before it uses the
    shared `Room`."""

    outgoing_bytes: int = 2**18
    """Nothing is read while more than this waits to be written."""

    turn_requests: int = 64
    turn_bytes: int = 16_384

    control_burst: int = 1_000
    controls_per_s: int = 100
    controls_per_request: int = 8
    """Frames that make no progress on a request: so many at once, later so many a second, and so
    many for each answered request and each part of an answer."""

    reset_burst: int = 500
    resets_per_s: int = 50
    """Streams that end by a reset. Each answered request earns one more."""

    settings_ms: int = 10_000
    """Time for the preface to arrive, and for our settings to be acknowledged."""

    head_ms: int = 10_000
    """Time for a frame, and for a block of fields, from its first byte to its last."""

    request_ms: int = 30_000
    """Time for a request, from its head to its end. Streaming ones have no limit."""

    write_ms: int = 10_000
    """Time for a client to open its window for an answer."""

    def __post_init__(self) -> None:
        if not DEFAULT_WINDOW <= self.stream_window <= MAX_WINDOW:
            raise ValueError("stream_window is from 65,535, which clients begin with, to 2**31 - 1")
        if not DEFAULT_WINDOW <= self.connection_window <= MAX_WINDOW:
            raise ValueError("connection_window is from 65,535 to 2**31 - 1")


class Allowance:
    """A token bucket: so many at once, and so many a second."""

    __slots__ = ("_burst", "_level", "_per_s", "_since_ms")

    def __init__(self, burst: int, per_s: int, now_ms: int) -> None:
        self._burst = self._level = burst * 1000
        self._per_s = per_s
        self._since_ms = now_ms

    def spend(self, now_ms: int) -> bool:
        elapsed_ms = now_ms - self._since_ms
        if elapsed_ms > 0:
            # It is full after the time that fills it from empty.
            elapsed_ms = min(elapsed_ms, self._burst)
            self._level = min(self._burst, self._level + elapsed_ms * self._per_s)
            self._since_ms = now_ms
        self._level -= 1000
        return self._level >= 0

    def earn(self, amount: int) -> None:
        self._level = min(self._burst, self._level + amount * 1000)
