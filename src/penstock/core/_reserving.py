"""Making charges: the steps that are sent to the store, and the `Charge` made of its answer.

`reserved` takes the cost of all parts of a request, all or nothing, booking ahead if the caller can
wait; `acquired` waits until it is admitted, with a ticket in the queue of each slot that denies;
`spent` makes a charge of an earlier check. A refund has to use the clock that the units were
charged by: a part alone is applied by `Store.apply_timed`. Beside several parts, a step that reads
the store's clock is sent along: one for each part where these are decided one after the other,
perhaps by several servers.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, NoReturn

from ._charges import Charge, Part, give_up, is_cancellation
from ._decision import Booking, Decision
from ._errors import PenstockError
from ._steps import Step
from ._store import Store
from ._transform import (
    Transform,
    booking,
    checking,
    pausing,
    queueing,
    releasing,
    taking,
    telling,
    ticketing,
)
from ._validation import MAX_INSTANT_MS, MAX_SPAN_MS, reject, require_int
from ._verdict import Verdict
from ._waiting import Pools, Wait, aacquire, acquire

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
"""Makes the answer of the decisions: the only one, or the verdict of several."""


def reserved(
    store: Store,
    now: Callable[[], int],
    parts: Sequence[Part],
    max_wait_ms: int,
    answer: Answer,
    waiter_id: str = "",
    *,
    keeps_ticket: bool = False,
) -> Charge:
    """Charge the cost of the parts, all or nothing. With a `waiter_id`, which becomes the id of the
    slot, a slot is taken only when it is that waiter's turn. With `keeps_ticket`, a slot on its own
    that denies renews the waiter's ticket."""
    at, asked_at, slot_id = now(), monotonic(), waiter_id or _new_id(parts)
    if len(parts) == 1 and parts[0].cost and not waiter_id:
        part = parts[0]
        transform = _spending(part, max_wait_ms, slot_id)
        result, at = store.apply_timed(part.key, transform, at, part.cost)
        return _charge(store, now, parts, (result,), (at,), answer, slot_id, asked_at)
    steps = _taking(store, parts, max_wait_ms, slot_id)
    if waiter_id:
        _queue_up(steps, parts, waiter_id, keeps_ticket)
    results = store.apply_all(steps, at)
    instants = tuple(results[len(parts) :]) or (at,)
    return _charge(store, now, parts, results[: len(parts)], instants, answer, slot_id, asked_at)


async def areserved(
    store: Store,
    now: Callable[[], int],
    parts: Sequence[Part],
    max_wait_ms: int,
    answer: Answer,
    waiter_id: str = "",
    *,
    keeps_ticket: bool = False,
    slot_id: str = "",
    also: Sequence[Step] = (),
    told_also: Callable[[Sequence[Any]], None] = lambda _results: None,
) -> Charge:
    """The awaitable twin of `reserved`. Slots are held under `slot_id`, by default a new id. The
    steps `also` are applied together with the parts, if all of them are admitted. If the parts are,
    `told_also` gets the results of the others, and has to raise if one of them denied."""
    at, asked_at, slot_id = now(), monotonic(), waiter_id or slot_id or _new_id(parts)
    told: Sequence[Any]
    beside: Sequence[Any] = ()
    try:
        if len(parts) == 1 and parts[0].cost and not waiter_id and not also:
            part = parts[0]
            transform = _spending(part, max_wait_ms, slot_id)
            result, at = await store.aapply_timed(part.key, transform, at, part.cost)
            told, instants = (result,), (at,)
        else:
            steps = _taking(store, parts, max_wait_ms, slot_id, also)
            if waiter_id:
                _queue_up(steps, parts, waiter_id, keeps_ticket)
            results = await store.aapply_all(steps, at)
            told, beside = results[: len(parts)], results[len(parts) : len(parts) + len(also)]
            instants = tuple(results[len(parts) + len(also) :]) or (at,)
    except BaseException as error:
        if slot_id and not waiter_id and is_cancellation(error):
            # The store may have been asked already; nobody else knows the id.
            await give_up(store, now, _releases(parts, slot_id))
        raise
    charge = _charge(store, now, parts, told, instants, answer, slot_id, asked_at)
    if also and charge.allowed:
        told_also(beside)
    return charge


