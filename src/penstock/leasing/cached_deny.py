"""Allowed traffic goes to the store; a denial is remembered here for as long as it holds."""

from __future__ import annotations

from collections.abc import Iterable

from ..core.clock import Clock
from ..core.decision import Decision
from ..core.limiter import Limiter
from ..core.store import Store
from ..core.strategy import Strategy
from .denials import Denials
from .timing import clocks_for

__all__ = ["CachedDenyLimiter"]


class CachedDenyLimiter(Limiter):
    """Asks the store unless it said no and that still holds. Made by `two_tier`."""

    def __init__(
        self, strategy: Strategy, store: Store, *, clock: Clock | None, prefix: str, max_keys: int
    ) -> None:
        for_store, here = clocks_for(store, clock)
        super().__init__(strategy, store, clock=for_store, prefix=prefix)
        # One reading serves both sides: a store with a clock of its own does not look at it.
        self._here = self._now if for_store is here else here.now
        self._denials = Denials(max_keys)

    def check(self, key: str, cost: int = 1) -> Decision:
        name, now = self._name(key, cost), self._here()
        held = self._denials.recall(name, cost, now)
        if held is not None:
            return held
        decision = self._apply(name, self._check, now, cost)
        return self._noted(name, now, cost, decision)

    async def acheck(self, key: str, cost: int = 1) -> Decision:
        name, now = self._name(key, cost), self._here()
        held = self._denials.recall(name, cost, now)
        if held is not None:
            return held
        decision = await self._aapply(name, self._check, now, cost)
        return self._noted(name, now, cost, decision)

    def check_many(self, keys: Iterable[str], cost: int = 1) -> list[Decision]:
        names, now = self._names(keys, cost), self._here()
        known = [self._denials.recall(name, cost, now) for name in names]
        asked = _unknown(names, known)
        if asked:
            decisions = self.store.apply_many(asked, self._check, now, cost)
            self._merge(known, asked, decisions, now, cost)
        return _all(known)

    async def acheck_many(self, keys: Iterable[str], cost: int = 1) -> list[Decision]:
        names, now = self._names(keys, cost), self._here()
        known = [self._denials.recall(name, cost, now) for name in names]
        asked = _unknown(names, known)
        if asked:
            decisions = await self.store.aapply_many(asked, self._check, now, cost)
            self._merge(known, asked, decisions, now, cost)
        return _all(known)

    def reset(self, key: str) -> None:
        super().reset(key)
        self._denials.forget(self._name(key))

    async def areset(self, key: str) -> None:
        await super().areset(key)
        self._denials.forget(self._name(key))

    def _merge(
        self,
        known: list[Decision | None],
        asked: list[str],
        decisions: list[Decision],
        asked_at: int,
        cost: int,
    ) -> None:
        """Fill the gaps in `known` with what the store said, in order."""
        answers = iter(zip(asked, decisions, strict=True))
        for place, decision in enumerate(known):
            if decision is None:
                name, answer = next(answers)
                known[place] = self._noted(name, asked_at, cost, answer)

    def _noted(self, name: str, asked_at: int, cost: int, decision: Decision) -> Decision:
        if not decision.allowed:
            self._denials.remember(name, asked_at, cost, decision)
        return decision


def _unknown(names: list[str], known: list[Decision | None]) -> list[str]:
    return [name for name, decision in zip(names, known, strict=True) if decision is None]


def _all(known: list[Decision | None]) -> list[Decision]:
    return [decision for decision in known if decision is not None]
