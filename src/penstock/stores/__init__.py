"""The stores, one module or package per backend, and the parts to build one with."""

from __future__ import annotations

from ..core._flow import Flow, adrive, drive
from ..core._store import STATS, from_its_url
from ._opening import open_store

__all__ = ["STATS", "Flow", "adrive", "drive", "from_its_url", "open_store"]
