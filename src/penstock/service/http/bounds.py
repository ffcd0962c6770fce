"""How much one client, and all of them together, may ask of the door.

Whatever a client can make grow has a number here: bytes, counts and seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Bounds"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The defaults are what `penstock serve` runs with."""

    head_bytes: int = 16_384
    """A request line and its headers; the longest key fits in a path, percent-encoded."""

    head_fields: int = 64

    body_bytes: int = 32_768
    """A body with one key; the longest key fits, written in JSON's longest form."""

    batch_bytes: int = 5 * 2**20
    """A body with many keys; 1,000 of the longest fit."""

    held_bytes: int = 64 * 2**20
    """Unfinished bodies, all connections together."""

    connections: int = 16_384

    in_flight: int = 1_024
    """Requests that wait for the store. More are shed, not queued."""

    head_s: float = 10.0
    """From a request's first byte to the end of its headers."""

    request_s: float = 30.0
    """From a request's first byte to its last."""

    idle_s: float = 75.0
    """Between requests."""

    write_s: float = 10.0
    """For a client to take what it was sent."""

    drain_s: float = 10.0
    """From the signal to the end, when stopping."""

    linger_s: float = 1.0
    """How long, when stopping, a quiet connection may still bring a request."""
