"""SIGHUP: "read your files again". Several parts of a service may want to hear of it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["heard"]

_listeners: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}
_before: dict[asyncio.AbstractEventLoop, Any] = {}


@contextlib.contextmanager
def heard(listener: Callable[[], None]) -> Iterator[None]:
    """Have the running loop call `listener` on each SIGHUP while the block is open. Signals reach
    the main thread only, and some systems have no SIGHUP: there it is never called. Afterwards a
    hangup means what it meant before: one that was ignored must not end a service that is still
    answering its last calls."""
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
            _listen_no_more(loop)


def _listen(loop: asyncio.AbstractEventLoop) -> None:
    if threading.current_thread() is threading.main_thread():
        with contextlib.suppress(AttributeError, NotImplementedError):
            before = signal.getsignal(signal.SIGHUP)
            loop.add_signal_handler(signal.SIGHUP, _tell, loop)
            _before[loop] = before


def _listen_no_more(loop: asyncio.AbstractEventLoop) -> None:
    if loop in _before:
        with contextlib.suppress(RuntimeError):
            loop.remove_signal_handler(signal.SIGHUP)
        signal.signal(signal.SIGHUP, _before.pop(loop))


def _tell(loop: asyncio.AbstractEventLoop) -> None:
    for listener in list(_listeners.get(loop, ())):
        listener()
