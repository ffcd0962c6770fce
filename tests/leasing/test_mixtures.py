"""Random mixtures of calls on a fleet of two nodes, against the bounds of leases.

The model knows nothing of credits: it adds up what was admitted and not refunded, and compares the
sums with the bounds as they are documented. While the clock runs forward, that is the sum of each
window. Once it has gone back, it is that of all windows that the clock has shown.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest

from penstock import (
    ManualClock,
    MemoryStore,
    Strategy,
    fixed_window,
    gcra,
    rate_limit,
    sliding_window_log,
    token_bucket,
)
from penstock.leasing import two_tier
from tests.support.effort import count

W, LIMIT, BATCH, STALE, NODES = 1_000, 12, 4, 200, 2
START = 1_700_000_000_000


class Fleet:
    """Two nodes on one store and one clock, and the sums of what they admitted."""

    def __init__(self, mode: str, coupled: bool | None, low_water: int = 0) -> None:
        self.clock = ManualClock(START)
        self.store = MemoryStore()
        self.nodes = [self._node(mode, coupled, low_water) for _ in range(NODES)]
        self.latest = START
        self.is_carried = mode == "leased" and coupled is False
        self.is_leased = mode == "leased"
        self._begin(is_reset=False)
        self.paused_by: int | None = None
        self.paused_until = 0
        self.by_others = 0
        self.pauses = 0

    def _begin(self, *, is_reset: bool) -> None:
        """Start the sums afresh."""
        self.is_reset = is_reset
        self.went_back = False
        self.windows = {self.clock.now() // W}
        self.admitted = 0
        self.in_window = 0
        self.charges: list[tuple[Any, int, int, int]] = []

    def _node(self, mode: str, coupled: bool | None, low_water: int) -> Any:
        return two_tier(
            fixed_window(LIMIT, W),
            self.store,
            mode,  # type: ignore[arg-type]
            BATCH,
            low_water,
            coupled,
            clock=self.clock,
            max_stale_ms=STALE,
        )

    @property
    def extra(self) -> int:
        """How much the nodes may hold from before, which the store no longer counts."""
        if self.is_carried:
            return NODES * (BATCH - 1)
        # The credits of the node that did not reset.
        return (NODES - 1) * (BATCH - 1) if self.is_leased and self.is_reset else 0

    def admits(self, number: int, cost: int) -> None:
        self.admitted += cost
        assert self.admitted <= LIMIT * len(self.windows) + self.extra
        if not self.went_back:
            self.in_window += cost
            assert self.in_window <= LIMIT + self.extra
        if self.paused_by is None or self.latest >= self.paused_until:
            return
        assert number != self.paused_by, "the node that paused has admitted a request"
        self.by_others += cost
        assert self.by_others <= (BATCH - 1 if self.is_leased else 0)

    def check(self, rng: random.Random) -> None:
        number, cost = rng.randrange(NODES), rng.choice((1, 1, 2, 3, 5))
        if self.nodes[number].check("k", cost).allowed:
            self.admits(number, cost)

    def reserve(self, rng: random.Random) -> None:
        number, cost = rng.randrange(NODES), rng.choice((1, 2, 3, 5))
        charge = self.nodes[number].reserve("k", cost)
        if charge.allowed:
            self.admits(number, cost)
            self.charges.append((charge, cost, self.clock.now() // W, self.pauses))

    def cancel(self, rng: random.Random) -> None:
        if not self.charges:
            return
        charge, cost, window, pauses = self.charges.pop(rng.randrange(len(self.charges)))
        assert charge.cancel()
        self._refunded(cost, window, pauses)

    def settle(self, rng: random.Random) -> None:
        if not self.charges:
            return
        charge, cost, window, pauses = self.charges.pop(rng.randrange(len(self.charges)))
        used = rng.randrange(cost + 1)
        assert charge.settle(used)
        self._refunded(cost - used, window, pauses)

    def _refunded(self, units: int, window: int, pauses: int) -> None:
        self.admitted -= units
        if pauses == self.pauses:
            self.by_others -= units
        if window == self.clock.now() // W:
            self.in_window -= units

    def pause(self, rng: random.Random) -> None:
        number = rng.randrange(NODES)
        until = self.latest + rng.choice((50, W // 2, W, 3 * W))
        self.nodes[number].pause("k", until)
        if self.paused_by is None or self.latest >= self.paused_until:
            self.by_others, self.pauses = 0, self.pauses + 1
        elif number != self.paused_by:
            # Both nodes have paused: neither has credits left.
            self.by_others = BATCH - 1 if self.is_leased else 0
            self.pauses += 1
        until = max(until, self.paused_until)
        self.paused_by, self.paused_until = number, until

    def reset(self, rng: random.Random) -> None:
        self.nodes[rng.randrange(NODES)].reset("k")
        self._begin(is_reset=True)
        self.latest = self.clock.now()
        self.paused_by, self.paused_until = None, 0

    def advance(self, rng: random.Random) -> None:
        before = self.clock.now()
        self.clock.advance(rng.choice((1, 30, STALE, W // 2, W)))
        now = self.clock.now()
        self.windows.add(now // W)
        if now // W > before // W:
            self.in_window = 0
        self.latest = max(self.latest, now)

    def go_back(self, rng: random.Random) -> None:
        self.clock.set(max(START, self.clock.now() - rng.choice((1, 100, W, 2 * W))))
        self.windows.add(self.clock.now() // W)
        self.went_back = True


CASES = {
    "strict": ("strict", None, 0),
    "cached-deny": ("cached-deny", None, 0),
    "coupled": ("leased", True, 0),
    "carried": ("leased", False, 0),
}


@pytest.mark.parametrize("seed", range(count(40, 1_500)))
@pytest.mark.parametrize("case", CASES)
def test_a_mixture_of_calls_stays_within_the_bounds(case: str, seed: int) -> None:
    """Per window limit, or limit + N * (B - 1) carried over; a pause holds on its own node at once,
    and elsewhere after less than a batch."""
    rng = random.Random(seed)
    fleet = Fleet(*CASES[case])
    verbs = ["check"] * 8 + ["reserve", "cancel"] * 2 + ["settle", "advance"] * 2
    verbs += rng.sample(["pause", "reset", "go_back"], rng.randrange(4))
    for _ in range(150):
        getattr(fleet, rng.choice(verbs))(rng)


STRATEGIES: dict[str, Strategy] = {
    "fixed_window": fixed_window(LIMIT, W),
    "gcra": gcra(LIMIT, W),
    "token_bucket": token_bucket(LIMIT, 12.0),
    "sliding_window_log": sliding_window_log(LIMIT, W),
}


@pytest.mark.parametrize("seed", range(count(20, 500)))
@pytest.mark.parametrize("mode", ["cached-deny", "leased"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_calls_of_one_limiter_agree(strategy: str, mode: str, seed: int) -> None:
    """What `forecast` shows is what `check` and `reserve` admit, and `peek` for one unit; and a
    denial outlives a change of another node by less than `max_stale_ms`."""
    rng = random.Random(seed)
    clock, store, kind = ManualClock(START), MemoryStore(), STRATEGIES[strategy]
    nodes = [
        two_tier(kind, store, mode, BATCH, clock=clock, max_stale_ms=STALE)  # type: ignore[arg-type]
        for _ in range(NODES)
    ]
    plain = rate_limit(kind, store=store, clock=clock)
    charges: list[tuple[int, Any]] = []
    changed_at: dict[int, int] = defaultdict(int)
    for _ in range(120):
        number, cost = rng.randrange(NODES), rng.choice((1, 2, 3, 5, LIMIT))
        verb, node = rng.choice("crfpsxa"), nodes[number]
        if verb == "c":
            in_store = plain.forecast("k", cost).spendable_now > 0
            if not node.check("k", cost).allowed and in_store:
                since = clock.now() - changed_at[1 - number]
                assert since < STALE, "a change of the other node was not seen"
        elif verb == "r":
            charge = node.reserve("k", cost)
            charges.append((number, charge))
        elif verb == "f":
            fits = node.forecast("k", cost).spendable_now > 0
            if rng.random() < 0.5:
                assert node.check("k", cost).allowed == fits
            else:
                charge = node.reserve("k", cost)
                assert charge.allowed == fits
                charges.append((number, charge))
        elif verb == "p":
            assert node.peek("k").allowed == node.check("k").allowed
        elif verb == "s" and charges:
            owner, charge = charges.pop(rng.randrange(len(charges)))
            charge.cancel()
            changed_at[owner] = clock.now()
        elif verb == "x" and rng.random() < 0.3:
            node.reset("k")
            charges.clear()
            changed_at[number] = clock.now()
        else:
            clock.advance(rng.choice((1, 20, 90, STALE, W)))
