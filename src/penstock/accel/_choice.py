"""Whether compiled modules may be used in this process.

Compiled steps are atomic because the interpreter lock is held. On a free-threaded interpreter that
runs without this lock they are not used; the interpreted path has locks of its own. The lock is
looked up before an extension is imported, because the import alone would switch the lock on for the
whole process.
"""

from __future__ import annotations

import os
import sys

__all__ = ["interpreted_because"]


def _ruled_out() -> str:
    if os.environ.get("PENSTOCK_PURE", "") not in ("", "0"):
        return "PENSTOCK_PURE is set"
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return (
            "this free-threaded Python runs without the interpreter lock (GIL), which compiled "
            "steps rely on; set PYTHON_GIL=1 to use them"
        )
    return ""


interpreted_because: str = _ruled_out()
"""Why compiled modules must not be used in this process; empty if they may be."""
