"""Connections, as every protocol needs them: bounded, sharing the event loop, and closed in order.

A protocol parses and answers bytes (`Inbox` and `ClientConnection.serve`) and refuses clients. The
bounds, and which connection is served next, are decided here. Read _sharing.py,
_connection.py and _listener.py in this order; _http2.py is the connection of HTTP/2, which both
servers use.
"""

from __future__ import annotations

from ._connection import ClientConnection, Inbox
from ._http2 import Http2Application, Http2Client
from ._listener import Listener
from ._sharing import UNIT_BYTES, ClientGroup, ConnectionBounds

__all__ = [
    "UNIT_BYTES",
    "ClientConnection",
    "ClientGroup",
    "ConnectionBounds",
    "Http2Application",
    "Http2Client",
    "Inbox",
    "Listener",
]
