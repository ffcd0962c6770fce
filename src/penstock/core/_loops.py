"""The running event loop, which must be one of asyncio.

Imported only by async callers, because importing asyncio takes time.
"""

from __future__ import annotations

import asyncio

from ._errors import UnsupportedError

__all__ = ["running_loop"]


def running_loop() -> asyncio.AbstractEventLoop:
    """The asyncio event loop of this thread. Every async call that needs a loop gets it here, so
    that under another kind of loop the caller reads what to do instead."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise UnsupportedError(
            "async calls of Penstock need a running asyncio event loop, and this thread has none; "
            "under trio or another kind of loop use the sync calls in a worker thread, such as "
            "`await trio.to_thread.run_sync(limiter.check, key)`"
        ) from None
