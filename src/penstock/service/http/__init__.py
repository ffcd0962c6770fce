"""The HTTP server. Read _head.py, _router.py, _reader.py and _server.py in this order."""

from __future__ import annotations

from ._head import Bounds
from ._pages import Pool
from ._server import HttpServer

__all__ = ["Bounds", "HttpServer", "Pool"]
