"""What the tests share: both paths through MemoryStore, and random worlds to compare them in."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import (
    Decision,
    Limiter,
    ManualClock,
    MemoryStore,
    Outcome,
    StoreUnavailableError,
    Strategy,
)
from penstock.accel._gates import limiter_class
from penstock.core import native
from penstock.core._register import find_strategy, registered
from penstock.stores.memory._table import Table
from penstock.testkit import draw_strategy as draw

NOW = 1_700_000_000_000
HUGE = 2**53 - 1

# Until the year 2109 all arithmetic is exact, which is what some laws are about.
LONGEST_MS = 10**11
LATEST = 2**42 - 2 * LONGEST_MS

needs_native = pytest.mark.skipif(native is None, reason="the native path is off")

# The paths of this run: the native one if it is on, and always the interpreted one.
PATHS = ["interpreted"] if native is None else ["interpreted", "native"]
both_paths = pytest.mark.parametrize("path", PATHS)


class GoneStore(MemoryStore):
    """A store that may go away."""

    is_gone = False

    def apply(self, *words: Any) -> Any:
        if self.is_gone:
            raise StoreUnavailableError("gone")
        return super().apply(*words)

    async def aapply(self, *words: Any) -> Any:
        return self.apply(*words)


def make_store(
    path: str,
    max_keys: int | None = None,
    overflow: str = "evict",
    max_bytes: int | None = None,
) -> MemoryStore:
    """A MemoryStore on the named path."""
    store = MemoryStore(max_keys, overflow, max_bytes=max_bytes)
    if path == "interpreted":
        store.table = Table(max_keys, max_bytes, overflow == "evict")
    return store


def make_limiter(
    path: str,
    strategy: Strategy,
    clock: Any = None,
    store: MemoryStore | None = None,
    **options: Any,
) -> Limiter:
    """A limiter on the named path: on the native one, with the compiled gate where it fits."""
    store = make_store(path) if store is None else store
    limiter = limiter_class(strategy, store)(strategy, store, clock=clock, **options)
    return sharing(limiter)


def sharing(limiter: Limiter) -> Limiter:
    """The limiter, for a test that gives its keys to another one as well: it lets go of its claim,
    as one that is closed does, and leaves the store that it was given as it is."""
    limiter.close()
    return limiter


KINDS = [cls.name for cls in registered()]


def draw_strategy(kind: str, rng: random.Random) -> Strategy:
    """Random parameters, within what the strategy of that name declares."""
    cls = find_strategy(kind)
    assert cls is not None
    strategy = draw(cls, rng)
    while strategy.ttl_ms > LONGEST_MS:
        strategy = draw(cls, rng)
    return strategy


def draw_timeline(
    strategy: Strategy, rng: random.Random, steps: int, back: bool = True, huge: bool = True
) -> list[tuple[int, int]]:
    """(now, cost) pairs around a real instant: bursts, pauses, jumps both ways, odd costs."""
    span = max(2, strategy.ttl_ms)
    unit = max(1, span // max(1, min(strategy.limit, 1_000)))
    now = NOW + rng.randrange(10**9)
    timeline = []
    for _ in range(steps):
        now = min(now + _move(rng, span, unit, back), LATEST)
        timeline.append((now, _cost(strategy.limit, rng, huge)))
    return timeline


def _move(rng: random.Random, span: int, unit: int, back: bool) -> int:
    dice = rng.random()
    if dice < 0.45:
        return 0
    if dice < 0.60:
        return rng.randint(1, 3)
    if dice < 0.75:
        return rng.randint(1, 2 * unit)
    if dice < 0.85:
        return rng.randint(1, span + 1)
    if dice < 0.90:
        return rng.randint(1, min(4 * span, 10**12))
    if not back:
        return 0
    return -rng.randint(1, min(rng.choice((3, unit, span, 3 * span)), 10**11))


def _cost(limit: int, rng: random.Random, huge: bool) -> int:
    dice = rng.random()
    if dice < 0.6:
        return 1
    if dice < 0.8:
        return rng.randint(1, max(1, min(limit, 8)))
    if dice < 0.95 or not huge:
        return rng.randint(1, limit)
    return rng.choice((limit, min(HUGE, limit + 1), HUGE, 2**40))


class Reference:
    """One key of an ideal store: a state, and when it is forgotten."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.state: Any = None
        self.expires = 0

    def at(self, now: int) -> Any:
        return self.state if now < self.expires else None

    def check(self, now: int, cost: int) -> Decision:
        outcome = self.strategy.check(self.at(now), now, cost)
        if outcome.persist:
            self.state, self.expires = outcome.state, now + outcome.ttl_ms
        return outcome.result


class Quota(Strategy):
    """A strategy as a user might write it: so many in all, and never again."""

    def __init__(self, limit: int = 50, ttl_ms: int = 10_000) -> None:
        self.limit = limit
        self.ttl_ms = ttl_ms

    def check(self, state: Any, now: int, cost: int) -> Outcome[Decision]:
        spent = (state or 0) + cost
        if spent > self.limit:
            left = self.limit - (state or 0)
            return Outcome(state, Decision(False, self.limit, left, now + 1, 1), 0, False)
        decision = Decision(True, self.limit, self.limit - spent, now + self.ttl_ms, 0)
        return Outcome(spent, decision, self.ttl_ms, True)


class CountingClock(ManualClock):
    """A clock of the user's own that knows how often it was read."""

    def __init__(self, start: int = NOW) -> None:
        super().__init__(start)
        self.reads = 0

    def now(self) -> int:
        self.reads += 1
        return super().now()


@contextlib.contextmanager
def frantic_switching() -> Iterator[None]:
    """Threads change places as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def run(coroutine: Any) -> Any:
    """Run a coroutine to its end, but not for ever."""

    async def bounded() -> Any:
        return await asyncio.wait_for(coroutine, 30)

    return asyncio.run(bounded())


async def awaited(call: Any, *arguments: Any) -> Any:
    """A call as a coroutine, for `asyncio.run`."""
    return await call(*arguments)
