"""Ending a connection that the library would keep.

A client may ask and never take the replies: it grants no room for them, and answers every ping. The
library keeps such replies for as long as the connection lasts, and has no call that ends one. But a
connection is a file of this process like any other, and can be shut by its number, upon which the
library finds it ended and lets go of all that it kept.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Collection
from urllib.parse import unquote

__all__ = ["cut"]

_FILES = "/dev/fd"


def cut(port: int, peers: Collection[str]) -> int:
    """Shut the connections of our `port` to `peers`, named as the library names them. Returns how
    many; none on systems that do not list the files of a process."""
    wanted = {unquote(peer) for peer in peers}
    done = 0
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(_FILES):
            # A file may be gone, or be no socket, by the time that it is looked at.
            with contextlib.suppress(OSError, ValueError):
                done += _cut(int(name), port, wanted)
    return done


def _cut(number: int, port: int, wanted: set[str]) -> bool:
    twin = os.dup(number)
    try:
        line = socket.socket(fileno=twin)
    except OSError:
        os.close(twin)
        return False
    with line:
        if line.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        if line.getsockname()[1] != port or peer_name(line.getpeername()) not in wanted:
            return False
        line.shutdown(socket.SHUT_RDWR)
        return True


def peer_name(address: tuple[str, int]) -> str:
    """An address as the library writes it, apart from its percent signs."""
    host = ipaddress.ip_address(address[0].partition("%")[0])
    host = getattr(host, "ipv4_mapped", None) or host
    if host.version == 4:
        return f"ipv4:{host}:{address[1]}"
    return f"ipv6:[{host}]:{address[1]}"
