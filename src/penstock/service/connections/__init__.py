"""Connections as every protocol needs them: bounded, shared out, and closed in order.

A protocol brings what its bytes mean (`Inbox` and `Connection.serve`) and what it says when it
refuses; what a client may make grow, and whose turn it is, is decided here. Read bounds.py,
sharing.py, connection.py and listener.py in this order.
"""

from __future__ import annotations

from .bounds import UNIT_BYTES, ConnectionBounds
from .connection import Connection, Inbox
from .listener import Listener
from .sharing import ClientGroup

__all__ = [
    "UNIT_BYTES",
    "ClientGroup",
    "Connection",
    "ConnectionBounds",
    "Inbox",
    "Listener",
]
