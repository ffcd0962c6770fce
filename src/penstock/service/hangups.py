"""SIGHUP: "read your files again". Several parts of a service may want to hear of it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

__all__ = ["heard"]

_listeners: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}


@contextlib.contextmanager
def heard(listener: Callable[[], None]) -> Iterator[None]:
    """Have the running loop call `listener` on each SIGHUP while the block is open. Signals reach
    the main thread only, and some systems have no SIGHUP: there it is never called."""
    loop = asyncio.get_running_loop()
    listeners = _listeners.setdefault(loop, [])
    listeners.append(listener)
    if len(listeners) == 1:
        _listen(loop)
    try:
        yield
    finally:
        listeners.remove(listener)
        if not listeners:
            del _listeners[loop]
            with contextlib.suppress(AttributeError, NotImplementedError, RuntimeError):
                loop.remove_signal_handler(signal.SIGHUP)


def _listen(loop: asyncio.AbstractEventLoop) -> None:
    if threading.current_thread() is threading.main_thread():
        with contextlib.suppress(AttributeError, NotImplementedError):
            loop.add_signal_handler(signal.SIGHUP, _tell, loop)


def _tell(loop: asyncio.AbstractEventLoop) -> None:
    for listener in list(_listeners.get(loop, ())):
        listener()