def spent(
    store: Store,
    now: Callable[[], int],
    parts: Sequence[Part],
    answer: Decision | Verdict,
    asked_at: int,
) -> Charge:
    """The charge of a check that was asked at the instant `asked_at` of the clock `now`."""
    told = store.apply_all(_tells(store, parts), now()) if store.reads_own_clock else []
    return _spent(store, now, parts, answer, asked_at, told)


async def aspent(
    store: Store,
    now: Callable[[], int],
    parts: Sequence[Part],
    answer: Decision | Verdict,
    asked_at: int,
) -> Charge:
    """The awaitable twin of `spent`."""
    told = await store.aapply_all(_tells(store, parts), now()) if store.reads_own_clock else []
    return _spent(store, now, parts, answer, asked_at, told)


def _spent(
    store: Store,
    now: Callable[[], int],
    parts: Sequence[Part],
    answer: Decision | Verdict,
    asked_at: int,
    told: Sequence[int],
) -> Charge:
    # The earliest instant of the store's clock that it can have been. With a later one, a refund
    # might be taken from a window in which nothing was charged.
    ago = max(0, now() - asked_at) + 1
    instants = tuple([at - ago for at in told]) or (asked_at,)
    made_at = monotonic() - ago / 1000
    return Charge(store, now, parts, answer, instants, (0,) * len(parts), asked_at=made_at)


def _new_id(parts: Sequence[Part]) -> str:
    """An id for the slots, if there are any. It begins with a letter, so that it never looks like
    a number."""
    for part in parts:
        if part.strategy.is_held:
            return f"s{os.urandom(12).hex()}"
    return ""


def _taking(
    store: Store, parts: Sequence[Part], max_wait_ms: int, slot_id: str, also: Sequence[Step] = ()
) -> list[Step]:
    steps = [
        Step(part.key, _spending(part, max_wait_ms, slot_id), part.cost, part.shadow)
        for part in parts
    ]
    tells = _tells(store, parts) if store.reads_own_clock else ()
    return [*steps, *also, *tells]


def _spending(part: Part, max_wait_ms: int, slot_id: str) -> Transform[Any]:
    """What takes the cost of a part."""
    _, _, strategy, cost, _ = part
    if strategy.is_held and cost:
        if cost != 1:
            _refuse_several(part)
        return taking(strategy, slot_id)
    if max_wait_ms and strategy.books_ahead and cost:
        return booking(strategy, max_wait_ms)
    return checking(strategy)


def _queue_up(steps: list[Step], parts: Sequence[Part], waiter_id: str, keeps_ticket: bool) -> None:
    """Have the steps take slots in turn with other waiters."""
    # On its own, the step may be a shadow, whose denial is written: that keeps the ticket.
    shadow = keeps_ticket and len(parts) == 1
    for place, part in enumerate(parts):
        if part.strategy.is_held and part.cost and not part.shadow:
            steps[place] = Step(part.key, queueing(part.strategy, waiter_id), 1, shadow=shadow)


def _refuse_several(part: Part) -> NoReturn:
    reject(
        f"the cost of {part.name or part.strategy!r} must be 1, not {part.cost}: a charge holds "
        "one slot"
    )


class _Tickets:
    """The tickets of a waiter: one in the queue of each slot that denies it while it leads the
    waiters of this process. The others of the process wait behind it, and have none.

    Beside other limits a denied request writes nothing, so a ticket takes a call of its own. The
    waiter has no ticket for a slot that is free: it waits for another limit, and must not hold up
    others here.
    """

    def __init__(self, parts: Sequence[Part], waiter_id: str) -> None:
        self._asked = parts
        self._parts = [p for p in parts if p.strategy.is_held and p.cost and not p.shadow]
        self._waiter_id = waiter_id
        self._kept: set[str] = set()
        self._has_asked = False

    @property
    def pools(self) -> tuple[str, ...]:
        """The keys of the slots that it waits for."""
        return tuple([part.key for part in self._parts])

    def begin(self) -> None:
        """Call this before the store is asked."""
        self._has_asked = True

    def after(self, charge: Charge) -> list[Step]:
        """The steps that bring the tickets up to date with an answer; often none."""
        if charge.allowed or charge.verdict is None or len(self._asked) == 1:
            return []
        told = charge.verdict.limits
        steps = []
        for part in self._parts:
            if not told[part.name].allowed:
                self._kept.add(part.key)
                steps.append(Step(part.key, ticketing(part.strategy, self._waiter_id)))
            elif part.key in self._kept:
                self._kept.remove(part.key)
                steps.append(_release(part, self._waiter_id))
        return steps

    def leaving(self) -> list[Step]:
        """The steps of a waiter that gives up, so that others do not wait until its tickets expire.
        They also give back slots that it got by an answer that was lost."""
        return _releases(self._asked, self._waiter_id) if self._has_asked else []


