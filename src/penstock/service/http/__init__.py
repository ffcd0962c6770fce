"""The HTTP server. Read head.py, router.py, reader.py, connection.py, server.py in this order."""

from __future__ import annotations

from .bounds import Bounds
from .pages import Pool
from .server import HttpServer

__all__ = ["Bounds", "HttpServer", "Pool"]
