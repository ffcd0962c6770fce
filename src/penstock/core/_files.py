"""Reading a file that somebody named: a regular one, and no more of it than is wanted.

A path may lead to a FIFO or a device, whose reading waits for somebody or never ends, and a file
may be larger than memory. So what is no regular file is not opened, what turns out to be none is
not read, and a long file is not read to its end.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

__all__ = ["read_ascii", "read_regular"]


# The second look, at what was opened, finds what took the file's place after the first.
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
    """The content of a regular file of at most `max_bytes`.

    Raises OSError, whose `strerror` says why not. Waits for the disk, and for nothing else.
    """
    _require_regular(os.stat(path), path)
    number = os.open(path, _FLAGS)
    with open(number, "rb") as file:
        found = os.fstat(number)
        _require_regular(found, path)
        # Some systems give no size for a file whose content they make up when it is read.
        content = b"" if found.st_size > max_bytes else file.read(max_bytes + 1)
    if found.st_size > max_bytes or len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes} bytes", str(path))
    return content


def read_ascii(path: str | Path, max_bytes: int) -> str:
    """As `read_regular`, for a text of plain characters such as a token."""
    try:
        return read_regular(path, max_bytes).decode("ascii")
    except UnicodeDecodeError as error:
        raise OSError(errno.EILSEQ, f"it is not ASCII, at byte {error.start}", str(path)) from None


def _require_regular(found: os.stat_result, path: str | Path) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "no file")
        raise OSError(errno.EINVAL, f"it is {kind}; a regular file is needed", str(path))
