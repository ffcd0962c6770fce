"""The size of a batch: how many credits to lease at once.

A batch that is too small costs round trips; one that is too large strands credits that other nodes
could have used. If a round trip costs `order_cost`, a stranded credit `strand_penalty`, and a key
spends `demand` credits per period, the batch that balances the two is

    sqrt(2 * order_cost * demand / strand_penalty)

which is the economic order quantity of inventory management. Demand is learned per key, as a moving
average of its logarithm, because it spans orders of magnitude and one burst must not outweigh a
hundred quiet periods. Only credits that were spent count as demand, not those that expired. What is
learned affects how often the store is asked, never how much is admitted: every credit is still
granted by the store.

`Demand` measures what the keys of a node spend, for an adaptive batch. The hot path records one
number per key, the credits left. What was spent since a lease is the difference between that and
what was held after the lease, also if the rest has expired.
"""

from __future__ import annotations

import contextlib
import math
from collections import OrderedDict
from typing import Any

from ..core._store import MadeBy
from ..core._validation import kept_key, reject, require_int, require_rate

__all__ = ["AdaptiveBatch", "Demand"]


class AdaptiveBatch:
    """A batch size that is learned per key from its demand. Not to be shared by limiters."""

    def __init__(
        self,
        *,
        order_cost: float = 50.0,
        strand_penalty: float = 1.0,
        period_ms: int = 1_000,
        smoothing: float = 0.3,
        least: int = 1,
        most: int = 10_000,
        max_keys: int = 100_000,
    ) -> None:
        self.order_cost: float = require_rate("order_cost", order_cost)
        self.strand_penalty: float = require_rate("strand_penalty", strand_penalty)
        self.period_ms: int = require_int("period_ms", period_ms)
        self.smoothing: float = require_rate("smoothing", smoothing)
        if self.smoothing > 1:
            reject(f"smoothing must lie between 0 and 1, not {smoothing!r}")
        self.least: int = require_int("least", least)
        self.most: int = require_int("most", most, low=least)
        self._max_keys = require_int("max_keys", max_keys)
        # key: (mean logarithm of the demand per period, when last leased)
        self._learned: OrderedDict[str | bytes, tuple[float, int]] = OrderedDict()

    def observe(self, key: str, served: int, now: int) -> None:
        """Record that `served` credits of the key were spent since its previous lease."""
        name = kept_key(key)
        # No lock: there is one lease per key at a time, and each line is atomic.
        known = self._learned.pop(name, None)
        elapsed = self.period_ms if known is None else max(1, now - known[1])
        sample = math.log(max(served, 1) * self.period_ms / elapsed)
        mean = sample if known is None else known[0] + self.smoothing * (sample - known[0])
        self._learned[name] = (mean, now)
        if len(self._learned) > self._max_keys:
            with contextlib.suppress(KeyError):
                self._learned.popitem(last=False)

    def size(self, key: str) -> int:
        """How much to lease for the key next."""
        known = self._learned.get(kept_key(key))
        if known is None:
            return self.least
        demand = math.exp(min(known[0], 700.0))
        ideal = math.sqrt(2 * self.order_cost * demand / self.strand_penalty)
        return int(min(max(ideal, self.least), self.most))

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle contains the parameters, not what was learned."""
        return MadeBy(
            AdaptiveBatch,
            order_cost=self.order_cost,
            strand_penalty=self.strand_penalty,
            period_ms=self.period_ms,
            smoothing=self.smoothing,
            least=self.least,
            most=self.most,
            max_keys=self._max_keys,
        ).reduced()

    def __repr__(self) -> str:
        return f"<AdaptiveBatch {self.least} to {self.most}, {len(self._learned)} keys>"


class Demand:
    """The batch size of each key, and the measurements that it is learned from."""

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
        """Start afresh in the child of a fork, which holds no leases."""
        self._begin()

    def batch(self, key: str) -> int:
        return self.fixed if self._adaptive is None else self._adaptive.size(key)

    def note(self, key: str, left: int) -> None:
        """Record how many credits a local spend has left."""
        entry = self._spent.get(kept_key(key))
        if entry is not None:
            entry[1] = left

    def leased(self, key: str, held: int, cost: int, now: int) -> None:
        """Record a lease for a request of `cost` (0 if ahead of need), after which the node holds
        `held` credits."""
        if self._adaptive is None:
            return
        name = kept_key(key)
        # No lock: there is one lease per key at a time, and each line is atomic.
        before = self._spent.pop(name, None)
        self._spent[name] = [held, held]
        if len(self._spent) > self._max_keys:
            with contextlib.suppress(KeyError):
                self._spent.popitem(last=False)
        served = cost if before is None else before[0] - before[1] + cost
        self._adaptive.observe(key, served, now)
