"""Paces outgoing calls: they wait for limits here, and pause when the remote server says so.

A pacer is a `Limits` with an additional limit, `paused`, which is only asked and never charged.
It admits everything until it is paused. Then no process that shares the store is admitted until the
pause is over.

The callers of a process queue by key (`core/_waiting.py`). The first of them books limits with a
pace ahead, and leads the queue until its instant has come. So the heads of all processes get their
instants in order of arrival, a large request is not overtaken by small ones, and a process that
dies leaves no more than one booking behind. A booking from before a pause must not be used during
it, so a caller that has slept checks again, and books again if necessary. Limits without a pace,
such as windows and slots, have to admit at once.

Instants are those of the clock that decides, which may be the server's. So the current time is
computed: the instant of the charge, by that clock, plus the time that has passed since, by ours.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from .._limits import Limit, Limits
from .._queueing import ThreadWaiter
from .._rate_limit import rate_limit
from ..core._charges import Charge
from ..core._clock import Clock
from ..core._errors import StoreUnavailableError
from ..core._store import Store
from ..core._strategy import Strategy
from ..core._validation import MAX_SPAN_MS, reject, require_int, require_prefix, shown
from ..core._waiting import (
    KeyQueues,
    Wait,
    Watch,
    aacquire,
    acquire,
    timeout_in_ms,
    waiting_clock,
)
from ..stores._opening import open_for_limiter
from ..strategies import Gcra
from ._answers import advice_of

__all__ = [
    "PAUSED",
    "EnteredCall",
    "PacedCalls",
    "PacedCharge",
    "Pacer",
    "as_limits",
    "asleep",
    "sleep",
]

_log = logging.getLogger("penstock.integrations")

PAUSED = "paused"
"""The name of the limit that is paused."""


class _Gate(Gcra):
    """Admits everything, and nothing during a pause."""

    is_gate = True


# How far ahead a caller without a timeout books; beyond that it waits before it books.
_HORIZON_MS = 3_600_000


def as_limits(limit: Any) -> dict[str, Strategy | str | Limit]:
    """One limit, or several by name, as a mapping."""
    if not isinstance(limit, Mapping):
        return {"rate": limit}
    if PAUSED in limit:
        reject(f"the name {PAUSED!r} is taken by what the answers of others pause")
    return dict(limit)


class PacedCharge:
    """A charge that may be used now, with the time by the clock that decided it."""

    __slots__ = ("_asked_at", "_clock", "charge", "key")

    def __init__(self, key: str, charge: Charge, clock: Clock, asked_at: int) -> None:
        self.key: str = key
        self.charge: Charge = charge
        self._clock = clock
        self._asked_at = asked_at

    def now(self) -> int:
        """The current instant, by the clock that decides."""
        return self.charge.charged_at + self._clock.now() - self._asked_at

    def remaining(self, name: str) -> int:
        """What was left of a limit when this was charged."""
        verdict = self.charge.verdict
        assert verdict is not None
        return verdict.limits[name].remaining


class _Asking:
    """One caller that waits: the keys and costs of its call, and the time that it has left."""

    def __init__(
        self, pacer: Pacer, key: str, cost: Mapping[str, int], timeout_ms: int | None
    ) -> None:
        self._pacer = pacer
        self._key = key
        self._keys = pacer.keys(key)
        self._cost = {**cost, PAUSED: 0}
        self._clock = pacer.clock
        self._until = None if timeout_ms is None else self._clock.now() + timeout_ms
        self.asked_at: int = 0

    def left_ms(self) -> int | None:
        return None if self._until is None else max(0, self._until - self._clock.now())

    def wait(self) -> Wait:
        """What it waits for."""
        pacer, limits = self._pacer, self._pacer.limits
        pools = limits.pools(self._keys)
        at_once = limits.answers_at_once
        return Wait(
            pacer.queues, self._key, self._clock, self.left_ms(), self._cost, at_once, pools
        )

    def reserve(self, leads: bool) -> Charge:
        """Charge the limits. The leader of the queue books ahead, and returns at its instant."""
        while True:
            self.asked_at = self._clock.now()
            charge = self._pacer.limits.reserve(
                self._keys, self._cost, max_wait_ms=self._ahead_ms() if leads else 0
            )
            if not charge or self._pacer.is_due(self._key, charge):
                return charge

    async def areserve(self, leads: bool) -> Charge:
        """The awaitable twin of `reserve`."""
        while True:
            self.asked_at = self._clock.now()
            charge = await self._pacer.limits.areserve(
                self._keys, self._cost, max_wait_ms=self._ahead_ms() if leads else 0
            )
            if not charge or await self._pacer.ais_due(self._key, charge):
                return charge

    def peek(self) -> Any:
        return self._pacer.limits.peek(self._keys)

    async def apeek(self) -> Any:
        return await self._pacer.limits.apeek(self._keys)

    def _ahead_ms(self) -> int:
        left = self.left_ms()
        return _HORIZON_MS if left is None else min(left, MAX_SPAN_MS)


class Pacer:
    """Waits for limits, and pauses them.

    All limits have the same key, except those without one; the default cost is 1. `units` says
    what each limit counts, requests or tokens, to compare with what a response reports.
    """

    def __init__(
        self,
        limits: Mapping[str, Strategy | str | Limit],
        units: Mapping[str, str],
        *,
        store: Store,
        clock: Clock | None,
        prefix: str,
        max_waiters: int | None,
        max_pause_ms: int,
    ) -> None:
        if max_waiters is not None:
            require_int("max_waiters", max_waiters, 0)
        gate = _Gate(1, 1)
        self.limits: Limits = Limits(
            {**limits, PAUSED: Limit(gate, optional=True)}, store=store, clock=clock, prefix=prefix
        )
        self._gate = rate_limit(
            gate, store=store, clock=clock, prefix=f"{prefix}:{PAUSED}" if prefix else PAUSED
        )
        self._max_pause_ms = require_int("max_pause_ms", max_pause_ms, 1)
        declared = self.limits.limits
        self._keyed = [name for name, limit in declared.items() if not limit.keyless]
        self._paced = [name for name, limit in declared.items() if limit.strategy.books_ahead]
        self._units = {
            name: units[name]
            for name, limit in declared.items()
            if name in units and not limit.strategy.is_held
        }
        self.queues: KeyQueues = KeyQueues(max_waiters)
        self._shrinking: set[str] = set()
        self.clock: Clock = waiting_clock(self.limits.clock)

    def keys(self, key: str) -> dict[str, str]:
        """One key, for all limits that take one."""
        return dict.fromkeys(self._keyed, key)

    def enter(self, key: str, cost: Mapping[str, int], timeout_ms: int | None) -> PacedCharge:
        """Wait until all limits admit the call. Raises `rate_limit_exceeded` as soon as it is known
        that the timeout is too short."""
        ask = _Asking(self, key, cost, timeout_ms)
        charge: Charge = acquire(ask.wait(), ask.reserve, ask.peek)
        return PacedCharge(key, charge, self.clock, ask.asked_at)

    async def aenter(
        self, key: str, cost: Mapping[str, int], timeout_ms: int | None
    ) -> PacedCharge:
        """The awaitable twin of `enter`. Cancelling it gives back its charge."""
        ask = _Asking(self, key, cost, timeout_ms)
        charge: Charge = await aacquire(ask.wait(), ask.areserve, ask.apeek)
        return PacedCharge(key, charge, self.clock, ask.asked_at)

    def observe(self, entered: PacedCharge, status: int, headers: Mapping[str, Any]) -> None:
        """Obey a response: pause if it says so, and take the units that it reports as used
        elsewhere. Call it after the charge of a refused call was given back. A store that is away
        does not fail a call that was answered."""
        now, key = entered.now(), entered.key
        advice = advice_of(status, headers, now)
        try:
            if advice.pause_ms:
                self.limits.pause(self._pausable(key), now + self._bounded(advice.pause_ms))
            elif over := self._over(entered, advice.quotas):
                with self._shrink(key) as keys:
                    if keys and (excess := self._excess(self.limits.peek(keys), over)):
                        self.limits.reserve(keys, excess)
        except StoreUnavailableError as error:
            _log.warning("what an answer said of limits could not be kept: %s", error)

    async def aobserve(self, entered: PacedCharge, status: int, headers: Mapping[str, Any]) -> None:
        """The awaitable twin of `observe`."""
        now, key = entered.now(), entered.key
        advice = advice_of(status, headers, now)
        try:
            if advice.pause_ms:
                until = now + self._bounded(advice.pause_ms)
                await self.limits.apause(self._pausable(key), until)
            elif over := self._over(entered, advice.quotas):
                with self._shrink(key) as keys:
                    if keys and (excess := self._excess(await self.limits.apeek(keys), over)):
                        await self.limits.areserve(keys, excess)
        except StoreUnavailableError as error:
            _log.warning("what an answer said of limits could not be kept: %s", error)

    def is_due(self, key: str, charge: Charge) -> bool:
        """Sleep until the booked instant. False if a pause has begun meanwhile, or a slot was lost;
        then the charge was given back."""
        naps = _naps(charge)
        if not naps:
            return True
        try:
            for nap_ms in naps:
                sleep(self.clock, nap_ms)
                if charge.ttl_ms is not None and not charge.renew():
                    break
            else:
                if self._gate.peek(key).allowed:
                    return True
        except BaseException:
            charge.cancel()
            raise
        charge.cancel()
        return False

    async def ais_due(self, key: str, charge: Charge) -> bool:
        """The awaitable twin of `is_due`."""
        naps = _naps(charge)
        if not naps:
            return True
        try:
            for nap_ms in naps:
                await asleep(self.clock, nap_ms)
                if charge.ttl_ms is not None and not await charge.arenew():
                    break
            else:
                if (await self._gate.apeek(key)).allowed:
                    return True
        except BaseException:
            await charge.acancel()
            raise
        await charge.acancel()
        return False

    def _bounded(self, pause_ms: int) -> int:
        return min(pause_ms, self._max_pause_ms)

    def _pausable(self, key: str) -> dict[str, str | None]:
        """The limits to pause: `paused`, and those with a pace, which afterwards continue at their
        pace, without a burst. A paused window would deny until its own end."""
        return {name: key if name in self._keyed else None for name in self._paced}

    @contextmanager
    def _shrink(self, key: str) -> Iterator[dict[str, str]]:
        """The keys to peek at and to charge, without `paused`, which may deny. Empty while another
        response for this key is being obeyed: both would take the same excess."""
        if key in self._shrinking:
            yield {}
            return
        self._shrinking.add(key)
        try:
            yield {name: each for name, each in self.keys(key).items() if name != PAUSED}
        finally:
            self._shrinking.discard(key)

    def _over(self, entered: PacedCharge, quotas: Mapping[str, Any]) -> dict[str, int]:
        """What is left according to the response, for limits of which we have more left."""
        told = {
            name: quotas[unit].remaining
            for name, unit in self._units.items()
            if unit in quotas and quotas[unit].remaining is not None
        }
        return {name: left for name, left in told.items() if entered.remaining(name) > left}

    def _excess(self, verdict: Any, told: Mapping[str, int]) -> dict[str, int]:
        """The units to take, by limit; empty if other callers have taken them meanwhile."""
        costs = {
            name: max(0, verdict.limits[name].remaining - told[name]) if name in told else 0
            for name in verdict.limits
        }
        return costs if any(costs.values()) else {}


class EnteredCall(NamedTuple):
    """A call that was admitted, and the pacer that observes its response."""

    pacer: Pacer
    charge: PacedCharge


class PacedCalls:
    """What all calls of a client have in common: how long they wait, whether responses are obeyed,
    and the store of the limits."""

    def __init__(
        self,
        *,
        prefix: str,
        timeout: float | None = None,
        honour: bool = True,
        max_pause_ms: int = 3_600_000,
        store: Store | str | None = None,
        clock: Clock | None = None,
        max_waiters: int | None = None,
    ) -> None:
        self._timeout_ms = timeout_in_ms(timeout)
        if not isinstance(honour, bool):
            reject(f"honour must be True or False, not {shown(honour)}")
        self.honour: bool = honour
        """Whether limits that responses report are obeyed."""
        self._prefix = require_prefix(prefix)
        self._bounds: Any = {"max_pause_ms": max_pause_ms, "max_waiters": max_waiters}
        self._clock = clock
        self._store, self._owns_store = open_for_limiter(store, clock)

    def pacer(self, rate: Any, place: str) -> Pacer:
        """The limits of the calls to one place, which count under its name."""
        limits = as_limits(rate)
        prefix = ":".join(filter(None, (self._prefix, place)))
        units = dict.fromkeys(limits, "requests")
        return Pacer(
            limits, units, store=self._store, clock=self._clock, prefix=prefix, **self._bounds
        )

    def enter(self, found: tuple[Pacer, str] | None) -> EnteredCall | None:
        """Wait until a call may be made, by its limits and its key; None: it has no limits."""
        if found is None:
            return None
        pacer, key = found
        return EnteredCall(pacer, pacer.enter(key, {}, self._timeout_ms))

    async def aenter(self, found: tuple[Pacer, str] | None) -> EnteredCall | None:
        """The awaitable twin of `enter`."""
        if found is None:
            return None
        pacer, key = found
        return EnteredCall(pacer, await pacer.aenter(key, {}, self._timeout_ms))

    def observe(self, entered: EnteredCall | None, status: int, headers: Mapping[str, Any]) -> None:
        """Obey the limits that the response to a call reports."""
        if entered is not None and self.honour:
            entered.pacer.observe(entered.charge, status, headers)

    async def aobserve(
        self, entered: EnteredCall | None, status: int, headers: Mapping[str, Any]
    ) -> None:
        """The awaitable twin of `observe`."""
        if entered is not None and self.honour:
            await entered.pacer.aobserve(entered.charge, status, headers)

    def close(self) -> None:
        """Close the store that was opened here."""
        if self._owns_store:
            self._store.close()

    async def aclose(self) -> None:
        """The awaitable twin of `close`."""
        if self._owns_store:
            await self._store.aclose()


def _naps(charge: Charge) -> list[int]:
    """The time until a charge may be used, in parts; its slots are renewed after each."""
    wait_ms = charge.starts_at - charge.charged_at
    longest = wait_ms if charge.ttl_ms is None else max(1, charge.ttl_ms // 3)
    return [min(longest, wait_ms - slept) for slept in range(0, wait_ms, longest or 1)]


def sleep(clock: Clock, ms: int) -> None:
    """Sleep by a clock, which may be a `ManualClock`."""
    until = clock.now() + ms
    waiter = ThreadWaiter(sys._getframe())
    watch = Watch(clock, waiter.wake)
    try:
        while (left := until - clock.now()) > 0:
            waiter.sleep(watch.real_s(left))
    finally:
        watch.end()
        waiter.end()


async def asleep(clock: Clock, ms: int) -> None:
    """The awaitable twin of `sleep`."""
    from .._queueing.tasks import Event, TaskWaiter
    from ..core._loops import running_loop

    until = clock.now() + ms
    woken = Event()
    waiter = TaskWaiter(woken, running_loop())
    watch = Watch(clock, waiter.wake)
    try:
        while (left := until - clock.now()) > 0:
            await waiter.sleep(watch.real_s(left))
    finally:
        watch.end()
        waiter.end()
