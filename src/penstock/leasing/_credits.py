"""The credits that a node has leased, and how long credits and denials are valid on the node.

`LeaseSpender` is the rule by itself, for one key, without store or clock: a grant adds credits and
says when their window ends; a spend takes from them, or returns None if a lease is needed first. It
never denies; only the store can.

`Credits` is the same rule as a strategy, for many keys; the tests compare the two. A node keeps its
credits (the near tier) in a MemoryStore with this strategy, so they have the same atomicity, expiry
and native path as any other state.

A `Term` says how long credits last. Credits that are coupled to the window are void from its end
on, so that what a node leased in one window never adds to the limit of the next:

| strategy | coupled credits last |
|---|---|
| with a fixed window, as a budget has | until the end of the window that granted them |
| with a sliding window | for one window, as long as the store counts them |
| without a window | until everything is replenished |

Only fixed windows are shared by all nodes, so only there the limit holds exactly per window.
Credits that are not coupled carry over, and last until they are spent.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import Any, NamedTuple

from ..core._clock import Clock, SystemClock
from ..core._decision import Decision, Forecast, Outcome
from ..core._store import Store
from ..core._strategy import Strategy
from ..core._transform import Grant, Transform
from ..core._validation import (
    MAX_SPAN_MS,
    kept_key,
    reject,
    require_cost,
    require_instant,
    require_int,
)

__all__ = [
    "CARRIED",
    "REMOTE",
    "WINDOW",
    "Credits",
    "Denials",
    "LeaseSpender",
    "State",
    "Term",
    "clocks_for",
    "granting",
    "overlap",
    "term_of",
]


class LeaseSpender:
    """The credits of one key on one node."""

    def __init__(self, limit: int, ttl_ms: int, window_coupled: bool) -> None:
        self.limit: int = require_int("limit", limit)
        self.ttl_ms: int = require_int("ttl_ms", ttl_ms, low=0)
        self.window_coupled = window_coupled
        self.credits: int = 0
        self.expires_at: int | None = None

    def apply_lease(self, capacity: int, expires_at: int) -> None:
        """Add granted credits, whose window ends at `expires_at` on the store's clock."""
        require_int("capacity", capacity, low=0)
        self.expires_at = require_instant(expires_at)
        self.credits += capacity

    def spend(self, now: int, cost: int) -> Decision | None:
        """Spend `cost`. Returns None if a lease is needed first."""
        require_cost(cost)
        if self.window_coupled and self.expires_at is not None and now >= self.expires_at:
            self.credits = 0
        if self.credits < cost:
            return None
        self.credits -= cost
        reset_at = now + self.ttl_ms if self.expires_at is None else self.expires_at
        return Decision(True, self.limit, self.credits, reset_at, 0)

    def __repr__(self) -> str:
        return f"<LeaseSpender {self.credits} credits until {self.expires_at}>"


State = tuple[int, int, int]


