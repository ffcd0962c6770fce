"""Every fault of SQLite, as one of ours. No other file translates.

SQLite's texts are part of its interface and older than its error codes in Python, which 3.10
lacks; so the texts decide.
"""

from __future__ import annotations

import os
import sqlite3

from ...core.errors import ConfigInvalidError, PenstockError, StoreUnavailableError

__all__ = ["LockedError", "interrupted", "is_busy", "late", "locked", "mapped", "not_ours"]

_SETTLED = "nothing was charged"
_DOUBT = "the request may have been charged"


class LockedError(StoreUnavailableError):
    """Another process kept the lock; it may be free the next moment."""


_FULL = "is full"
_ADVICE = (
    ("readonly", "the file or its folder cannot be written; give this process the right to"),
    (_FULL, "make room on the disk"),
    ("unable to open", "it must be a file, in a folder that is writable for this process"),
    ("malformed", "the file is damaged; put it aside, and the store starts a new one"),
    ("disk I/O error", "the disk fails, or the file was moved or cut while in use"),
    ("no such table", "the file was replaced while in use; close the store"),
)


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another process holds the lock, so that trying again will do."""
    text = str(error)
    return "locked" in text or "busy" in text


def mapped(error: sqlite3.Error, path: str) -> PenstockError:
    text = str(error)
    if "not a database" in text:
        return not_ours(path, text)
    folder = os.path.dirname(path)
    if "unable to open" in text and not os.path.isdir(folder):
        return ConfigInvalidError(
            f"SQLite at {path}: there is no folder {folder}; create it, or name another path"
        )
    advice = "".join(f"; {words}" for sign, words in _ADVICE if sign in text)
    return StoreUnavailableError(
        f"SQLite at {path}: {text}{advice}; {_SETTLED}", reason="full" if _FULL in text else "away"
    )


def locked(path: str, timeout_ms: int) -> LockedError:
    return LockedError(
        f"SQLite at {path}: database is locked by another process for over {timeout_ms} ms; "
        f"{_SETTLED}"
    )


def late(path: str, timeout_ms: int, *, in_doubt: bool) -> StoreUnavailableError:
    effect = _DOUBT if in_doubt else _SETTLED
    return StoreUnavailableError(f"SQLite at {path}: no turn within {timeout_ms} ms; {effect}")


def interrupted(path: str) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"SQLite at {path}: the thread that was committing was interrupted; {_DOUBT}"
    )


def not_ours(path: str, detail: str) -> ConfigInvalidError:
    return ConfigInvalidError(
        f"{path} is not a store of this version ({detail}); give the store a file of its own"
    )
