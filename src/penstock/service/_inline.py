"""Inline policies: limits that are part of the request.

Their counts are in the store, under a prefix that contains the limit. Only the limiters are kept
here, the most recently used `MAX_POLICIES` of them; one that was dropped is made again when needed,
and its counts are still in the store. On an in-process store, inline policies have a table of their
own, so that invented limits cannot evict the counts of named policies.

Since clients choose everything about them, what they can leave in a shared store is bounded: in
size to `MOST_BYTES` for a key and its state, as Redis counts them, and in time to the window plus
the margin of the store. So a log must be short, and a long key is replaced by one that ends in its
SHA-256. For more than that there are named policies, which the operator chooses.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from ..core._clock import Clock
from ..core._register import find_strategy, registered
from ..core._store import Store
from ..core._strategy import Strategy
from ..core._validation import MAX_SAFE, reject, require_choice, require_int, require_key
from ..stores.cas._requests import fit
from ..strategies import FixedWindow
from ._deciding import Asked, Decide, deciding, joined, limiter_on
from ._fail_modes import Guard, Outages
from ._metrics import Tally

__all__ = [
    "DEFAULT_STRATEGY",
    "INLINE",
    "LONGEST_NAME",
    "MAX_POLICIES",
    "MAX_WINDOW_MS",
    "MOST_BYTES",
    "Inline",
    "InlinePolicies",
    "inline_strategies",
    "most_units",
]


INLINE = "inline"
"""The name under which inline policies are counted, all together."""

DEFAULT_STRATEGY = FixedWindow.name
"""The strategy of a request that names none."""

MAX_POLICIES = 1_024
MAX_WINDOW_MS = 30 * 86_400_000
"""Thirty days. A key stays in the store for its window, which must not be centuries."""

MOST_BYTES = 1_024
"""How much one key may take in Redis, including its state."""

_BASE_BYTES = 384
# The longest key with an empty state, rounded up.

LONGEST_NAME = 128
"""The longest key in bytes, without the prefix."""


def inline_strategies() -> tuple[type[Strategy], ...]:
    """The strategies that can be made from a limit and a window alone."""
    return tuple(cls for cls in registered() if cls.has_per())


def most_units(cls: type[Strategy]) -> int:
    """The largest limit that an inline policy of this class may have."""
    return (MOST_BYTES - _BASE_BYTES) // cls.unit_bytes if cls.unit_bytes else MAX_SAFE


def _lighter(cls: type[Strategy]) -> str:
    """A strategy without that bound, if possible with the same kind of window."""
    plain = [each for each in inline_strategies() if not each.unit_bytes]
    return min(plain, key=lambda each: each.window_kind != cls.window_kind).name


@dataclass(frozen=True, slots=True, eq=False)
class Inline:
    """An inline policy, built. `at_once` says that it always decides at once."""

    decide: Decide
    strategy: Strategy
    at_once: bool


class InlinePolicies:
    """The inline policies in use, at most `MAX_POLICIES`."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        prefix: str,
        fail: str,
        tally: Tally,
        outages: Outages,
    ) -> None:
        self.store = store
        self._clock = clock
        self._prefix = prefix
        self._fail = fail
        self._tally = tally
        self._outages = outages
        self._made: OrderedDict[tuple[object, ...], Inline] = OrderedDict()

    def get(self, limit: int, window_ms: int, strategy: str) -> Inline:
        """The policy with these parameters."""
        # The types are part of the key, because True and 1.0 equal 1 but are not valid limits.
        wanted = (limit, window_ms, strategy, type(limit), type(window_ms))
        try:
            found = self._made.get(wanted)
        except TypeError:  # unhashable, so validation below rejects it
            found = None
        if found is None:
            found = self._made[wanted] = self._make(limit, window_ms, strategy)
            if len(self._made) > MAX_POLICIES:
                self._made.popitem(last=False)
        else:
            self._made.move_to_end(wanted)
        return found

    def __len__(self) -> int:
        return len(self._made)

    def _make(self, limit: int, window_ms: int, strategy: str) -> Inline:
        cls = find_strategy(strategy) if isinstance(strategy, str) else None
        if cls is None or not cls.has_per():
            require_choice("strategy", strategy, tuple(cls.name for cls in inline_strategies()))
        assert cls is not None
        if require_int("window_ms", window_ms) > MAX_WINDOW_MS:
            reject(
                f"window_ms must be at most {MAX_WINDOW_MS} (30 days) for an inline limit; longer "
                "windows are for policies of the policy file"
            )
        if require_int("limit", limit) > most_units(cls):
            reject(
                f"limit must be at most {most_units(cls)} for an inline {cls.name}, whose state "
                f"grows with every unit; use {_lighter(cls)}, or a policy of the policy file"
            )
        made = cls.per(limit, window_ms)
        # The prefix contains the figures. Clients choose them, and must not use up their numbers.
        made.may_change = False
        prefix = joined(self._prefix, INLINE, cls.name, str(limit), str(window_ms))
        limiter = limiter_on(self.store, made, self._clock, prefix)
        guard = Guard(INLINE, limit, self._fail, self._clock, self._tally, self._outages)
        decide = deciding(limiter, guard, self._tally)
        # A store in this process shortens long keys itself.
        at_once = limiter.answers_at_once
        return Inline(decide if at_once else _by_short_key(decide), made, at_once)


def _by_short_key(decide: Decide) -> Decide:
    def decide_shortened(key: str, cost: int) -> Asked:
        if isinstance(key, str) and len(key) * 4 >= LONGEST_NAME:
            key = fit(require_key(key), LONGEST_NAME)
        return decide(key, cost)

    return decide_shortened
