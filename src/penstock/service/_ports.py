"""Ports and connections of the servers: checked and divided before anything is opened.

Workers share their ports (SO_REUSEPORT), and would share them with another service that does the
same: connections would go to either, without an error. So every port is first bound without
SO_REUSEPORT, which fails if anything listens on it.

The connections of all servers together have to fit into the system's limit of open files, so each
server has a bound: otherwise one could take all files and shut out the other server and the store.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from typing import Any

from ..core._validation import reject
from ._options import ServeOptions
from .http import Bounds

__all__ = ["GRPC_CONNECTIONS", "connections", "require_free_ports", "shares"]


def require_free_ports(options: ServeOptions) -> None:
    """Reject a host that is not an address of this machine, and a port that is in use."""
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
    """The error when a socket is bound there; None if it can be."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # Connections in TIME_WAIT do not matter.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(address)
    except OSError as error:
        return error
    return None


GRPC_CONNECTIONS = 2_048
"""How many connections the gRPC server takes; for the HTTP server see `Bounds`."""

# Files that are not connections of clients: the store, logs, ports, connections being rejected.
_RESERVED = 256


def connections(*, http: bool, grpc: bool) -> tuple[int, int]:
    """The number of connections for the HTTP server and for the gRPC server, reduced if the limit
    of open files requires it."""
    wanted = (Bounds().all_connections if http else 0, GRPC_CONNECTIONS if grpc else 0)
    files = _files(sum(wanted) + _RESERVED)
    return wanted if files is None else shares(wanted, files)


def shares(wanted: tuple[int, int], files: int) -> tuple[int, int]:
    """The share of each in this many files, in proportion to what it wants."""
    free = files - min(_RESERVED, files // 2)
    if sum(wanted) <= free:
        return wanted
    first, second = (max(1, part * free // sum(wanted)) if part else 0 for part in wanted)
    return first, second


def _files(needed: int) -> int | None:
    """The limit of open files, raised as far as needed and allowed; None if there is none."""
    try:
        import resource
    except ImportError:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return None
    if hard != resource.RLIM_INFINITY:
        needed = min(needed, hard)
    if soft < needed:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
            soft = needed
    return soft
