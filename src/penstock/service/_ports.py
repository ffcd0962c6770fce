"""Whether the servers can be opened where they were asked for, found out before anything is.

Workers share their ports (SO_REUSEPORT), and so would another service that does the same: both
would be served to, each from its own store, and nobody would notice. So every port is first bound
without sharing it, which fails while anybody listens there.

How many connections each server may have, so that all of them fit into the files that the system
lets this process open. One that could take them all would shut the other, and the store out.
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


GRPC_CONNECTIONS = 2_048
"""As many as the gRPC server is made for; those of the HTTP server are in its bounds."""

# Files that are not clients: the store, logs, ports, connections that are just being turned away.
_RESERVED = 256


def connections(*, http: bool, grpc: bool) -> tuple[int, int]:
    """For the HTTP server and for the gRPC server: what they are made for, or what the system's
    limit leaves of it."""
    wanted = (Bounds().all_connections if http else 0, GRPC_CONNECTIONS if grpc else 0)
    files = _files(sum(wanted) + _RESERVED)
    return wanted if files is None else shares(wanted, files)


def shares(wanted: tuple[int, int], files: int) -> tuple[int, int]:
    """What each gets of so many files, in proportion to what it wants."""
    free = files - min(_RESERVED, files // 2)
    if sum(wanted) <= free:
        return wanted
    first, second = (max(1, part * free // sum(wanted)) if part else 0 for part in wanted)
    return first, second


def _files(needed: int) -> int | None:
    """The system's limit of open files, raised as far as it may be; None if there is none."""
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
