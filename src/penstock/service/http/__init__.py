"""The HTTP server. Read head.py, router.py, reader.py, connection.py, server.py in this order."""

from __future__ import annotations

from ._bounds import Bounds
from ._pages import Pool
from ._server import HttpServer

__all__ = ["Bounds", "HttpServer", "Pool"]
