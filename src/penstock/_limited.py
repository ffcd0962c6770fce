"""`limited`: puts any function, or any block of code, behind a limit.

As a decorator it waits before each call of the function, sync or async, in the order in which the
callers for the same key came; with a timeout it raises when the wait would be longer. As a context
manager it does the same for a block. Slots are renewed and held until the call or the block ends,
with or without an exception; a rate that was spent stays spent. Keys and costs may depend on the
arguments (`_arguments.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import wraps
from types import TracebackType
from typing import Any, Protocol, TypeVar

from ._arguments import (
    Arguments,
    Cost,
    Key,
    Question,
    checked_cost,
    checked_key,
    fields_of,
    for_all,
    is_async,
)
from ._limits import Limit, Limits
from ._rate_limit import rate_limit
from .core._charges import Settling
from .core._clock import Clock
from .core._limiter import Limiter
from .core._renewing import ahold, arelease, hold, release
from .core._store import Store
from .core._strategy import Strategy
from .core._validation import reject, shown
from .core._waiting import timeout_in_ms
from .stores._opening import open_for_limiter

__all__ = [
    "Arguments",
    "Cost",
    "Key",
    "Limited",
    "Question",
    "Target",
    "for_all",
    "holds_slots",
    "is_async",
    "is_limiter",
    "limited",
    "limiter_of",
    "require_function",
]

F = TypeVar("F", bound=Callable[..., Any])


class PolicyLimiter(Protocol):
    """A limiter that asks a service: `penstock.client.ServiceLimiter`."""

    policy: str

    def take(self, key: Any, cost: int = 1) -> Any:
        """Charge the cost; hold the slots, if the policy has any."""


Target = str | Strategy | Limiter | Limits | PolicyLimiter | Mapping[str, Strategy | str | Limit]
"""Everything that can be given as a limit: a rate, a strategy, several by name, or a limiter."""


def limited(
    limit: Target,
    *,
    key: Key | None = None,
    cost: Cost = 1,
    timeout: float | None = None,
    store: Store | str | None = None,
    prefix: str | None = None,
    clock: Clock | None = None,
    max_waiters: int | None = None,
) -> Limited:
    """A decorator for functions, sync and async, and a context manager, that waits for a limit.

        @limited("10/second", key="{user}")
        def send(user: str, text: str) -> None: ...

    `limit` is a rate, a strategy, a mapping of names to these as for `Limits`, or an existing
    `Limiter`, `Limits` or `ServiceLimiter`. `key` is a format string of the function's arguments,
    or a function of them that returns the key. For several limits it is one key for all of them,
    or a mapping of limit names to keys; for a policy of a service that has attributes, a mapping
    of attribute names to values. Without a `key`, all calls share the limit. `cost` is a number or
    a function of the arguments.

    A call waits as long as it has to. With a `timeout` in seconds it raises `rate_limit_exceeded`
    as soon as it is known that the wait would be longer; `timeout=0` never waits.

    `store`, `clock` and `max_waiters` are as for `rate_limit`. Each function has its own counts,
    under its own name, unless it is given a `prefix` or an existing limiter. A block has no
    arguments: `with limited("10/second", key="partner")` needs a plain key, and
    `with limit.on("alice")` names one on the spot.
    """
    return Limited(limit, key, cost, timeout, store, prefix, clock, max_waiters)


class Limited:
    """A limit as a decorator and context manager. Made by `limited`. If `store` was a URL, `close`
    closes the store."""

    def __init__(
        self,
        limit: Target,
        key: Key | None = None,
        cost: Cost = 1,
        timeout: float | None = None,
        store: Store | str | None = None,
        prefix: str | None = None,
        clock: Clock | None = None,
        max_waiters: int | None = None,
    ) -> None:
        timeout_in_ms(timeout)
        self._timeout = timeout
        self._cost = checked_cost(cost)
        self._key = checked_key(key)
        self._prefix = prefix
        self._clock = clock
        self._max_waiters = max_waiters
        self._limit = limit
        self._store: Store | None = None
        self._owns_store = False
        if is_limiter(limit):
            _refuse_extra(store=store, prefix=prefix, clock=clock, max_waiters=max_waiters)
        else:
            # Made and thrown away, so that a bad rate or prefix is an error here.
            limiter_of(limit, None, prefix or "", None, max_waiters).close()
            self._store, self._owns_store = open_for_limiter(store, clock)
        self._block: Any = None
        self._open_charges: ContextVar[tuple[Settling | None, ...]] = ContextVar("charges")

    def __call__(self, function: F) -> F:
        """Decorate a function, sync or async."""
        import inspect

        require_function(function)
        name = f"{function.__module__}.{getattr(function, '__qualname__', 'call')}"
        limiter = self._limiter(name)
        key = name if self._key is None and limiter is self._limit else self._key
        arguments = Arguments(inspect.signature(function), name)
        ask = Question(limiter, arguments, key, self._cost)
        timeout = self._timeout
        wrapper: Any
        if is_async(function):

            @wraps(function)
            async def wrapper(*args: Any, **named: Any) -> Any:
                keys, cost = await ask.afor(args, named)
                held = _akept(await limiter.aacquire(keys, cost, timeout))
                if held is None:
                    return await function(*args, **named)
                try:
                    return await function(*args, **named)
                finally:
                    await arelease(held)

        else:
            ask.require_sync()

            @wraps(function)
            def wrapper(*args: Any, **named: Any) -> Any:
                keys, cost = ask.of(args, named)
                held = _kept(limiter.acquire(keys, cost, timeout))
                if held is None:
                    return function(*args, **named)
                try:
                    return function(*args, **named)
                finally:
                    release(held)

        decorated: F = wrapper
        return decorated

    def on(self, key: str | Mapping[str, str], cost: int | Mapping[str, int] = 1) -> Block:
        """A context manager for one block with this key: `with limit.on("alice"): ...`."""
        return Block(self._block_limiter(), key, cost, self._timeout)

    def __enter__(self) -> None:
        """Wait until the block is admitted."""
        block = self._plain_block()
        self._push(_kept(block.acquire()))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        charge = self._pop()
        if charge is not None:
            release(charge)

    async def __aenter__(self) -> None:
        block = self._plain_block()
        self._push(_akept(await block.aacquire()))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        charge = self._pop()
        if charge is not None:
            await arelease(charge)

    def close(self) -> None:
        """Close the store that was opened from a URL."""
        if self._owns_store and self._store is not None:
            self._store.close()

    async def aclose(self) -> None:
        """The awaitable twin of `close`."""
        if self._owns_store and self._store is not None:
            await self._store.aclose()

    def _limiter(self, name: str) -> Any:
        if is_limiter(self._limit):
            return self._limit
        prefix = name if self._prefix is None else self._prefix
        return limiter_of(self._limit, self._store, prefix, self._clock, self._max_waiters)

    def _block_limiter(self) -> Any:
        if self._block is None:
            self._block = self._limiter("")
        return self._block

    def _plain_block(self) -> Block:
        parts = self._key.values() if isinstance(self._key, Mapping) else [self._key]
        if not all(isinstance(part, str) and not fields_of(part) for part in parts) or callable(
            self._cost
        ):
            reject(
                "a block has no arguments to compute a key or a cost from: use a plain key, as in "
                "limited(..., key='partner'), or `with limit.on(key, cost)`"
            )
        keys: Any = self._key
        if isinstance(self._key, str):
            keys = for_all(self._block_limiter(), self._key)
        return self.on(keys, self._cost)

    def _push(self, held: Settling | None) -> None:
        self._open_charges.set((*self._open_charges.get(()), held))

    def _pop(self) -> Settling | None:
        *outer, last = self._open_charges.get(())
        self._open_charges.set(tuple(outer))
        return last


class Block:
    """A context manager for one block. Made by `Limited.on`."""

    def __init__(
        self,
        limiter: Any,
        key: str | Mapping[str, str],
        cost: int | Mapping[str, int],
        timeout: float | None,
    ) -> None:
        self._limiter: Any = limiter
        self._keys: Any = for_all(limiter, key) if isinstance(key, str) else key
        self._cost = cost
        self._timeout = timeout
        self._charge: Settling | None = None

    def acquire(self) -> Any:
        """Wait until admitted. Returns the decision or verdict, or the charge that holds slots."""
        return self._limiter.acquire(self._keys, self._cost, self._timeout)

    async def aacquire(self) -> Any:
        """The awaitable twin of `acquire`."""
        return await self._limiter.aacquire(self._keys, self._cost, self._timeout)

    def __enter__(self) -> Any:
        answer = self.acquire()
        self._charge = _kept(answer)
        return answer

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._charge is not None:
            release(self._charge)

    async def __aenter__(self) -> Any:
        answer = await self.aacquire()
        self._charge = _akept(answer)
        return answer

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._charge is not None:
            await arelease(self._charge)


def _kept(answer: Any) -> Settling | None:
    """Have a thread renew the slots of the charge. Returns the charge, None if nothing is held."""
    if not isinstance(answer, Settling):
        return None
    hold(answer)
    return answer


def _akept(answer: Any) -> Settling | None:
    """As `_kept`, with a task of the event loop."""
    if not isinstance(answer, Settling):
        return None
    ahold(answer)
    return answer


def is_limiter(limit: Any) -> bool:
    """Whether it is an existing limiter, of this process or of a service."""
    return isinstance(limit, (Limiter, Limits)) or hasattr(limit, "atake")


def holds_slots(limiter: Any) -> bool:
    """Whether it admits by slots, which have to be given back. For a service's policy the answer
    is False: its replies tell."""
    if isinstance(limiter, Limits):
        return any(limit.strategy.is_held for limit in limiter.limits.values())
    return isinstance(limiter, Limiter) and limiter.strategy.is_held


def limiter_of(
    limit: Any,
    store: Store | None,
    prefix: str,
    clock: Clock | None = None,
    max_waiters: int | None = None,
) -> Limiter | Limits:
    """Make a limiter from a rate, a strategy, or a mapping of names to these."""
    if isinstance(limit, Mapping):
        return Limits(limit, store=store, prefix=prefix, clock=clock, max_waiters=max_waiters)
    made: Limiter = rate_limit(
        limit, store=store, prefix=prefix, clock=clock, max_waiters=max_waiters
    )
    return made


def _refuse_extra(**options: Any) -> None:
    for name, value in options.items():
        if value is not None:
            reject(
                f"{name} cannot be changed on an existing limiter: leave {name} out, or give a "
                "rate or strategy instead of the limiter"
            )


def require_function(function: Any) -> None:
    """Reject what is not a function, and generators, whose work does not begin with the call."""
    import inspect

    if isinstance(function, (staticmethod, classmethod, property)):
        reject(f"write @limited(...) below @{type(function).__name__}, next to the function")
    if inspect.isclass(function) or not callable(function):
        reject(f"limited decorates functions, not {shown(function)}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        reject(
            f"{function.__qualname__} is a generator, whose body runs when it is iterated and not "
            "when it is called: use `with limit:` inside it, or limit the function that iterates it"
        )
