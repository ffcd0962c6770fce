"""A state outside of the process: text with the strategy's name and the instant of its end."""

from __future__ import annotations

from ._record import FORMAT, MARGIN_MS, foreign_state, keep_ms, pack, restore, unpack

__all__ = ["FORMAT", "MARGIN_MS", "foreign_state", "keep_ms", "pack", "restore", "unpack"]
