"""Reading a file from a configured path: only regular files, and only up to a size.

A path may lead to a FIFO or a device, whose reading may block or never end, and a file may be
larger than memory. So the type of a file is checked before and after it is opened, and a file that
is too long is not read to its end.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

__all__ = ["read_ascii", "read_regular"]


# Opening must not block: what was checked may have been replaced since.
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_BINARY", 0)
)
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def read_regular(path: str | Path, max_bytes: int) -> bytes:
    """The content of a regular file of at most `max_bytes`. Raises OSError with the reason as its
    `strerror`."""
    _require_regular(os.stat(path), path)
    number = os.open(path, _FLAGS)
    with open(number, "rb") as file:
        found = os.fstat(number)
        _require_regular(found, path)
        # The size of a generated file, as in /proc, is 0.
        content = b"" if found.st_size > max_bytes else file.read(max_bytes + 1)
    if found.st_size > max_bytes or len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes} bytes", str(path))
    return content


def read_ascii(path: str | Path, max_bytes: int) -> str:
    """As `read_regular`, for an ASCII text such as a token."""
    try:
        return read_regular(path, max_bytes).decode("ascii")
    except UnicodeDecodeError as error:
        raise OSError(errno.EILSEQ, f"it is not ASCII, at byte {error.start}", str(path)) from None


def _require_regular(found: os.stat_result, path: str | Path) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "no file")
        raise OSError(errno.EINVAL, f"it is {kind}; a regular file is needed", str(path))
