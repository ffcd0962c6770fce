"""Inline policies: a limit that the request itself brings along.

Their counts are kept in the store, under a prefix that says the limit; what is kept here is only
the limiter made for each combination, the most recently used `MAX_POLICIES` of them. One that was
dropped is made again when needed and finds its counts where they were. On an in-process store they
have a table of their own, so that made-up limits cannot push out the counts of named policies. On a
shared store what a request may leave behind is bounded in size and in time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from ..core.clock import Clock
from ..core.limiter import Limiter
from ..core.store import Store
from ..core.strategy import Strategy
from ..core.validation import reject, require_choice, require_int
from ..strategies import fixed_window, gcra, sliding_window, sliding_window_log, token_bucket
from .failing import Guard
from .metrics import Tally
from .registry import Checker, checker_of, joined, limiter_on

__all__ = ["INLINE", "MAX_LOG_LIMIT", "MAX_POLICIES", "MAX_WINDOW_MS", "InlinePolicies"]

INLINE = "inline"
"""The name under which inline policies are counted, all together."""

MAX_POLICIES = 1_024
MAX_WINDOW_MS = 30 * 86_400_000
"""Thirty days: a key is kept for its window, and nobody should leave keys for centuries."""

MAX_LOG_LIMIT = 1_000
"""A log keeps a stamp per unit, some 70 bytes on Redis, so a stranger does not get to choose a long
one."""


def _log(limit: int, window_ms: int) -> Strategy:
    if require_int("limit", limit) > MAX_LOG_LIMIT:
        reject(
            f"limit must be at most {MAX_LOG_LIMIT} for an inline sliding_window_log, which keeps "
            "a stamp per unit; use sliding_window, or a policy of the policy file"
        )
    return sliding_window_log(limit, window_ms)


def _bucket(limit: int, window_ms: int) -> Strategy:
    require_int("limit", limit)
    return token_bucket(limit, limit * 1000 / require_int("window_ms", window_ms))


_STRATEGIES: dict[str, Callable[[int, int], Strategy]] = {
    "fixed_window": lambda limit, window_ms: fixed_window(limit, window_ms, "first"),
    "gcra": gcra,
    "sliding_window": sliding_window,
    "sliding_window_log": _log,
    "token_bucket": _bucket,
}
_SPELLINGS = {
    "fixedWindow": "fixed_window",
    "slidingWindow": "sliding_window",
    "slidingWindowLog": "sliding_window_log",
    "tokenBucket": "token_bucket",
}


class Inline:
    """One inline policy at work."""

    __slots__ = ("checker", "guard", "limiter")

    def __init__(self, limiter: Limiter, guard: Guard, checker: Checker | None) -> None:
        self.limiter: Limiter = limiter
        self.guard: Guard = guard
        self.checker: Checker | None = checker


class InlinePolicies:
    """The inline policies in use, at most `MAX_POLICIES`."""

    def __init__(self, store: Store, clock: Clock, prefix: str, fail: str, tally: Tally) -> None:
        self._store = store
        self._clock = clock
        self._prefix = prefix
        self._fail = fail
        self._tally = tally
        self._made: OrderedDict[tuple[object, ...], Inline] = OrderedDict()

    def get(self, limit: int, window_ms: int, strategy: str) -> Inline:
        # The types are part of the question: True and 1.0 equal 1, but are no limits.
        wanted = (limit, window_ms, strategy, type(limit), type(window_ms))
        try:
            found = self._made.get(wanted)
        except TypeError:  # unhashable, so no good either: let validation say why
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
        name = _SPELLINGS.get(strategy, strategy) if isinstance(strategy, str) else strategy
        require_choice("strategy", name, tuple(_STRATEGIES))
        if require_int("window_ms", window_ms) > MAX_WINDOW_MS:
            reject(
                f"window_ms must be at most {MAX_WINDOW_MS} (30 days) for an inline limit; longer "
                "windows are for policies of the policy file"
            )
        made = _STRATEGIES[name](limit, window_ms)
        prefix = joined(self._prefix, INLINE, name, str(limit), str(window_ms))
        limiter = limiter_on(self._store, made, self._clock, prefix)
        guard = Guard(INLINE, limit, self._fail, self._clock, self._tally)
        return Inline(limiter, guard, checker_of(limiter, self._tally))
