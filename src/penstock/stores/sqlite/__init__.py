"""SQLite: limits that outlive the process, with nothing to install.

Checks are exact across the threads and processes of one host.
"""

# `store` is what callers see, `database` the file and its statements, `worker` the thread that
# serves async callers, `faults` the one place where SQLite's errors become ours.

from ._store import SqliteStore

__all__ = ["SqliteStore"]
