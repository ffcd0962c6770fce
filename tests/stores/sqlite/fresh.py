"""An empty SqliteStore on a file that goes with it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from penstock.stores.sqlite import SqliteStore


class FreshSqliteStore(SqliteStore):
    """Its folder is removed when it is closed."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-sqlite-"))
        super().__init__(self._folder / "limits.db", timeout_ms=30_000)

    def close(self) -> None:
        super().close()
        shutil.rmtree(self._folder, ignore_errors=True)
