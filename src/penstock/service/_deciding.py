"""What decides for one limit: at once, or when the store has answered.

A store may be awaited, which takes a task, or tell by a call (`Store.begin`), which takes none: the
reply to a client is then made and written where the reply of the store arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
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
    "Decide",
    "Later",
    "Told",
    "begin_with",
    "deciding",
    "joined",
    "limiter_on",
    "then",
]

R = TypeVar("R")
S = TypeVar("S")


class Later(Generic[R]):
    """What has to be waited for, not begun yet. Called, it is a coroutine. `begin`, where there is
    one, asks without a task: what it is given is told the result, or why there is none, later."""

    __slots__ = ("_ask", "begin")

    def __init__(
        self,
        ask: Callable[[], Coroutine[Any, Any, R]],
        begin: Callable[[Told], None] | None = None,
    ) -> None:
        self._ask = ask
        self.begin = begin

    def __call__(self) -> Coroutine[Any, Any, R]:
        return self._ask()


def then(asked: Later[R], make: Callable[..., S], *rest: Any) -> Later[S]:
    """The same, with something made of the result."""
    begin = asked.begin
    return Later(
        partial(_awaited, asked, make, rest),
        None if begin is None else partial(_begun, begin, make, rest),
    )


async def _awaited(asked: Later[Any], make: Callable[..., Any], rest: tuple[Any, ...]) -> Any:
    return make(await asked(), *rest)


def _begun(
    begin: Callable[[Told], None], make: Callable[..., Any], rest: tuple[Any, ...], told: Told
) -> None:
    def made(result: Any, error: BaseException | None) -> None:
        if error is None:
            try:
                result = make(result, *rest)
            except Exception as failure:
                result, error = None, failure
        told(result, error)

    begin(made)


def begin_with(
    ask: Callable[[Told], None], answer: Callable[[Any, Exception | None], Any], told: Told
) -> None:
    """Begin by `ask`, and tell what `answer` makes of the result, or of what went wrong."""

    def answered(result: Any, error: BaseException | None) -> None:
        try:
            if error is not None and not isinstance(error, Exception):
                raise error
            made = answer(result, error)
        except BaseException as failure:
            told(None, failure)
        else:
            told(made, None)

    try:
        ask(answered)
    except Exception as error:
        asyncio.get_running_loop().call_soon(answered, None, error)


Asked = Decision | Later[Decision]
"""A decision, where nothing has to be waited for; else how to get at it."""

Decide = Callable[..., Asked]


def joined(*parts: str) -> str:
    """A prefix from its parts, without the empty ones."""
    return ":".join(part for part in parts if part)


def limiter_on(store: Store, strategy: Strategy, clock: Clock, prefix: str) -> Limiter:
    """A limiter by the service's clock, unless the store has one of its own."""
    return rate_limit(
        strategy, store=store, clock=None if store.reads_own_clock else clock, prefix=prefix
    ).shared()


def deciding(limiter: Limiter, guard: Guard, tally: Tally) -> Decide:
    """The check of a limiter, counted, an outage resolved: a plain call where that never waits, and
    a compiled one where the limiter is compiled."""
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


class _AwaitedLimiter:
    """A limiter whose store has to be waited for."""

    def __init__(self, limiter: Limiter, guard: Guard, tally: Tally) -> None:
        self._limiter = limiter
        self._guard = guard
        self._tally = tally
        self._store_begin = limiter.store.begin if limiter.decides_in_store else None
        self._now = limiter.clock.now

    def decide(self, key: str, cost: int = 1) -> Asked:
        begin = None if self._store_begin is None else partial(self._begin, key, cost)
        return Later(partial(self._check, key, cost), begin)

    async def _check(self, key: str, cost: int) -> Decision:
        try:
            decision = await self._limiter.acheck(key, cost)
        except Exception as error:
            decision = self._guard.decision(error, (key,), cost)
        self._tally.count(decision.allowed)
        return decision

    def _begin(self, key: str, cost: int, told: Told) -> None:
        def ask(told: Told) -> None:
            assert self._store_begin is not None
            step = self._limiter.step(key, require_cost(cost))
            self._store_begin((step,), self._now(), told)

        def counted(decision: Any, error: Exception | None) -> Decision:
            if error is not None:
                decision = self._guard.decision(error, (key,), cost)
            self._tally.count(decision.allowed)
            return decision  # type: ignore[no-any-return]

        begin_with(ask, counted, told)
