"""What this process last saw under its keys, so that the next write need not be preceded by a read.

A write names the version it was decided on, so one that was decided on an old record is refused
and costs what the read would have cost; a decision that needs no write, such as a denial, is never
taken from here. A key whose memory has misled is forgotten until it has been read again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from .requests import Held

__all__ = ["Memory"]

_MOST_KEYS = 4096
_LONGEST_RECORD = 4096


class Memory:
    """The records of the keys used last; of at most `most_keys`, which may be 0."""

    def __init__(self, most_keys: int = _MOST_KEYS) -> None:
        self._most = most_keys
        self._lock = threading.Lock()
        self._held: OrderedDict[str, Held] = OrderedDict()

    def recall(self, key: str) -> Held | None:
        with self._lock:
            held = self._held.get(key)
            if held is not None:
                self._held.move_to_end(key)
            return held

    def keep(self, key: str, held: Held | None) -> None:
        if held is None or len(held.record) > _LONGEST_RECORD:
            self.forget(key)
            return
        with self._lock:
            self._held[key] = held
            self._held.move_to_end(key)
            while len(self._held) > self._most:
                self._held.popitem(last=False)

    def forget(self, key: str) -> None:
        with self._lock:
            self._held.pop(key, None)

    def clear(self) -> None:
        with self._lock:
            self._held.clear()
