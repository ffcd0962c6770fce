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
from collections.abc import Iterator
from typing import Any, NamedTuple

from .._queueing import Mutex
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
    require_flag,
    require_instant,
    require_int,
)

__all__ = [
    "CARRIED",
    "MAX_STALE_MS",
    "REMOTE",
    "WINDOW",
    "Credits",
    "Denials",
    "KeyChanges",
    "LeaseSpender",
    "Receipt",
    "State",
    "Term",
    "clocks_for",
    "granting",
    "overlap",
    "returning",
    "spending_with_receipt",
    "term_of",
]


MAX_STALE_MS = 1_000
"""How long a denial is answered from memory at most, by default."""


class LeaseSpender:
    """The credits of one key on one node."""

    def __init__(self, limit: int, ttl_ms: int, window_coupled: bool) -> None:
        self.limit: int = require_int("limit", limit)
        self.ttl_ms: int = require_int("ttl_ms", ttl_ms, low=0)
        self.window_coupled: bool = require_flag("window_coupled", window_coupled)
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
            return Outcome(state, self.missing(held, now), 0, False)
        held, reset_at, until = state[0] - cost, state[1], state[2]
        decision = Decision(True, self.limit, held, reset_at, 0)
        return Outcome((held, reset_at, until), decision, self._life(until, now), True)

    def missing(self, held: int, now: int) -> Decision:
        """Says that a lease is needed."""
        return Decision(False, self.limit, held, now + 1, 1)

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


class Receipt(NamedTuple):
    """Credits that a reservation took: `number` says when (see `KeyChanges`), `end` and `until` are
    those of the state that held them."""

    number: int
    end: int
    until: int


def spending_with_receipt(strategy: Credits) -> Transform[tuple[Decision, State | None]]:
    """The transform that spends credits and also returns the state that held them."""

    def run(state: Any, now: int, cost: int) -> Outcome[tuple[Decision, State | None]]:
        outcome = strategy.check(state, now, cost)
        return Outcome(outcome.state, (outcome.result, state), outcome.ttl_ms, outcome.persist)

    return Transform(strategy, "spend", run, lambda now, _wait: (strategy.missing(0, now), None))


def returning(strategy: Credits, end: int, until: int) -> Transform[int]:
    """The transform that puts credits back which were spent from a state with this `end` and
    `until`. The result is how many credits came back: none, if those were of another window than
    the credits that are held now."""

    def run(state: State | None, now: int, units: int) -> Outcome[int]:
        if until <= now or (state is not None and state[1:] != (end, until)):
            return Outcome(state, 0, 0, False)
        held = units + (state[0] if state is not None else 0)
        return Outcome((held, end, until), units, strategy._life(until, now), True)

    return Transform(strategy, "return", run, lambda _now, _retry_after_ms: 0)


class KeyChanges:
    """Says whether a key has changed since a numbered moment. Beyond `max_keys` keys, the oldest
    changes are forgotten, and then count as changes of every other key. `numbers` is shared by
    objects whose moments are compared."""

    def __init__(self, max_keys: int, numbers: Iterator[int]) -> None:
        self._max_keys = max_keys
        self._numbers = numbers
        self._mutex = Mutex()
        self._last: OrderedDict[str | bytes, int] = OrderedDict()
        self._floor = 0

    def note(self, key: str) -> None:
        """Record a change of the key."""
        name = kept_key(key)
        with self._mutex.hold():
            self._last[name] = next(self._numbers)
            self._last.move_to_end(name)
            if len(self._last) > self._max_keys:
                self._floor = self._last.popitem(last=False)[1]

    def since(self, key: str, number: int) -> bool:
        """Whether the key may have changed since the moment of that number."""
        return self._last.get(kept_key(key), self._floor) > number


class Denials:
    """The denials that a node remembers, by key and cost, so that a client that keeps asking causes
    little load on the store.

    A denial is valid for its `retry_after_ms`, but at most for `max_stale_ms`: another node may
    have refunded units or reset the key since. Both are counted on this node's monotonic clock from
    when the store was asked, so that a denial never lasts longer here than in the store. It applies
    to requests of the denied cost only: for another cost the wait is another one.

    `forget` drops the denials of a key that this node has changed, also those whose answer has not
    arrived yet: `number` is taken from `numbers` before the store is asked. Beyond `max_keys` keys,
    or a few costs of one key, the oldest are forgotten.
    """

    def __init__(self, max_keys: int, max_stale_ms: int, numbers: Iterator[int]) -> None:
        self._max_keys = max_keys
        self._max_stale_ms = max_stale_ms
        self._changes = KeyChanges(max_keys, numbers)
        # key: {cost: (until, retry_at, the denial)}
        self._held: OrderedDict[str | bytes, dict[int, tuple[int, int, Decision]]] = OrderedDict()

    def recall(self, key: str, cost: int, now: int) -> Decision | None:
        """The remembered denial of such a request at `now`, with the wait that is left; None if
        there is none."""
        by_cost = self._held.get(kept_key(key))
        held = None if by_cost is None else by_cost.get(cost)
        if held is None or now >= held[0]:
            return None
        _, retry_at, denial = held
        return Decision(False, denial.limit, denial.remaining, denial.reset_at, retry_at - now)

    def remember(self, key: str, number: int, asked_at: int, cost: int, denial: Decision) -> None:
        """Remember a denial that was asked for at `asked_at`, and after `number`."""
        name, wait = kept_key(key), denial.retry_after_ms
        # No lock: each line is atomic, and their order among threads does not matter.
        by_cost = self._held.pop(name, {})
        if len(by_cost) >= _COSTS_KEPT:
            by_cost.clear()
        by_cost[cost] = (asked_at + min(wait, self._max_stale_ms), asked_at + wait, denial)
        self._held[name] = by_cost
        if self._changes.since(key, number):
            self._held.pop(name, None)
        elif len(self._held) > self._max_keys:
            with contextlib.suppress(KeyError):
                self._held.popitem(last=False)

    def forget(self, key: str) -> None:
        """Drop the denials of a key whose units this node has changed."""
        self._changes.note(key)
        self._held.pop(kept_key(key), None)

    def contradict(self, key: str) -> None:
        """Drop the denials of a key because the store has admitted or shown units since."""
        if kept_key(key) in self._held:
            self.forget(key)

    def __len__(self) -> int:
        return len(self._held)


# Denials of at most this many costs are remembered per key.
_COSTS_KEPT = 16


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
