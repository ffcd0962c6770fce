"""Renewing the slots of charges in the background: one call per store for all of a process.

A charge is renewed three times per ttl, until it is settled or lost. `Renewals` schedules this; a
thread of the process keeps the time, or, for async charges, a task of their event loop. Both end
when there is nothing left to renew. `DueThread` and `DueTask` are their loops, for any schedule.
`hold` and `release` are for callers that hold slots during a piece of work: a request, a call, a
task.

A failed renewal is soon tried again. A call may hang for as long as the store's timeout, which can
be longer than a ttl. So calls and callbacks run beside the loop, one call per store at a time: a
store that hangs delays no other, and `on_lost` is called when `Charge.holds` turns False, by the
holder's own clock, whatever the store does.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary

from ._clock import SystemClock
from ._errors import StoreUnavailableError
from ._steps import PoolRenewals
from ._store import Store

if TYPE_CHECKING:
    import asyncio
    import logging

    from ._charges import Charge, Settling
    from ._decision import Decision
    from ._strategy import Strategy

__all__ = [
    "DueTask",
    "DueThread",
    "OnLost",
    "Renewals",
    "Schedule",
    "ahold",
    "arelease",
    "hold",
    "keep",
    "keep_on_loop",
    "release",
]

OnLost = Callable[["Charge"], object]
Batch = list[tuple["Charge", list[tuple[str, "Strategy", str]]]]
Item = TypeVar("Item", covariant=True)

_NAME = "penstock-renewer"
_PER_TTL = 3
_RETRIES_PER_TTL = 12
# Charges per call to a store.
_AT_ONCE = 500


def _log() -> logging.Logger:
    """Imported late, because `import penstock` loads this module."""
    import logging

    return logging.getLogger("penstock")


class Lost(NamedTuple):
    """A charge that can no longer be relied on, and whom to tell."""

    charge: Charge
    on_lost: OnLost

    def tell(self) -> None:
        try:
            self.on_lost(self.charge)
        except Exception:
            _log().exception("on_lost of %r failed", self.charge)


class Work(NamedTuple):
    """What is to be done: a call for each of the `batches`, all of one store, or `lost` charges to
    tell of."""

    batches: list[Batch]
    lost: list[Lost]

    @property
    def store(self) -> Store | None:
        return self.batches[0][0][0]._store if self.batches else None


class Renewals:
    """The charges to renew: when each is due, and its `on_lost` callback."""

    def __init__(self) -> None:
        self._kept: dict[Charge, tuple[OnLost | None, float]] = {}
        # Stores with a call under way.
        self._asked: set[Store] = set()

    def add(self, charge: Charge, on_lost: OnLost | None) -> None:
        self._kept[charge] = on_lost, time.monotonic() + self._term_s(charge, _PER_TTL)

    def wait_s(self) -> float | None:
        """How long until something is to be done; None if nothing is kept."""
        times = [
            charge._holds_until if charge._store in self._asked else min(due, charge._holds_until)
            for charge, (_, due) in list(self._kept.items())
        ]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def due(self) -> Iterator[Work]:
        """What is to be done now. A store has no more work until `answered`. Drops charges that
        have ended."""
        over = [charge for charge in list(self._kept) if not charge.holds]
        if lost := self._let_go(over):
            yield Work([], lost)
        stores: dict[Store, dict[Any, list[Charge]]] = {}
        now = time.monotonic()
        for charge in list(self._kept):
            groups = stores.setdefault(charge._store, {})
            groups.setdefault(_clock_of(charge), []).append(charge)
        for store, groups in stores.items():
            batches = [
                batch
                for charges in groups.values()
                if any(self._kept[charge][1] <= now for charge in charges)
                for batch in _batches(charges)
            ]
            if batches and store not in self._asked:
                self._asked.add(store)
                yield Work(batches, [])

    def answered(self, work: Work) -> None:
        """Its calls are over, answered or not."""
        if work.store is not None:
            self._asked.discard(work.store)

    def renewed(self, batch: Batch, answers: Sequence[Decision], asked_at: float) -> list[Lost]:
        """Record the store's answers, one per slot. Returns the lost charges to tell of."""
        start, over = 0, []
        for charge, held in batch:
            told = answers[start : start + len(held)]
            start += len(held)
            if charge.renewed(told, asked_at):
                self._again(charge, asked_at + self._term_s(charge, _PER_TTL))
            else:
                over.append(charge)
        return self._let_go(over)

    def failed(self, batch: Batch) -> None:
        """Record that the store did not answer."""
        for charge, _ in batch:
            self._again(charge, time.monotonic() + self._term_s(charge, _RETRIES_PER_TTL))

    def _again(self, charge: Charge, due: float) -> None:
        if charge in self._kept:
            self._kept[charge] = self._kept[charge][0], due

    def _let_go(self, charges: Iterable[Charge]) -> list[Lost]:
        # Whoever takes a charge out tells of it, so that this is done once.
        over = [(charge, self._kept.pop(charge, (None, 0.0))[0]) for charge in charges]
        return [
            Lost(charge, on_lost)
            for charge, on_lost in over
            if on_lost is not None and charge.is_open
        ]

    @staticmethod
    def _term_s(charge: Charge, parts: int) -> float:
        assert charge.ttl_ms is not None
        return charge.ttl_ms / 1000 / parts


