"""Whether the servers can be opened where they were asked for, found out before anything is.

Workers share their ports (SO_REUSEPORT), and so would another service that does the same: both
would be served to, each from its own store, and nobody would notice. So every port is first bound
without sharing it, which fails while anybody listens there.
"""

from __future__ import annotations

import errno
import socket
from typing import Any

from ..core.validation import reject
from .options import ServeOptions

__all__ = ["require_free_ports"]


def require_free_ports(options: ServeOptions) -> None:
    """Refuse a host that is not of this machine, and a port that is taken."""
    servers = (
        ("HTTP", "--http-port", options.http_port),
        ("gRPC", "--grpc-port", options.grpc_port),
    )
    for server, flag, port in servers:
        if port:
            _require_free(options.host, port, server, flag)


def _require_free(host: str, port: int, server: str, flag: str) -> None:
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    absent = None
    found = _addresses(host, port)
    for family, address in found:
        error = _trouble(family, address)
        if error is None:
            continue
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            absent = absent or error
            found = [other for other in found if other[1] != address]
            continue
        reject(f"cannot serve {server} on {place}: {error.strerror}; choose another {flag}")
    if absent is not None and not found:
        reject(f"--host {host} is not an address of this machine: {absent.strerror}")


def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, Any]]:
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        reject(f"--host {host!r} is not an address of this machine: {error}")
    return [(family, address) for family, _, _, _, address in found]


def _trouble(family: socket.AddressFamily, address: Any) -> OSError | None:
    """What keeps a socket from being bound there."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # Connections that ended a moment ago are no reason to wait.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(address)
    except OSError as error:
        return error
    return None
