"""The HTTP door. Read head.py, reader.py, connection.py and door.py in this order."""

from __future__ import annotations

from .bounds import Bounds
from .door import HttpDoor
from .pages import Pool

__all__ = ["Bounds", "HttpDoor", "Pool"]