def _batches(charges: Sequence[Charge]) -> Iterator[Batch]:
    """The charges that are still open, with their slots, as many as one call may have."""
    for start in range(0, len(charges), _AT_ONCE):
        some = charges[start : start + _AT_ONCE]
        if batch := [(charge, held) for charge in some if (held := charge.held())]:
            yield batch


def _clock_of(charge: Charge) -> object:
    """Equal for charges whose clocks show the same time."""
    return None if type(getattr(charge._now, "__self__", None)) is SystemClock else charge._now


def _asked(batch: Batch) -> tuple[Store, PoolRenewals, int]:
    """The store, the renewals and the instant of a batch."""
    one = batch[0][0]
    pools = PoolRenewals([slot for _, held in batch for slot in held])
    return one._store, pools, one._now()


class Schedule(Protocol[Item]):
    """Recurring work, with the time when each item is due."""

    def wait_s(self) -> float | None:
        """How long until the next item is due; None if there are none."""

    def due(self) -> Iterable[Item]:
        """The items that are due now."""


class DueThread(Generic[Item]):
    """A thread that does the work of a schedule, and ends when the schedule is empty. The schedule
    is read and changed under `lock`. `work` is called without it, since it may wait for a server,
    and takes the lock itself where it changes the schedule."""

    def __init__(self, schedule: Schedule[Item], work: Callable[[Item], None], name: str) -> None:
        # Reentrant, because a callback may change the schedule.
        self.lock = threading.RLock()
        self._schedule, self._work, self._name = schedule, work, name
        self._more = threading.Event()
        self._runs = False

    def changed(self) -> None:
        """Call this after adding to the schedule: starts or wakes the thread."""
        with self.lock:
            if not self._runs and self._schedule.wait_s() is not None:
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
                self._runs = True
        self._more.set()

    def _run(self) -> None:
        while True:
            with self.lock:
                wait = self._schedule.wait_s()
                if wait is None:
                    self._runs = False
                    return
            self._more.wait(wait)
            self._more.clear()
            with self.lock:
                items = list(self._schedule.due())
            for item in items:
                self._work(item)


class DueTask(Generic[Item]):
    """As `DueThread`, by a task of the running event loop, which needs no lock."""

    def __init__(
        self, schedule: Schedule[Item], work: Callable[[Item], Awaitable[None]], name: str
    ) -> None:
        self._schedule, self._work, self._name = schedule, work, name
        self._task: asyncio.Task[None] | None = None
        self._more: asyncio.Event | None = None

    def changed(self) -> None:
        import asyncio

        from ._loops import running_loop

        if (self._task is None or self._task.done()) and self._schedule.wait_s() is not None:
            self._more = asyncio.Event()
            self._task = running_loop().create_task(self._run(self._more), name=self._name)
        if self._more is not None:
            self._more.set()

    async def _run(self, more: asyncio.Event) -> None:
        from ._loops import running_loop

        loop = running_loop()
        try:
            while (wait := self._schedule.wait_s()) is not None:
                # Not `wait_for`: before Python 3.12 it ignores a cancellation that comes together
                # with the event, and a loop that is being closed would wait for this task forever.
                timer = loop.call_later(wait, more.set)
                try:
                    await more.wait()
                finally:
                    timer.cancel()
                more.clear()
                for item in list(self._schedule.due()):
                    await self._work(item)
        finally:
            # Both refer to the loop, which is a weak key of those who have a task for each.
            self._task = self._more = None


