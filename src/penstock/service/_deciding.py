"""Decisions of one limit: at once, or later, when the store has answered.

Some stores can only be awaited, which takes a task. Others call back (`Store.begin`), which takes
none: the reply to the client is made and written in the callback, when the store's reply arrives.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from .._rate_limit import rate_limit
from ..core import native
from ..core._clock import Clock
from ..core._decision import Decision
from ..core._limiter import Limiter
from ..core._store import Store, Told
from ..core._strategy import Strategy
from ..core._validation import require_cost
from ._fail_modes import Guard
from ._metrics import Tally

__all__ = [
    "Asked",
    "Awaited",
    "Checker",
    "Decide",
    "Later",
    "StoreCheck",
    "Then",
    "Told",
    "deciding",
    "joined",
    "limiter_on",
]

R = TypeVar("R")

# The interpreter keeps one object for this integer, and True is another.
_ONE = 1


class Later(Generic[R]):
    """A result that has to be waited for, and is not asked for yet. Calling it returns a coroutine.
    If `can_begin`, `begin(told)` asks without a task: `told` is called once with the result or the
    error, never before `begin` returns."""

    __slots__ = ()

    can_begin: bool = False

    @abstractmethod
    def __call__(self) -> Coroutine[Any, Any, R]: ...

    def begin(self, told: Told) -> None:
        raise NotImplementedError


class Awaited(Later[R]):
    """A result that can only be awaited."""

    __slots__ = ("_ask",)

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, R]]) -> None:
        self._ask = ask

    def __call__(self) -> Coroutine[Any, Any, R]:
        return self._ask()


class Then(Later[R]):
    """The result of another `Later`, passed through a function."""

    __slots__ = ("_asked", "_make", "_rest", "_told", "can_begin")

    def __init__(self, asked: Later[Any], make: Callable[..., R], *rest: Any) -> None:
        self._asked = asked
        self._make = make
        self._rest = rest
        self.can_begin: bool = asked.can_begin

    async def __call__(self) -> R:
        return self._make(await self._asked(), *self._rest)

    def begin(self, told: Told) -> None:
        self._told = told
        self._asked.begin(self._make_of)

    def _make_of(self, result: Any, error: BaseException | None) -> None:
        if error is None:
            try:
                result = self._make(result, *self._rest)
            except Exception as failure:
                result, error = None, failure
        self._told(result, error)


class Checker(ABC, Generic[R]):
    """Asks a store to decide requests, applies the fail mode if it does not answer, and counts."""

    can_begin: bool = False

    @abstractmethod
    async def ask(self, *request: Any) -> Any:
        """The store's answer."""

    def begin(self, told: Told, *request: Any) -> None:
        """As `ask`, with a callback; only if `can_begin`."""
        raise NotImplementedError

    @abstractmethod
    def answer(self, result: Any, error: Exception | None, *request: Any) -> R:
        """The answer from the store's result, or by the fail mode from its error. Counts it."""


class StoreCheck(Later[R]):
    """A request to a store that does not answer at once."""

    __slots__ = ("_by", "_request", "_told", "can_begin")

    def __init__(self, by: Checker[R], *request: Any) -> None:
        self._by = by
        self._request = request
        self.can_begin: bool = by.can_begin

    async def __call__(self) -> R:
        try:
            result = await self._by.ask(*self._request)
        except Exception as error:
            return self._by.answer(None, error, *self._request)
        return self._by.answer(result, None, *self._request)

    def begin(self, told: Told) -> None:
        self._told = told
        try:
            self._by.begin(self._answered, *self._request)
        except Exception as error:
            asyncio.get_running_loop().call_soon(self._answered, None, error)

    def _answered(self, result: Any, error: BaseException | None) -> None:
        try:
            if error is not None and not isinstance(error, Exception):
                raise error
            answer = self._by.answer(result, error, *self._request)
        except BaseException as failure:
            self._told(None, failure)
        else:
            self._told(answer, None)


Asked = Decision | Later[Decision]
"""A decision that was available at once, or a `Later`."""

Decide = Callable[..., Asked]


def joined(*parts: str) -> str:
    """A prefix made of its non-empty parts."""
    return ":".join(part for part in parts if part)


def limiter_on(store: Store, strategy: Strategy, clock: Clock, prefix: str) -> Limiter:
    """A limiter with the service's clock, or the store's own if it has one."""
    return rate_limit(
        strategy, store=store, clock=None if store.reads_own_clock else clock, prefix=prefix
    ).shared()


def deciding(limiter: Limiter, guard: Guard, tally: Tally) -> Decide:
    """The check of a limiter, counted, with the fail mode for outages. It returns a decision if the
    store answers at once, by compiled code if the limiter is compiled, and a `Later` otherwise."""
    if not limiter.answers_at_once:
        return _AwaitedLimiter(limiter, guard, tally).decide
    if native is not None and isinstance(limiter, native.Gate):
        counted: Decide = native.CountedCheck(limiter, guard.decision, tally).check
        return counted
    check = limiter.check

    def decide(key: str, cost: int = 1) -> Decision:
        try:
            decision = check(key, cost)
        except Exception as error:
            decision = guard.decision(error, (key,), cost)
        if decision.allowed:
            tally.allowed += 1
        else:
            tally.denied += 1
        return decision

    return decide


class _AwaitedLimiter(Checker[Decision]):
    """A limiter whose store does not answer at once."""

    def __init__(self, limiter: Limiter, guard: Guard, tally: Tally) -> None:
        self._limiter = limiter
        self._guard = guard
        self._tally = tally
        self._begin = limiter.store.begin if limiter.decides_in_store else None
        self._now = limiter.clock.now
        self.can_begin: bool = self._begin is not None

    def decide(self, key: str, cost: int = 1) -> Asked:
        return StoreCheck(self, key, cost)

    async def ask(self, key: str, cost: int) -> Any:
        return await self._limiter.acheck(key, cost)

    def begin(self, told: Told, key: str, cost: int) -> None:
        assert self._begin is not None
        if cost is not _ONE:
            require_cost(cost)
        self._begin((self._limiter.step(key, cost),), self._now(), told)

    def answer(self, result: Any, error: Exception | None, key: str, cost: int) -> Decision:
        decision: Decision = result
        if error is not None:
            decision = self._guard.decision(error, (key,), cost)
        self._tally.count(decision.allowed)
        return decision
