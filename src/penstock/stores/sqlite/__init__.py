"""SQLite: limits that outlive the process, with nothing to install.

`store` is the door, `database` the file and its statements, `worker` the thread that serves async
callers, `faults` the one place where SQLite's errors become ours.
"""

from .store import SqliteStore

__all__ = ["SqliteStore"]