def _releases(parts: Sequence[Part], slot_id: str) -> list[Step]:
    """The steps that give back slots, and tickets for them."""
    return [_release(part, slot_id) for part in parts if part.strategy.is_held and part.cost]


def _release(part: Part, slot_id: str) -> Step:
    return Step(part.key, releasing(part.strategy, slot_id))


def acquired(
    store: Store,
    now: Callable[[], int],
    parts: Sequence[Part],
    answer: Answer,
    wait: Wait,
    peek: Callable[[], Any],
) -> Charge:
    """Wait for the parts, with a place in the queue of each slot that denies."""
    waiter_id = _new_id(parts)
    tickets = _Tickets(parts, waiter_id)

    def ask(leads: bool) -> Charge:
        tickets.begin()
        charge = reserved(store, now, parts, 0, answer, waiter_id, keeps_ticket=leads)
        if leads and (steps := tickets.after(charge)):
            store.apply_all(steps, now())
        return charge

    charge: Any = None
    try:
        charge = acquire(wait._replace(pools=Pools(store, tickets.pools)), ask, peek)
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
    wait: Wait,
    peek: Callable[[], Awaitable[Any]],
) -> Charge:
    """The awaitable twin of `acquired`."""
    waiter_id = _new_id(parts)
    tickets = _Tickets(parts, waiter_id)

    async def ask(leads: bool) -> Charge:
        tickets.begin()
        charge = await areserved(store, now, parts, 0, answer, waiter_id, keeps_ticket=leads)
        if leads and (steps := tickets.after(charge)):
            await store.aapply_all(steps, now())
        return charge

    try:
        charge: Charge = await aacquire(wait._replace(pools=Pools(store, tickets.pools)), ask, peek)
        return charge
    except BaseException as error:
        if isinstance(error, Exception) or is_cancellation(error):
            await give_up(store, now, tickets.leaving())
        raise


def _tells(store: Store, parts: Sequence[Part]) -> list[Step]:
    """The steps that read the clock of a store that decides by it: one, or one for each part if
    they are decided separately."""
    if len(parts) > 1 and (store.is_atomic("") or store.is_atomic(_common_lead(parts))):
        parts = parts[:1]
    return [Step(key, telling(strategy)) for _, key, strategy, _, _ in parts]


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
    told: Sequence[Any],
    instants: tuple[int, ...],
    answer: Answer,
    slot_id: str,
    asked_at: float,
) -> Charge:
    delays = (0,) * len(parts)
    if Booking in map(type, told):
        delays = tuple([each.delay_ms if type(each) is Booking else 0 for each in told])
        told = [each.decision if type(each) is Booking else each for each in told]
    return Charge(store, now, parts, answer(told), instants, delays, slot_id, asked_at)


def require_wait(max_wait_ms: Any) -> int:
    """Validate how far ahead a booking may be; 0 means no booking."""
    return require_int("max_wait_ms", max_wait_ms, 0, MAX_SPAN_MS)


def require_until(until_ms: Any) -> int:
    """Validate the end of a pause, an instant."""
    return require_int("until_ms", until_ms, 0, MAX_INSTANT_MS)


def pauses(parts: Sequence[Part], until_ms: int) -> list[Step]:
    """The steps that admit nothing before an instant."""
    for part in parts:
        if part.strategy.is_held:
            # Raises the error that says why, before the store is asked.
            part.strategy.pause(None, 0, until_ms)
    return [Step(part.key, pausing(part.strategy, until_ms)) for part in parts]
