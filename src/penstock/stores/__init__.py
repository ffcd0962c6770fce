"""Where counts live: one package per backend, and what a store of one's own is built with."""

from __future__ import annotations

from ..core._flow import Flow, adrive, drive
from ..core._store import STATS, from_its_url
from ._opening import open_store

__all__ = ["STATS", "Flow", "adrive", "drive", "from_its_url", "open_store"]
