"""What may lie where a file is expected."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path


def _socket(path: Path) -> None:
    # The name of a socket is short; the folder that it stands in may not be.
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


def _huge(path: Path) -> None:
    """A terabyte that takes no room."""
    with path.open("wb") as file:
        file.truncate(1 << 40)


KINDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "FIFO": (os.mkfifo, "it is a FIFO; a regular file is needed"),
    "directory": (Path.mkdir, "it is a directory; a regular file is needed"),
    "socket": (_socket, "it is a socket; a regular file is needed"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "it is a device; a regular file is"),
    "dangling symlink": (lambda path: path.symlink_to("nowhere"), "No such file or directory"),
    "symlink to itself": (lambda path: path.symlink_to(path.name), "symbolic links"),
    "nothing": (lambda path: None, "No such file or directory"),
    "a terabyte": (_huge, "it is larger than"),
}
"""By name: how to make it, and what is said of it."""


def replace(path: Path, kind: str) -> str:
    """Put something of that kind where `path` is. Returns what will be said of it."""
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
    make, told = KINDS[kind]
    make(path)
    return told
