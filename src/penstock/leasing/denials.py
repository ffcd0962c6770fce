"""Remembered denials: an abusive client must not turn its flood into load on the store.

A denial holds for its `retry_after_ms`, on this node's steady clock, reckoned from the moment the
store was asked, so that it never holds longer here than there. It answers requests of at least the
denied cost; a smaller one may still fit and has to be asked for. Bounded: the oldest go first.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict

from ..core.decision import Decision
from ..core.keys import kept_key

__all__ = ["Denials"]


class Denials:
    """The denials of one node, by key."""

    def __init__(self, max_keys: int) -> None:
        self._max_keys = max_keys
        # key: (until, from which cost on, the denial)
        self._held: OrderedDict[str | bytes, tuple[int, int, Decision]] = OrderedDict()

    def recall(self, key: str, cost: int, now: int) -> Decision | None:
        """The denial that still holds for such a request at `now`, its wait brought up to date."""
        held = self._held.get(kept_key(key))
        if held is None or cost < held[1]:
            return None
        until, _, denial = held
        if now >= until:
            return None
        return Decision(False, denial.limit, denial.remaining, denial.reset_at, until - now)

    def remember(self, key: str, asked_at: int, cost: int, denial: Decision) -> None:
        name = kept_key(key)
        # Without a lock: each line is one step, and any order of several threads' steps will do.
        self._held.pop(name, None)
        self._held[name] = (asked_at + denial.retry_after_ms, cost, denial)
        if len(self._held) > self._max_keys:
            with contextlib.suppress(KeyError):
                self._held.popitem(last=False)

    def forget(self, key: str) -> None:
        self._held.pop(kept_key(key), None)

    def __len__(self) -> int:
        return len(self._held)
