"""What a node may still spend of its lease, and how long that, or a denial, holds here.

`LeaseSpender` is the rule by itself, for one key, without store or clock: a grant adds credits and
says when their window ends; a spend takes from them, or answers None, and then somebody has to go
and get more. It never invents a denial; only the store can deny.

`Credits` is the same rule as a strategy, for many keys; the tests hold the two together. The near
tier of a two-tier limiter is a MemoryStore, and this is its strategy; so it has the same atomicity,
the same expiry and the same native path as any other.

How long credits last is a `Term`. Coupled to the window, they are void from its end on, so that
what a node leased in one window can never add to the next one's limit:

| a strategy with | credits that are coupled last |
|---|---|
| a window, as a budget has one | to the end of the window that granted them |
| a sliding window | for the length of a window, as long as the store counts them |
| no window | until all of it is replenished |

Only the first row has windows that all nodes share, and so a limit that holds exactly per window.
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
        """Add granted credits; their window ends at `expires_at`, by the store's clock."""
        require_int("capacity", capacity, low=0)
        self.expires_at = require_instant(expires_at)
        self.credits += capacity

    def spend(self, now: int, cost: int) -> Decision | None:
        """Spend `cost`, or None when a lease is needed first."""
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
    """`check` spends credits or denies, and a denial here only means that a lease is needed.

    The state is (credits, reset_at, until). `reset_at` is the end of the window as the store told
    it, for the caller to see. `until` is the same end on this node's steady clock, reckoned from
    the moment the lease was *requested*: the store's reading came later, so `until` is not late
    (with a margin for clocks that run apart, see `_near.py`), and a node whose clock shows another
    time of day is not fooled. From `until` on the state is expired, which is how credits that are
    coupled to their window are dropped.

    `aligned` means that all credits of one instant belong to one window, named by its end: held
    ones of another window than a fresh grant's are void, whatever the clocks say. Where it is not
    known whether windows are shared or slide, `granted_at`, the instant of a fresh grant on the
    clock that names the ends, tells: held credits are good if their window had not ended then. A
    shared window has, when there is another.
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
            # Idle credits need a second deadline, for which the native record has no room.
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
        """Add what was leased; the result is what is held then."""
        held, reset_at, until = fresh
        if until <= now:
            return Outcome(state, state[0] if state else 0, 0, False)
        if state is not None and self._adds_up(state[1], reset_at, granted_at):
            held += state[0]
            # Of two reckonings of the end, the earlier one is safe for both leases.
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
    """Whether credits up to `held_end` were still good when others, up to `end`, were granted."""
    return granted_at < held_end <= end


def granting(strategy: Credits, fresh: State, granted_at: int | None = None) -> Transform[int]:
    """The transform that puts a lease into the near tier; returns the credits then held."""

    def run(state: Any, now: int, _cost: int) -> Outcome[int]:
        return strategy.grant(state, now, fresh, granted_at)

    return Transform(strategy, "grant", run, lambda _now, _retry_after_ms: 0)


class Denials:
    """The denials of one node, by key: an abusive client must not turn its flood into load on the
    store.

    A denial holds for its `retry_after_ms`, on this node's steady clock, reckoned from the moment
    the store was asked, so that it never holds longer here than there. It answers requests of at
    least the denied cost; a smaller one may still fit and has to be asked for. Bounded: the oldest
    go first.
    """

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


class Term(NamedTuple):
    """`aligned`: credits belong to a window that all nodes share, which its end names. `span_ms`:
    they last that long instead of up to the grant's `reset_at`. `may_slide`: only the far tier
    knows whether the window is shared, and names the end of what it grants."""

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
    """By default, credits are coupled where the strategy has a window."""
    if window_coupled is not None and not isinstance(window_coupled, bool):
        reject(f"window_coupled must be True, False or None, not {window_coupled!r}")
    coupled = strategy.window_ms is not None if window_coupled is None else window_coupled
    if not coupled:
        return CARRIED
    if strategy.window_kind == "sliding":
        return Term(coupled=True, aligned=False, span_ms=strategy.window_ms)
    return WINDOW if strategy.window_ms is not None else Term(coupled=True, aligned=False)


def clocks_for(store: Store, clock: Clock | None) -> tuple[Clock | None, Clock]:
    """(for the store, for this node): which clock tells how long something holds.

    Where the store has a clock of its own, only spans are measured here, and a steady clock
    measures them best: one that is set back would make credits last into the next window. A clock
    that is moved by hand, as in tests, is taken at its word. Where the caller's clock decides in
    the store, the same one decides here, so that both see a window end at once.
    """
    if clock is None:
        return None, SystemClock()
    if not store.reads_own_clock:
        return clock, clock
    return None, clock if hasattr(clock, "subscribe") else SystemClock()
