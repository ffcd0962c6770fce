"""How many connections each server may have, so that all of them fit into the files that the system
lets this process open. One that could take them all would shut the other, and the store out."""

from __future__ import annotations

import contextlib

from .http import Bounds

__all__ = ["GRPC_CONNECTIONS", "connections", "shares"]

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
