"""Limits for tasks of a queue: a task that has to wait is put back until it may run.

When a worker runs a task, the task books an instant. If that is near, it waits in the worker; if
not, it goes back into the queue with that time, and the worker is free for others. The message has
the instant, so that the task does not book again when it comes back, on any worker. Queues are not
punctual to the millisecond, so a task is put back until a little earlier, and waits for the rest.

Limits that cannot be booked ahead, such as windows, are asked again after the wait that they have
reported. A slot may be released at any moment: a task waits for it in the worker for a moment, in
line with the other waiters, and is then put back for a short time that grows with each attempt. A
slot is held, and renewed, until the task ends. While the store is away, a task is put back for some
seconds. Whether a policy of a service can be booked ahead, or has slots, is known from its first
answer.

A booked instant is valid for one attempt, which is identified by the number of retries: when the
queue retries a task that failed, the task books again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypedDict

from .._limited import (
    Arguments,
    Cost,
    Key,
    Question,
    Target,
    holds_slots,
    is_limiter,
    require_function,
)
from .._limits import Limits
from .._rate_limit import rate_limit
from ..core._charges import Settling
from ..core._clock import SystemClock
from ..core._errors import RateLimitExceededError, StoreUnavailableError, UnsupportedError
from ..core._flow import Flow, adrive, drive
from ..core._limiter import Limiter
from ..core._renewing import ahold, arelease, hold, release
from ..core._store import Store
from ..core._validation import reject, require_prefix
from ..core._waiting import MAX_SLOT_WAIT_MS, timeout_in_ms
from ._pacing import asleep, sleep

__all__ = ["PutBack", "QueuedTask", "TaskLimit", "TaskOptions"]

_AWAY_MS = 5_000

# How long a task waits in the worker for a slot, at least, and how long it is put back after that:
# twice as long each time. The workers that wait keep the slots busy.
_SLOT_WAIT_MS = 250
_FIRST_DELAY_MS = 50
_LONGEST_DELAY_MS = 5_000

_log = logging.getLogger("penstock.integrations")


class TaskOptions(TypedDict, total=False):
    """Options for the limit of a task.

    `key` and `cost` are those of `limited`; without a key all runs of the task share the limit.
    `store` is one that the workers share, and `prefix` stands before its keys, by default the name
    of the function. A task books at most `max_wait` seconds ahead; beyond that it asks again.
    """

    key: Key | None
    cost: Cost
    max_wait: float
    store: Store | str | None
    prefix: str | None


class PutBack(NamedTuple):
    """The task must not run now, but be put back for `delay_ms`. Then it starts at the instant
    `starts_at`, which it has booked; if that is None, it asks again. `tries` is how often it has
    waited for a slot in vain."""

    delay_ms: int
    starts_at: int | None
    tries: int = 0


class QueuedTask(NamedTuple):
    """A task that a worker runs: the instant that it has booked, if any, how often it has waited
    for a slot, and a function that puts it back and returns the error that tells the queue. For arq
    it is awaited."""

    starts_at: int | None
    tries: int
    put_back: Callable[[PutBack], Any]


class _ForSlot(NamedTuple):
    """A request to wait for slots, for at most `timeout` seconds."""

    keys: Any
    cost: Any
    timeout: float | None


class TaskLimit:
    """The limit of one task, by `TaskOptions`. `early_ms` is how late the queue may return a task
    that was put back."""

    def __init__(
        self,
        function: Callable[..., Any],
        limit: Target,
        *,
        early_ms: int,
        max_wait: float,
        key: Key | None = None,
        cost: Cost = 1,
        store: Store | str | None = None,
        prefix: str | None = None,
    ) -> None:
        import inspect

        require_function(function)
        name = f"{function.__module__}.{function.__qualname__}"
        wait_ms = timeout_in_ms(max_wait)
        if not wait_ms:
            reject("max_wait must be a number of seconds above 0")
        self._max_wait_ms: int = wait_ms
        self._early_ms = early_ms
        self._limiter: Any = _limiter_of(limit, store, name if prefix is None else prefix)
        asked = name if key is None and is_limiter(limit) else key
        self._question = Question(
            self._limiter, Arguments(inspect.signature(function), name), asked, cost
        )
        self._clock = SystemClock()
        self._is_policy = not isinstance(self._limiter, (Limiter, Limits))
        self._has_slots = not self._is_policy and holds_slots(self._limiter)
        self._ahead = {"max_wait_ms": wait_ms} if self._books() else {}

    def require_sync(self) -> None:
        """Refuse a key or a cost that would have to be awaited."""
        self._question.require_sync()

    def run(
        self, function: Callable[..., Any], args: Any, named: Any, queued: QueuedTask | None
    ) -> Any:
        """Run a task when its limit admits it, or put it back. Without `queued` it was called like
        a function, and waits."""
        if queued is None:
            held = self.wait(args, named)
        else:
            found = self.begin(args, named, queued.starts_at, queued.tries)
            if isinstance(found, PutBack):
                raise queued.put_back(found)
            held = found
        try:
            return function(*args, **named)
        finally:
            self.leave(held)

    async def arun(
        self, function: Callable[..., Any], args: Any, named: Any, queued: QueuedTask | None
    ) -> Any:
        """The awaitable twin of `run`."""
        if queued is None:
            held = await self.await_(args, named)
        else:
            found = await self.abegin(args, named, queued.starts_at, queued.tries)
            if isinstance(found, PutBack):
                raise await queued.put_back(found)
            held = found
        try:
            return await function(*args, **named)
        finally:
            await self.aleave(held)

    def enter(
        self, args: Any, named: Any, starts_at: int | None, tries: int = 0, *, stays: bool = False
    ) -> Settling | PutBack | None:
        """Wait for a task that may run soon, and return its charge, if it holds slots. For one that
        may not, return how long to put it back. A task that `stays` waits for its slot as long as
        it takes."""
        if starts_at is not None:
            sleep(self._clock, self._rest_ms(starts_at))
            return None
        keys, cost = self._question.of(args, named)
        flow = self._entering(keys, cost, tries, stays)
        found = drive(flow, self._serve)
        if isinstance(found, Settling):
            hold(found)
        return found

    async def aenter(
        self, args: Any, named: Any, starts_at: int | None, tries: int = 0, *, stays: bool = False
    ) -> Settling | PutBack | None:
        """The awaitable twin of `enter`."""
        if starts_at is not None:
            await asleep(self._clock, self._rest_ms(starts_at))
            return None
        keys, cost = await self._question.afor(args, named)
        flow = self._entering(keys, cost, tries, stays)
        found = await adrive(flow, self._aserve)
        if isinstance(found, Settling):
            ahold(found)
        return found

    def begin(
        self, args: Any, named: Any, starts_at: int | None, tries: int = 0
    ) -> Settling | PutBack | None:
        """`enter`, for a task that a worker runs: while the store is away it is put back."""
        try:
            return self.enter(args, named, starts_at, tries)
        except StoreUnavailableError as error:
            return _undecided(error)

    async def abegin(
        self, args: Any, named: Any, starts_at: int | None, tries: int = 0
    ) -> Settling | PutBack | None:
        """The awaitable twin of `begin`."""
        try:
            return await self.aenter(args, named, starts_at, tries)
        except StoreUnavailableError as error:
            return _undecided(error)

    def wait(self, args: Any, named: Any) -> Settling | None:
        """For a task that is called like a function: there is no queue to put it back into."""
        while isinstance(found := self.enter(args, named, None, stays=True), PutBack):
            sleep(self._clock, found.delay_ms)
            if found.starts_at is not None:
                return self.enter(args, named, found.starts_at)  # type: ignore[return-value]
        return found

    async def await_(self, args: Any, named: Any) -> Settling | None:
        """The awaitable twin of `wait`."""
        while isinstance(found := await self.aenter(args, named, None, stays=True), PutBack):
            await asleep(self._clock, found.delay_ms)
            if found.starts_at is not None:
                return await self.aenter(args, named, found.starts_at)  # type: ignore[return-value]
        return found

    def leave(self, charge: Settling | None) -> None:
        """Free the slots of a task that has ended or failed."""
        if charge is not None:
            release(charge)

    async def aleave(self, charge: Settling | None) -> None:
        """The awaitable twin of `leave`."""
        if charge is not None:
            await arelease(charge)

    def _entering(
        self, keys: Any, cost: Any, tries: int, stays: bool
    ) -> Flow[Any, Settling | PutBack | None]:
        """Ask, and wait for what is near. Yields the number of ms to sleep, what to reserve as a
        tuple of keys, cost and options, a charge to cancel, or slots to wait for."""
        worst_ms = self._early_ms
        while True:
            if self._has_slots:
                timeout = None if stays else max(self._early_ms, _SLOT_WAIT_MS) / 1000
                charge = yield _ForSlot(keys, cost, timeout)
                return self._slotted(charge, tries)
            charge = yield from self._reserving(keys, cost)
            if self._has_slots and not charge:
                # It was not known before.
                continue
            if charge:
                break
            # A bucket may be a millisecond short of what it has reported.
            if not 0 < charge.retry_after_ms <= worst_ms:
                # Beyond `max_wait` it books nothing, and asks again after that time.
                return PutBack(max(1, min(charge.retry_after_ms, self._max_wait_ms)), None)
            worst_ms -= charge.retry_after_ms
            yield charge.retry_after_ms
        wait_ms = charge.starts_at - charge.charged_at
        if wait_ms > self._early_ms:
            return PutBack(wait_ms - self._early_ms, self._clock.now() + wait_ms)
        yield wait_ms
        return None if charge.ttl_ms is None else charge

    def _slotted(self, found: Any, tries: int) -> Settling | PutBack | None:
        """What becomes of a task that has waited for slots."""
        if not isinstance(found, RateLimitExceededError):
            return found if getattr(found, "ttl_ms", None) is not None else None
        retry_ms = found.decision.retry_after_ms
        if retry_ms > MAX_SLOT_WAIT_MS:
            # Another limit has the longest wait.
            return PutBack(min(retry_ms, self._max_wait_ms), None)
        delay_ms = min(_FIRST_DELAY_MS << min(tries, 10), _LONGEST_DELAY_MS)
        return PutBack(min(delay_ms, self._max_wait_ms), None, tries + 1)

    def _reserving(self, keys: Any, cost: Any) -> Flow[Any, Settling]:
        """Book ahead, or take what is available. A policy of a service that has no pace, or has
        slots, which a waiting task would hold, is not booked again."""
        try:
            charge: Settling = yield keys, cost, self._ahead
        except UnsupportedError:
            if not self._is_policy or not self._ahead:
                raise
            self._ahead = {}
            charge = yield keys, cost, {}
        if charge.ttl_ms is None:
            return charge
        self._ahead, self._has_slots = {}, True
        if not charge or charge.starts_at == charge.charged_at:
            return charge
        yield charge
        charge = yield keys, cost, {}
        return charge

    def _serve(self, asked: Any) -> Any:
        if isinstance(asked, Settling):
            return asked.cancel()
        if isinstance(asked, int):
            return sleep(self._clock, asked)
        if isinstance(asked, _ForSlot):
            try:
                return self._limiter.acquire(asked.keys, asked.cost, asked.timeout)
            except RateLimitExceededError as error:
                return error
        keys, cost, ahead = asked
        return self._limiter.reserve(keys, cost, **ahead)

    async def _aserve(self, asked: Any) -> Any:
        if isinstance(asked, Settling):
            return await asked.acancel()
        if isinstance(asked, int):
            return await asleep(self._clock, asked)
        if isinstance(asked, _ForSlot):
            try:
                return await self._limiter.aacquire(asked.keys, asked.cost, asked.timeout)
            except RateLimitExceededError as error:
                return error
        keys, cost, ahead = asked
        return await self._limiter.areserve(keys, cost, **ahead)

    def _rest_ms(self, starts_at: int) -> int:
        """The rest of a wait. Clocks of machines may differ, so it is at most the time that was
        left for waiting here."""
        return min(max(0, starts_at - self._clock.now()), self._early_ms)

    def _books(self) -> bool:
        if self._is_policy:
            return True
        if holds_slots(self._limiter):
            return False
        if isinstance(self._limiter, Limits):
            return any(each.strategy.books_ahead for each in self._limiter.limits.values())
        books: bool = self._limiter.strategy.books_ahead
        return books


def _undecided(error: StoreUnavailableError) -> PutBack:
    _log.warning("a task waits until its limit can be looked up: %s", error)
    return PutBack(_AWAY_MS, None)


def _limiter_of(limit: Any, store: Store | str | None, prefix: str) -> Any:
    if is_limiter(limit):
        if store is not None:
            reject("a limiter has its own store: leave store out, or give a rate instead")
        return limit
    if store is None:
        reject(
            "workers are processes, and share a limit only through a store: give it one, such as "
            "store='redis://localhost:6379'"
        )
    require_prefix(prefix)
    if isinstance(limit, Mapping):
        return Limits(limit, store=store, prefix=prefix)
    made: Limiter = rate_limit(limit, store=store, prefix=prefix)
    return made
