"""A charge: units that were taken, and can be given back or made up for, once.

What a request costs is often known only afterwards. So an estimate is reserved, and settled when
the true cost is known: what was too much comes back (`Strategy.refund`), and what was too little is
taken whatever is left (`Strategy.charge`), because it has been used. Both are one step of the
store, for all limits of the charge together. A charge settles once: whoever comes second, from
whatever thread, changes nothing.

What is held rather than spent, such as slots, is held under the id of the charge. `renew` prolongs
it; `settle` and `cancel` give it back, whatever was used. A holder counts on its slot no longer
than it can be sure of: from before it asked, by its own steady clock, for the slot's time less a
margin. After that `holds` is False, before the store gives the slot to somebody else.

A settlement that a store did not answer is not repeated: it may have happened, and to give back
twice would admit too much.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ._decision import Booking, Decision
from ._flow import Settling
from ._store import Store
from ._strategy import Strategy
from ._transform import (
    PoolRenewals,
    Step,
    booking,
    charging,
    checking,
    pausing,
    queueing,
    refunding,
    releasing,
    taking,
    telling,
    ticketing,
)
from ._validation import MAX_INSTANT_MS, MAX_SPAN_MS, reject, require_int, shown
from ._verdict import Verdict

__all__ = [
    "Answer",
    "Charge",
    "Part",
    "Tickets",
    "areserved",
    "aspent",
    "new_id",
    "pauses",
    "require_until",
    "require_wait",
    "reserved",
    "spent",
]


_MARGIN = 1 / 8
"""Of its ttl, by which a holder stops counting on a slot before the store gives it away."""


class Part(NamedTuple):
    """What a charge takes from one limit; `name` is empty where there is only one."""

    name: str
    key: str
    strategy: Strategy
    cost: int
    shadow: bool = False


class Charge(Settling):
    """Units that were reserved. `bool(charge)` is `charge.allowed`.

    `decision` is the answer of the limit, or of the one that binds; `verdict` holds all of them,
    where there are several. `starts_at` is the instant (epoch ms) from which the units are the
    caller's: that of the call, unless they were booked ahead. A charge that was denied holds
    nothing.

    As a context manager it is cancelled by an exception. A block that ends without one leaves the
    charge settled: what was reserved is spent, unless `settle` said otherwise, and slots are given
    back.
    """

    def __init__(
        self,
        store: Store,
        now: Callable[[], int],
        parts: Sequence[Part],
        answer: Decision | Verdict,
        charged_at: int,
        delays_ms: Sequence[int],
        slot_id: str = "",
        asked_at: float = 0.0,
    ) -> None:
        self.id: str = slot_id
        """Under which slots are held."""
        self.verdict: Verdict | None = answer if isinstance(answer, Verdict) else None
        self.decision: Decision = answer.decision if isinstance(answer, Verdict) else answer
        self.allowed: bool = answer.allowed
        self.charged_at: int = charged_at
        self.delays_ms: tuple[int, ...] = tuple(delays_ms)
        """By how much each part was booked ahead."""
        self.starts_at: int = charged_at + max(delays_ms, default=0)
        self._store = store
        self._now = now
        told = (self.decision,) if self.verdict is None else self.verdict.decisions
        self._parts: list[tuple[Part, int]] = []
        self._ttl_ms: int | None = None
        # Whoever takes this out settles.
        self._open = [True] if self.allowed else []
        if self.allowed:
            for part, delay_ms, decision in zip(parts, delays_ms, told, strict=True):
                # A shadow that would have denied was not charged.
                if decision.allowed and part.cost:
                    self._add(part, charged_at + delay_ms)
        self._sure_until = self._sure_from(asked_at)

    def _add(self, part: Part, at: int) -> None:
        self._parts.append((part, at))
        if part.strategy.is_held:
            ttl_ms = part.strategy.ttl_ms
            self._ttl_ms = ttl_ms if self._ttl_ms is None else min(self._ttl_ms, ttl_ms)

    @property
    def is_open(self) -> bool:
        """Whether it was neither settled nor cancelled yet."""
        return bool(self._open)

    @property
    def holds(self) -> bool:
        """Whether it has slots and may count on all of them."""
        return self.is_open and self._ttl_ms is not None and time.monotonic() < self._sure_until

    @property
    def ttl_ms(self) -> int | None:
        """For how long its slots are held without being renewed; None if it has none."""
        return self._ttl_ms

    def renew(self) -> bool:
        """Hold its slots for another ttl. False if one of them was lost: somebody else may have
        it."""
        asked_at = time.monotonic()
        pools = PoolRenewals(self.held())
        if not pools.steps:
            return False
        told = self._store.apply_all(pools.steps, self._now())
        return self.renewed(pools.answers(told), asked_at)

    async def arenew(self) -> bool:
        """The awaitable twin of `renew`."""
        asked_at = time.monotonic()
        pools = PoolRenewals(self.held())
        if not pools.steps:
            return False
        told = await self._store.aapply_all(pools.steps, self._now())
        return self.renewed(pools.answers(told), asked_at)

    def keep_renewed(self, on_lost: Callable[[Charge], object] | None = None) -> Charge:
        """Renew it in the background until it is settled or lost: a thread renews all charges of
        this process that are kept, those on one store in one call. `on_lost` is called, in that
        thread, when it cannot be counted on any more. Returns the charge itself."""
        from ._renewing import keep

        keep(self._require_held(), on_lost)
        return self

    def akeep_renewed(self, on_lost: Callable[[Charge], object] | None = None) -> Charge:
        """The same by a task of the running event loop, with a store that is awaited."""
        from ._renewing import keep_on_loop

        keep_on_loop(self._require_held(), on_lost)
        return self

    def _require_held(self) -> Charge:
        if self._ttl_ms is None or not self.is_open:
            reject(
                "only a charge that holds slots can be kept renewed, and this one holds none; look "
                "at charge.allowed first"
            )
        return self

    def held(self) -> list[tuple[str, Strategy, str]]:
        """The slots to renew, for `PoolRenewals`; those of several charges may go together."""
        if not self.is_open:
            return []
        return [(p.key, p.strategy, self.id) for p, _ in self._parts if p.strategy.is_held]

    def renewed(self, answers: Sequence[Decision], asked_at: float) -> bool:
        """Take down what the store answered to that, `asked_at` by the steady clock."""
        held = all(answer.allowed for answer in answers)
        # One that was lost is given up at once, and not when its time would be over.
        self._sure_until = self._sure_from(asked_at) if held else 0.0
        return held

    def _sure_from(self, asked_at: float) -> float:
        if self._ttl_ms is None:
            return 0.0
        return asked_at + self._ttl_ms * (1 - _MARGIN) / 1000

    @property
    def cost(self) -> Mapping[str, int]:
        """What was reserved, by the name of the limit, which is empty for a limit on its own."""
        return {part.name: part.cost for part, _ in self._parts}

    def settle(self, actual: int | Mapping[str, int]) -> bool:
        """Replace what was reserved by what was used: for every limit, or by name, where those left
        out stay as they are. True if this call did it, False if it was settled before."""
        steps = self.settlement(actual)
        if not self._take():
            return False
        if steps:
            self._store.apply_all(steps, self._now())
        return True

    async def asettle(self, actual: int | Mapping[str, int]) -> bool:
        """The awaitable twin of `settle`."""
        steps = self.settlement(actual)
        if not self._take():
            return False
        if steps:
            await self._store.aapply_all(steps, self._now())
        return True

    def cancel(self) -> bool:
        """Give everything back. True if this call did it; a charge that was denied has nothing."""
        if not self._take():
            return False
        self._store.apply_all(self.refunds(), self._now())
        return True

    async def acancel(self) -> bool:
        """The awaitable twin of `cancel`."""
        if not self._take():
            return False
        await self._store.aapply_all(self.refunds(), self._now())
        return True

    def _take(self) -> bool:
        try:
            return self._open.pop()
        except IndexError:
            return False

    def refunds(self) -> list[Step]:
        """What to ask the store in order to give everything back."""
        return [self._refund(part, at, part.cost) for part, at in self._parts]

    def _refund(self, part: Part, at: int, units: int) -> Step:
        if part.strategy.is_held:
            return Step(part.key, releasing(part.strategy, self.id))
        return Step(part.key, refunding(part.strategy, at), units)

    def settlement(self, actual: int | Mapping[str, int]) -> list[Step]:
        """What to ask the store in order to replace what was reserved by what was used."""
        if not self.allowed:
            reject(
                "this charge was denied, so there is nothing to settle; look at charge.allowed "
                "before the work begins"
            )
        used = self._used(actual)
        steps = []
        for part, at in self._parts:
            more = used.get(part.name, part.cost) - part.cost
            if part.strategy.is_held:
                steps.append(self._refund(part, at, 1))
            elif more > 0:
                steps.append(Step(part.key, charging(part.strategy), more))
            elif more < 0:
                steps.append(self._refund(part, at, -more))
        return steps

    def _used(self, actual: int | Mapping[str, int]) -> Mapping[str, int]:
        if not isinstance(actual, Mapping):
            require_int("actual", actual, 0)
            return {part.name: actual for part, _ in self._parts}
        # What a shadow did not take is not an error: whether it did was not the caller's choice.
        names = set(self.cost)
        if self.verdict is not None:
            names |= set(self.verdict.limits)
        for name, units in actual.items():
            if name not in names:
                there = ", ".join(map(repr, names)) or "none"
                reject(f"actual names {shown(name)}, which was not charged; there are {there}")
            require_int(f"the actual cost of {name!r}", units, 0)
        return actual

    def __repr__(self) -> str:
        state = "open" if self._open else "settled" if self.allowed else "denied"
        return f"<Charge {state}, {dict(self.cost)!r}, starts_at={self.starts_at}>"


Answer = Callable[[Sequence[Decision]], Decision | Verdict]
"""What to make of the decisions: the one, or the verdict of several."""


def reserved(
    store: Store,
    now: Callable[[], int],
    parts: Sequence[Part],
    max_wait_ms: int,
    answer: Answer,
    waiter_id: str = "",
) -> Charge:
    """Take what the parts cost, all or nothing, and hold it. A `waiter_id` asks for a slot in turn
    with the others that wait for it, and is its id then."""
    at, asked_at, slot_id = now(), time.monotonic(), waiter_id or new_id(parts)
    taking = _queueing if waiter_id else _taking
    results = store.apply_all(taking(store, parts, max_wait_ms, slot_id), at)
    return _charge(store, now, parts, results, at, answer, slot_id, asked_at)


async def areserved(
    store: Store,
    now: Callable[[], int],
    parts: Sequence[Part],
    max_wait_ms: int,
    answer: Answer,
    waiter_id: str = "",
    *,
    slot_id: str = "",
    also: Sequence[Step] = (),
) -> Charge:
    """The awaitable twin of `reserved`. `slot_id` is under what slots are held, by default a new
    one. `also` is done in the same step, where the parts admit it."""
    at, asked_at, slot_id = now(), time.monotonic(), waiter_id or slot_id or new_id(parts)
    taking = _queueing if waiter_id else _taking
    results = await store.aapply_all(taking(store, parts, max_wait_ms, slot_id, also), at)
    return _charge(store, now, parts, results, at, answer, slot_id, asked_at)


def spent(
    store: Store,
    now: Callable[[], int],
    parts: Sequence[Part],
    answer: Decision | Verdict,
    asked_at: int,
) -> Charge:
    """What a check, asked at `asked_at` by the clock of `now`, has spent."""
    tells = _tells(store, parts)
    told = store.apply_all(tells, now()) if tells else []
    return _spent(store, now, parts, answer, asked_at, told)


async def aspent(
    store: Store,
    now: Callable[[], int],
    parts: Sequence[Part],
    answer: Decision | Verdict,
    asked_at: int,
) -> Charge:
    """The awaitable twin of `spent`."""
    tells = _tells(store, parts)
    told = await store.aapply_all(tells, now()) if tells else []
    return _spent(store, now, parts, answer, asked_at, told)


def _spent(
    store: Store,
    now: Callable[[], int],
    parts: Sequence[Part],
    answer: Decision | Verdict,
    asked_at: int,
    told: Sequence[int],
) -> Charge:
    # By the store's clock as early as it can have been: too early a refund takes nothing from a
    # window that came after, too late a one might.
    at = told[0] - max(0, now() - asked_at) - 1 if told else asked_at
    return Charge(store, now, parts, answer, at, [0] * len(parts))


def new_id(parts: Sequence[Part]) -> str:
    """For what is held; it begins with a letter, so that nobody takes it for a number."""
    for part in parts:
        if part.strategy.is_held:
            return f"s{os.urandom(12).hex()}"
    return ""


def _taking(
    store: Store, parts: Sequence[Part], max_wait_ms: int, slot_id: str, also: Sequence[Step] = ()
) -> list[Step]:
    steps = []
    for part in parts:
        strategy = part.strategy
        transform: Any
        if strategy.is_held and part.cost:
            _require_one(part)
            transform = taking(strategy, slot_id)
        elif max_wait_ms and strategy.books_ahead and part.cost:
            transform = booking(strategy, max_wait_ms)
        else:
            transform = checking(strategy)
        steps.append(Step(part.key, transform, part.cost, part.shadow))
    return [*steps, *also, *_tells(store, parts)]


def _queueing(
    store: Store,
    parts: Sequence[Part],
    max_wait_ms: int,
    slot_id: str,
    also: Sequence[Step] = (),
) -> list[Step]:
    steps = _taking(store, parts, max_wait_ms, slot_id, also)
    # Alone, it is a shadow: a denial keeps a ticket by the same call.
    is_alone = len(parts) == 1
    for place, part in enumerate(parts):
        if part.strategy.is_held and part.cost and not part.shadow:
            steps[place] = Step(part.key, queueing(part.strategy, slot_id), 1, shadow=is_alone)
    return steps


class Tickets:
    """Those of a waiter for several limits: it has one for each slot that denies it.

    A denied request writes nothing, so a ticket is a call of its own. Where a slot is free for it,
    it has none: it waits for another limit then, and nobody is to be held up here meanwhile.
    """

    def __init__(self, parts: Sequence[Part], waiter_id: str) -> None:
        self._parts = [p for p in parts if p.strategy.is_held and p.cost and not p.shadow]
        self._is_alone = len(parts) == 1
        self._waiter_id = waiter_id
        self._kept: set[str] = set()

    def after(self, charge: Charge) -> list[Step]:
        """What to ask the store once it has answered; nothing where the tickets are right."""
        if charge.allowed or self._is_alone or charge.verdict is None:
            return []
        told = charge.verdict.limits
        steps = []
        for part in self._parts:
            if not told[part.name].allowed:
                self._kept.add(part.key)
                steps.append(Step(part.key, ticketing(part.strategy, self._waiter_id)))
            elif part.key in self._kept:
                self._kept.remove(part.key)
                steps.append(self._left(part))
        return steps

    def leaving(self) -> list[Step]:
        """What a waiter asks that gives up: else the others would wait for it until its tickets are
        over. It may hold slots, where an answer was lost."""
        return [self._left(part) for part in self._parts]

    def _left(self, part: Part) -> Step:
        return Step(part.key, releasing(part.strategy, self._waiter_id))


def _require_one(part: Part) -> None:
    if part.cost != 1:
        reject(f"a charge holds one slot of {part.name or part.strategy!r}, not {part.cost}")


def _tells(store: Store, parts: Sequence[Part]) -> list[Step]:
    """By whose clock it was charged is by whose it is given back."""
    if not store.reads_own_clock or not parts:
        return []
    return [Step(parts[0].key, telling(parts[0].strategy), 1)]


def _charge(
    store: Store,
    now: Callable[[], int],
    parts: Sequence[Part],
    results: list[Any],
    at: int,
    answer: Answer,
    slot_id: str,
    asked_at: float,
) -> Charge:
    if store.reads_own_clock and parts:
        at = results[-1]
    decisions, delays = [], []
    for _, each in zip(parts, results, strict=False):
        booked = type(each) is Booking
        decisions.append(each.decision if booked else each)
        delays.append(each.delay_ms if booked else 0)
    return Charge(store, now, parts, answer(decisions), at, delays, slot_id, asked_at)


def require_wait(max_wait_ms: Any) -> int:
    """How far ahead a booking may lie; 0 is not at all."""
    return require_int("max_wait_ms", max_wait_ms, 0, MAX_SPAN_MS)


def require_until(until_ms: Any) -> int:
    """The end of a pause: an instant."""
    return require_int("until_ms", until_ms, 0, MAX_INSTANT_MS)


def pauses(parts: Sequence[Part], until_ms: int) -> list[Step]:
    """The steps that let nothing in before an instant."""
    for part in parts:
        if part.strategy.is_held:
            # Which says why, whatever the store is.
            part.strategy.pause(None, 0, until_ms)
    return [Step(part.key, pausing(part.strategy, until_ms)) for part in parts]
