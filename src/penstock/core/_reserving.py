"""How a charge comes about: what is asked of the store, and what is made of its answer.

`reserved` takes what the parts of a request cost, all or nothing, ahead of time if the caller can
wait; `acquired` waits until it gets it, with a ticket for each slot that denies it; `spent` is the
charge of a check that was answered already. Where the store decides by its own clock, a step that
tells the time goes along, or one for each part where they are decided one after the other, perhaps
by several servers: by whose clock units were charged is by whose they are given back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from ._charges import Charge, Part
from ._decision import Booking, Decision
from ._errors import PenstockError
from ._steps import Step
from ._store import Store
from ._transform import booking, checking, pausing, queueing, releasing, taking, telling, ticketing
from ._validation import MAX_INSTANT_MS, MAX_SPAN_MS, reject, require_int
from ._verdict import Verdict

__all__ = [
    "Answer",
    "aacquired",
    "acquired",
    "areserved",
    "aspent",
    "pauses",
    "require_until",
    "require_wait",
    "reserved",
    "spent",
]


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
    at, asked_at, slot_id = now(), time.monotonic(), waiter_id or _new_id(parts)
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
    at, asked_at, slot_id = now(), time.monotonic(), waiter_id or slot_id or _new_id(parts)
    taking = _queueing if waiter_id else _taking
    results = await store.aapply_all(taking(store, parts, max_wait_ms, slot_id, also), at)
    del results[len(parts) : len(parts) + len(also)]
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
    ago = max(0, now() - asked_at) + 1
    instants = tuple([at - ago for at in told]) or (asked_at,)
    return Charge(store, now, parts, answer, instants, (0,) * len(parts))


def _new_id(parts: Sequence[Part]) -> str:
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


def _require_one(part: Part) -> None:
    if part.cost != 1:
        reject(f"a charge holds one slot of {part.name or part.strategy!r}, not {part.cost}")


class _Tickets:
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


def acquired(
    store: Store,
    now: Callable[[], int],
    parts: Sequence[Part],
    answer: Answer,
    wait: Callable[[Callable[[], Charge]], Charge],
) -> Charge:
    """What `wait` gets that calls the function it is given until it admits, in turn with the
    others that wait for the same slots."""
    waiter_id = _new_id(parts)
    tickets = _Tickets(parts, waiter_id)

    def ask() -> Charge:
        charge = reserved(store, now, parts, 0, answer, waiter_id)
        if steps := tickets.after(charge):
            store.apply_all(steps, now())
        return charge

    charge: Any = None
    try:
        charge = wait(ask)
    finally:
        if charge is None and (steps := tickets.leaving()):
            with suppress(PenstockError):
                store.apply_all(steps, now())
    held: Charge = charge
    return held


async def aacquired(
    store: Store,
    now: Callable[[], int],
    parts: Sequence[Part],
    answer: Answer,
    wait: Callable[[Callable[[], Awaitable[Charge]]], Awaitable[Charge]],
) -> Charge:
    """The awaitable twin of `acquired`. A task that was cancelled asks nothing any more."""
    waiter_id = _new_id(parts)
    tickets = _Tickets(parts, waiter_id)

    async def ask() -> Charge:
        charge = await areserved(store, now, parts, 0, answer, waiter_id)
        if steps := tickets.after(charge):
            await store.aapply_all(steps, now())
        return charge

    try:
        return await wait(ask)
    except Exception:
        if steps := tickets.leaving():
            with suppress(PenstockError):
                await store.aapply_all(steps, now())
        raise


def _tells(store: Store, parts: Sequence[Part]) -> list[Step]:
    """By whose clock it was charged is by whose it is given back: one step, or one for each part
    where they are decided apart."""
    if not store.reads_own_clock:
        return []
    if len(parts) > 1 and (store.is_atomic("") or store.is_atomic(_common_lead(parts))):
        parts = parts[:1]
    return [Step(part.key, telling(part.strategy), 1) for part in parts]


def _common_lead(parts: Sequence[Part]) -> str:
    """What all keys begin with: that of the first and of the last in order."""
    keys = [part.key for part in parts]
    first, last = min(keys), max(keys)
    same = 0
    while same < len(first) and first[same] == last[same]:
        same += 1
    return first[:same]


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
    instants = tuple(results[len(parts) :]) or (at,)
    told, delays = results[: len(parts)], (0,) * len(parts)
    if Booking in map(type, told):
        delays = tuple([each.delay_ms if type(each) is Booking else 0 for each in told])
        told = [each.decision if type(each) is Booking else each for each in told]
    return Charge(store, now, parts, answer(told), instants, delays, slot_id, asked_at)


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
