"""What the keys of a node spend, for a batch that learns; a fixed batch needs none of it.

Spending happens on the hot path, which leaves behind one number per key: the credits left. What
was served since a lease is the difference to what was held after it, also when the rest went void.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict

from ..core.keys import kept_key
from .batch import AdaptiveBatch

__all__ = ["Demand"]


class Demand:
    """The batch of each key, and what it is learned from."""

    def __init__(self, batch: int | AdaptiveBatch, max_keys: int) -> None:
        self.fixed: int = batch if isinstance(batch, int) else 0
        self.learns: bool = not self.fixed
        self._adaptive = None if isinstance(batch, int) else batch
        self._max_keys = max_keys
        self._begin()

    def _begin(self) -> None:
        # key: [held after the last lease, left of it]
        self._spent: OrderedDict[str | bytes, list[int]] = OrderedDict()

    def after_fork(self) -> None:
        """In the child: nothing is leased."""
        self._begin()

    def batch(self, key: str) -> int:
        return self.fixed if self._adaptive is None else self._adaptive.size(key)

    def note(self, key: str, left: int) -> None:
        """A local spend left so many credits."""
        entry = self._spent.get(kept_key(key))
        if entry is not None:
            entry[1] = left

    def leased(self, key: str, held: int, cost: int, now: int) -> None:
        """A lease for a request of `cost` (0: ahead of need), after which `held` credits are."""
        if self._adaptive is None:
            return
        name = kept_key(key)
        # Without a lock: one lease per key is under way, and each line is one step.
        before = self._spent.pop(name, None)
        self._spent[name] = [held, held]
        if len(self._spent) > self._max_keys:
            with contextlib.suppress(KeyError):
                self._spent.popitem(last=False)
        served = cost if before is None else before[0] - before[1] + cost
        self._adaptive.observe(key, served, now)