class Credits(Strategy):
    """The credits of many keys as a strategy. A denial only means that a lease is needed.

    The state is (credits, reset_at, until). `reset_at` is the end of the window on the store's
    clock, for the caller. `until` is the same end on this node's monotonic clock, counted from when
    the lease was *requested*: the store read its clock later, so `until` is never too late, and it
    does not matter if the two clocks show different times. (`_near.py` adds a margin for clocks
    that run at different speeds.) At `until` the state expires, which drops coupled credits.

    `aligned` means that all credits at an instant belong to one window, identified by its end:
    credits held from another window than that of a new grant are void. If it is not known whether
    windows are fixed or sliding, `granted_at`, the instant of the new grant on the store's clock,
    decides: held credits are valid if their window had not ended by then, which a fixed window has
    if there is a new one.
    """

    name = "credits"
    kernel: str | None = "credits"
    restricts = False

    def __init__(self, limit: int, idle_ms: int | None = None, aligned: bool = True) -> None:
        self.limit = limit
        self.ttl_ms = MAX_SPAN_MS
        self._idle_ms = idle_ms
        self._aligned = aligned
        if idle_ms is not None:
            # Dropping idle credits takes a second deadline, which the native record does not have.
            self.kernel = None

    def kernel_arguments(self) -> tuple[Any, ...]:
        return (self.limit,)

    def check(self, state: State | None, now: int, cost: int) -> Outcome[Decision]:
        if state is None or state[0] < cost:
            held = state[0] if state else 0
            return Outcome(state, Decision(False, self.limit, held, now + 1, 1), 0, False)
        held, reset_at, until = state[0] - cost, state[1], state[2]
        decision = Decision(True, self.limit, held, reset_at, 0)
        return Outcome((held, reset_at, until), decision, self._life(until, now), True)

    def forecast(self, state: State | None, now: int, cost: int) -> Forecast:
        held = state[0] if state else 0
        return Forecast(held // cost, now + 1, now + 1)

    def grant(
        self, state: State | None, now: int, fresh: State, granted_at: int | None = None
    ) -> Outcome[int]:
        """Add what was leased. The result is how many credits are held then."""
        held, reset_at, until = fresh
        if until <= now:
            return Outcome(state, state[0] if state else 0, 0, False)
        if state is not None and self._adds_up(state[1], reset_at, granted_at):
            held += state[0]
            # Of two estimates of the end, the earlier one is safe for both leases.
            until = min(until, state[2])
        return Outcome((held, reset_at, until), held, self._life(until, now), True)

    def _adds_up(self, held_end: int, end: int, granted_at: int | None) -> bool:
        if held_end == end or not self._aligned:
            return True
        return granted_at is not None and overlap(held_end, end, granted_at)

    def _life(self, until: int, now: int) -> int:
        left = until - now
        return left if self._idle_ms is None else min(left, self._idle_ms)


def overlap(held_end: int, end: int, granted_at: int) -> bool:
    """Whether credits valid until `held_end` were still valid when those until `end` were
    granted."""
    return granted_at < held_end <= end


def granting(strategy: Credits, fresh: State, granted_at: int | None = None) -> Transform[int]:
    """The transform that adds a lease to the near tier. Its result is the credits then held."""

    def run(state: Any, now: int, _cost: int) -> Outcome[int]:
        return strategy.grant(state, now, fresh, granted_at)

    return Transform(strategy, "grant", run, lambda _now, _retry_after_ms: 0)


class Denials:
    """The denials that a node remembers, by key, so that a client that keeps asking causes no load
    on the store.

    A denial is valid for its `retry_after_ms`, on this node's monotonic clock, counted from when
    the store was asked, so that it never lasts longer here than in the store. It applies to
    requests of at least the denied cost; a smaller one may still fit. Beyond `max_keys`, the oldest
    are forgotten.
    """

    def __init__(self, max_keys: int) -> None:
        self._max_keys = max_keys
        # key: (until, from which cost on, the denial)
        self._held: OrderedDict[str | bytes, tuple[int, int, Decision]] = OrderedDict()

    def recall(self, key: str, cost: int, now: int) -> Decision | None:
        """The remembered denial of such a request at `now`, with the wait that is left; None if
        there is none."""
        held = self._held.get(kept_key(key))
        if held is None or cost < held[1]:
            return None
        until, _, denial = held
        if now >= until:
            return None
        return Decision(False, denial.limit, denial.remaining, denial.reset_at, until - now)

    def remember(self, key: str, asked_at: int, cost: int, denial: Decision) -> None:
        name = kept_key(key)
        # No lock: each line is atomic, and their order among threads does not matter.
        self._held.pop(name, None)
        self._held[name] = (asked_at + denial.retry_after_ms, cost, denial)
        if len(self._held) > self._max_keys:
            with contextlib.suppress(KeyError):
                self._held.popitem(last=False)

    def forget(self, key: str) -> None:
        self._held.pop(kept_key(key), None)

    def __len__(self) -> int:
        return len(self._held)


class Term(NamedTuple):
    """How long credits last. `coupled`: they are void at the end of their window. `aligned`: all
    nodes share the window, which is identified by its end. `span_ms`: they last that long, instead
    of until the `reset_at` of the grant. `may_slide`: only the shared store knows whether the
    window is fixed or sliding."""

    coupled: bool
    aligned: bool
    span_ms: int | None = None
    may_slide: bool = False

    def left_ms(self, grant: Grant) -> int:
        """How long the granted credits last from the instant of the grant."""
        if self.span_ms is not None:
            return self.span_ms
        return grant.decision.reset_at - grant.now


CARRIED = Term(coupled=False, aligned=False, span_ms=MAX_SPAN_MS)
WINDOW = Term(coupled=True, aligned=True)
REMOTE = WINDOW._replace(may_slide=True)


def term_of(strategy: Strategy, window_coupled: bool | None) -> Term:
    """The term of a strategy's credits; coupled by default if the strategy has a window."""
    if window_coupled is not None and not isinstance(window_coupled, bool):
        reject(f"window_coupled must be True, False or None, not {window_coupled!r}")
    coupled = strategy.window_ms is not None if window_coupled is None else window_coupled
    if not coupled:
        return CARRIED
    if strategy.window_kind == "sliding":
        return Term(coupled=True, aligned=False, span_ms=strategy.window_ms)
    return WINDOW if strategy.window_ms is not None else Term(coupled=True, aligned=False)


def clocks_for(store: Store, clock: Clock | None) -> tuple[Clock | None, Clock]:
    """The clock for the store and the clock for this node.

    If the store has a clock of its own, the node only measures spans, for which it uses a monotonic
    clock: with one that is set back, credits would last into the next window. A ManualClock, as in
    tests, is used as it is. If the store decides by the caller's clock, the node uses the same
    clock, so that a window ends for both at the same instant.
    """
    if clock is None:
        return None, SystemClock()
    if not store.reads_own_clock:
        return clock, clock
    return None, clock if hasattr(clock, "subscribe") else SystemClock()