class _Thread:
    """Renews the sync charges of this process while there are any."""

    def __init__(self) -> None:
        self.pid: int = os.getpid()
        self._renewals = Renewals()
        self._thread = DueThread(self._renewals, self._begin, _NAME)

    def keep(self, charge: Charge, on_lost: OnLost | None) -> None:
        with self._thread.lock:
            self._renewals.add(charge, on_lost)
        self._thread.changed()

    def _begin(self, work: Work) -> None:
        try:
            threading.Thread(target=self._do, args=(work,), name=_NAME, daemon=True).start()
        except RuntimeError:
            # The system has no thread to give.
            self._do(work)

    def _do(self, work: Work) -> None:
        lost = list(work.lost)
        try:
            for batch in work.batches:
                lost += self._renewed(batch)
        finally:
            with self._thread.lock:
                self._renewals.answered(work)
        self._thread.changed()
        for each in lost:
            # In a thread, `sys.exit` ends nothing but the thread: the others are told as well.
            with suppress(SystemExit):
                each.tell()

    def _renewed(self, batch: Batch) -> list[Lost]:
        asked_at = time.monotonic()
        store, pools, now = _asked(batch)
        try:
            answers = pools.answers(store.apply_all(pools.steps, now))
        except Exception:
            with self._thread.lock:
                self._renewals.failed(batch)
            return []
        with self._thread.lock:
            return self._renewals.renewed(batch, answers, asked_at)


class _Task:
    """Renews the async charges of an event loop while there are any."""

    def __init__(self) -> None:
        self._renewals = Renewals()
        self._task = DueTask(self._renewals, self._begin, _NAME)
        # An event loop holds its tasks weakly.
        self._calls: set[asyncio.Task[None]] = set()

    def keep(self, charge: Charge, on_lost: OnLost | None) -> None:
        self._renewals.add(charge, on_lost)
        self._task.changed()

    async def _begin(self, work: Work) -> None:
        from ._loops import running_loop

        call = running_loop().create_task(self._do(work), name=_NAME)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _do(self, work: Work) -> None:
        lost = list(work.lost)
        try:
            for batch in work.batches:
                lost += await self._renewed(batch)
        finally:
            self._renewals.answered(work)
        # Not when it was cancelled: a loop that is being closed takes no new task.
        self._task.changed()
        for each in lost:
            each.tell()

    async def _renewed(self, batch: Batch) -> list[Lost]:
        asked_at = time.monotonic()
        store, pools, now = _asked(batch)
        try:
            answers = pools.answers(await store.aapply_all(pools.steps, now))
        except Exception:
            self._renewals.failed(batch)
            return []
        return self._renewals.renewed(batch, answers, asked_at)


_thread = _Thread()
_tasks: WeakKeyDictionary[Any, _Task] = WeakKeyDictionary()


def keep(charge: Charge, on_lost: OnLost | None) -> None:
    """Renew it by the thread of this process; a forked process starts its own."""
    global _thread
    if _thread.pid != os.getpid():
        _thread = _Thread()
    _thread.keep(charge, on_lost)


def keep_on_loop(charge: Charge, on_lost: OnLost | None) -> None:
    """Renew it by a task of the running event loop."""
    from ._loops import running_loop

    _tasks.setdefault(running_loop(), _Task()).keep(charge, on_lost)


def hold(charge: Settling) -> None:
    """Have a thread renew its slots, if it has any, until it is released. A slot that is lost, as
    when the store is away for too long, is logged."""
    charge._require_owner()
    if charge.ttl_ms is not None:
        charge.keep_renewed(_slot_lost)


def ahold(charge: Settling) -> None:
    """As `hold`, by a task of the event loop."""
    charge._require_owner()
    if charge.ttl_ms is not None:
        charge.akeep_renewed(_slot_lost)


def release(charge: Settling) -> None:
    """Give its slots back; what was spent stays spent. If the store is away, logs a warning instead
    of raising, since the work is done: the slots expire by themselves. In a child that was forked
    since `hold`, does nothing: its parent holds them."""
    if charge._is_inherited:
        return
    try:
        charge.settle({})
    except StoreUnavailableError as error:
        _log().warning(_KEPT, error)


async def arelease(charge: Settling) -> None:
    """The awaitable twin of `release`."""
    if charge._is_inherited:
        return
    try:
        await charge.asettle({})
    except StoreUnavailableError as error:
        _log().warning(_KEPT, error)


_KEPT = "a slot could not be given back, and will expire by itself: %s"


def _slot_lost(charge: Settling) -> None:
    _log().warning(
        "a slot expired before its work was done, and another holder may have it: %r", charge
    )
