"""How much one request may bring, and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass

from ..connections import ConnectionBounds

__all__ = ["Bounds"]


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
