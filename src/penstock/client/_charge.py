"""`ServiceCharge`: units and slots that were reserved at a service.

The service reclaims slots that are not renewed. `Renewer` renews the charges of a limiter from a
thread, and `LoopRenewer` from a task of an event loop, three times per ttl. Both end when there is
nothing left to renew. A holder that cannot reach the service is told as well, by its own clock,
before the service can give its slots to somebody else; so the calls run beside the loops that keep
the time.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from .._queueing.fork import ForkAware, watch_forks
from ..core._charges import MARGIN, Settling
from ..core._decision import Decision
from ..core._errors import PenstockError
from ..core._loops import running_loop
from ..core._renewing import DueTask, DueThread
from ..core._validation import reject, require_int, shown
from ..core._verdict import Verdict
from ._questions import ServiceCall, flag, settlement_of

if TYPE_CHECKING:
    from ._limiter import ServiceLimiter

__all__ = ["LoopRenewer", "Renewer", "ServiceCharge"]

_NAME = "penstock-renewer"
_PER_TERM = 3
_SHORTEST_S = 0.1
_LONGEST_S = 10.0

_log = logging.getLogger("penstock")


class ServiceCharge(Settling):
    """Units that were reserved at a service. `bool(charge)` is `charge.allowed`.

    Used like a `Charge`: settle it when the true cost is known, or cancel it. As a context manager
    it is cancelled if the block raises, and otherwise settled as reserved. The service settles a
    charge only once, so a settlement without an answer leaves it open and may be repeated. `id` is
    empty if nothing was reserved: after a denial, or if the service could not be reached.
    """

    def __init__(
        self,
        limiter: ServiceLimiter,
        answer: Decision | Verdict,
        charge_id: str = "",
        *,
        charged_at: int,
        starts_at: int,
        ttl_ms: int = 0,
        asked_at: float = 0.0,
    ) -> None:
        self.id: str = charge_id
        """Identifies it to the service. Any program that has this id may settle the charge."""
        self.verdict: Verdict | None = answer if isinstance(answer, Verdict) else None
        """The decision of each limit, if there are several."""
        self.decision: Decision = answer.decision if isinstance(answer, Verdict) else answer
        """The decision of the limit, or of the binding one."""
        self.allowed: bool = answer.allowed
        """Whether the units were reserved."""
        self.charged_at: int = charged_at
        self.uncharged: Mapping[str, int] = {}
        """After `settle`: what was used and not charged, by the name of the limit."""
        """When it was decided (epoch ms), by the clock of the service."""
        self.starts_at: int = starts_at
        """From when on the units may be used (epoch ms), by the clock of the service."""
        self.is_lost: bool = False
        """Whether its slots, which were kept renewed, can no longer be relied on: the service
        reclaimed them, or could not be reached for too long."""
        self._limiter = limiter
        self._ttl_ms = ttl_ms
        # The monotonic time before its slots were last taken or renewed.
        self._asked_at = asked_at
        self._is_open = bool(charge_id)
        # Whether the service is being asked to settle or cancel it.
        self._is_ending = False
        self._renewer: Renewer | LoopRenewer | None = None
        self._own()

    @property
    def is_open(self) -> bool:
        """Whether it was neither settled nor cancelled in this process."""
        return self._is_open

    @property
    def holds(self) -> bool:
        """Whether it has slots that are certainly still its own, by the clock of this process: for
        its ttl less a margin since they were taken or renewed."""
        return self._is_open and not self.is_lost and time.monotonic() < self._holds_until

    @property
    def _holds_until(self) -> float:
        return self._asked_at + self._ttl_ms * (1 - MARGIN) / 1000

    @property
    def ttl_ms(self) -> int | None:
        """How long its slots last without being renewed, set also after a denial; None if it is
        not a charge of slots."""
        return self._ttl_ms or None

    def settle(self, actual: int | Mapping[str, int]) -> bool:
        """Replace the reserved cost by the actual one: a number for every limit, or a mapping by
        name, in which limits that are left out keep what was reserved. True if this call settled
        it. `uncharged` says what was too much to be charged."""
        question = self._settlement(actual)
        return self._is_mine() and self._end(question)

    async def asettle(self, actual: int | Mapping[str, int]) -> bool:
        """The awaitable twin of `settle`."""
        question = self._settlement(actual)
        return self._is_mine() and await self._aend(question)

    def cancel(self) -> bool:
        """Refund everything. True if this call cancelled it."""
        return self._is_mine() and self._end(self._named("cancel"))

    async def acancel(self) -> bool:
        """The awaitable twin of `cancel`."""
        return self._is_mine() and await self._aend(self._named("cancel"))

    def renew(self) -> bool:
        """Hold its slots for another ttl. False if they were lost, or nothing is held."""
        asked_at = time.monotonic()
        return self._is_mine() and self._renewed(self._limiter._ask(self._named("renew")), asked_at)

    async def arenew(self) -> bool:
        """The awaitable twin of `renew`."""
        asked_at = time.monotonic()
        return self._is_mine() and self._renewed(
            await self._limiter._aask(self._named("renew")), asked_at
        )

    def _is_mine(self) -> bool:
        """Whether it is open; raises if this process did not make it."""
        self._require_owner()
        return self._is_open

    def _renewed(self, held: Any, asked_at: float) -> bool:
        # Lost slots are given up at once, not at the end of their ttl. An answer may be overtaken
        # by that to a later renewal.
        self._asked_at = max(self._asked_at, asked_at) if held else -math.inf
        return bool(held)

    def keep_renewed(
        self, on_lost: Callable[[ServiceCharge], object] | None = None
    ) -> ServiceCharge:
        """Renew its slots in the background until it is settled or lost, from one thread for all
        charges of this limiter. `on_lost` is called, in a thread of its own, when `holds` has
        become False: the service has reclaimed them, or could not be reached for too long. Returns
        the charge itself."""
        self._keep(self._limiter._renewer, on_lost)
        return self

    def akeep_renewed(
        self, on_lost: Callable[[ServiceCharge], object] | None = None
    ) -> ServiceCharge:
        """As `keep_renewed`, from a task of the running event loop."""
        self._keep(self._limiter._loop_renewer(), on_lost)
        return self

    def _keep(self, renewer: Renewer | LoopRenewer, on_lost: Any) -> None:
        if self._renewer is not None:
            reject("this charge is already kept renewed; call keep_renewed only once")
        if not self._is_mine():
            return
        if self.ttl_ms is None:
            reject("only a charge that holds slots can be kept renewed, and this one holds none")
        self._renewer = renewer
        renewer.keep(self, on_lost)

    def _term_s(self) -> float:
        """The interval of its renewals."""
        longest_s = self._limiter._heartbeat_s or _LONGEST_S
        return max(_SHORTEST_S, min(self._ttl_ms / 1000 / _PER_TERM, longest_s))

    def _named(self, call: str, **fields: Any) -> ServiceCall:
        return ServiceCall(call, {"charge_id": self.id, **fields}, flag)

    def _settlement(self, actual: int | Mapping[str, int]) -> ServiceCall:
        if not self.allowed:
            reject(
                "this charge was denied, so there is nothing to settle; check charge.allowed "
                "before the work begins"
            )
        if isinstance(actual, Mapping):
            for name, units in actual.items():
                require_int(f"the actual cost of {shown(name)}", units, 0)
            told: int | dict[str, int] = dict(actual)
        else:
            told = require_int("actual", actual, 0)
        return ServiceCall("settle", {"charge_id": self.id, "actual": told}, self._settled)

    def _settled(self, answer: Any) -> bool:
        settlement = settlement_of(answer)
        self.uncharged = settlement.uncharged
        return settlement.settled

    def _end(self, question: ServiceCall) -> bool:
        self._is_ending = True
        try:
            return self._closed(self._limiter._ask(question))
        finally:
            self._is_ending = False

    async def _aend(self, question: ServiceCall) -> bool:
        self._is_ending = True
        try:
            return self._closed(await self._limiter._aask(question))
        finally:
            self._is_ending = False

    def _closed(self, done: bool) -> bool:
        self._is_open = False
        if self._renewer is not None:
            self._renewer.let_go(self)
        if self._ttl_ms:
            # Its slots are free for waiters of this process.
            self._limiter._queues.ask_again()
        return done

    def __repr__(self) -> str:
        state = "open" if self._is_open else "settled" if self.allowed else "denied"
        return f"<ServiceCharge {state}, starts_at={self.starts_at}>"


class _Lost(NamedTuple):
    charge: ServiceCharge
    on_lost: Any

    def tell(self) -> None:
        if self.on_lost is None:
            return
        try:
            self.on_lost(self.charge)
        except Exception:
            _log.exception("on_lost of %r failed", self.charge)


class _Work(NamedTuple):
    """What is to be done: charges to renew, or lost ones to tell of."""

    charges: list[ServiceCharge]
    lost: list[_Lost]


class _Due:
    """The charges to renew: when each is due, and its `on_lost` callback."""

    def __init__(self) -> None:
        self._kept: dict[ServiceCharge, tuple[Any, float]] = {}
        # Whether the service is being asked.
        self._asks = False

    def add(self, charge: ServiceCharge, on_lost: Any) -> None:
        self._kept[charge] = on_lost, time.monotonic() + charge._term_s()

    def remove(self, charge: ServiceCharge) -> None:
        self._kept.pop(charge, None)

    def wait_s(self) -> float | None:
        """How long until something is to be done; None if nothing is kept."""
        times = [
            charge._holds_until if self._asks else min(due, charge._holds_until)
            for charge, (_, due) in self._kept.items()
        ]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def due(self) -> list[_Work]:
        """What is to be done now. No more is to be renewed until `answered`."""
        at = time.monotonic()
        lost = [
            lost for charge in list(self._kept) if not charge.holds for lost in self.lost(charge)
        ]
        work = [_Work([], lost)] if lost else []
        due = [charge for charge, (_, due) in self._kept.items() if due <= at]
        if due and not self._asks:
            self._asks = True
            for charge in due:
                self._kept[charge] = self._kept[charge][0], at + charge._term_s()
            work.append(_Work(due, []))
        return work

    def answered(self, work: _Work) -> None:
        """All of its charges were asked for."""
        if work.charges:
            self._asks = False

    def failed(self, charge: ServiceCharge) -> None:
        """The service did not answer: try again soon."""
        if charge in self._kept:
            self._kept[charge] = self._kept[charge][0], time.monotonic() + _SHORTEST_S

    def lost(self, charge: ServiceCharge) -> list[_Lost]:
        """Stop renewing it. Returns whom to tell: nobody if it was or is being settled, or told
        before."""
        kept = self._kept.pop(charge, None)
        if kept is None or not charge.is_open or charge._is_ending:
            return []
        charge.is_lost = True
        return [_Lost(charge, kept[0])]


class Renewer(ForkAware):
    """Renews the charges of a limiter from a thread, while there are any."""

    def __init__(self) -> None:
        self._forget()
        watch_forks(self)

    def _forget(self) -> None:
        """Start without charges; also in the child of a fork, whose parent keeps the charges."""
        self._due = _Due()
        self._thread = DueThread(self._due, self._begin, _NAME)

    _after_fork_in_child = _forget

    def keep(self, charge: ServiceCharge, on_lost: Any) -> None:
        with self._thread.lock:
            self._due.add(charge, on_lost)
        self._thread.changed()

    def let_go(self, charge: ServiceCharge) -> None:
        with self._thread.lock:
            self._due.remove(charge)
        self._thread.changed()

    def _begin(self, work: _Work) -> None:
        try:
            threading.Thread(target=self._do, args=(work,), name=_NAME, daemon=True).start()
        except RuntimeError:
            # The system has no thread to give.
            self._do(work)

    def _do(self, work: _Work) -> None:
        due, thread = self._due, self._thread
        lost = list(work.lost)
        try:
            for charge in work.charges:
                lost += self._renew(charge)
        finally:
            with thread.lock:
                due.answered(work)
        thread.changed()
        for each in lost:
            # In a thread, `sys.exit` ends nothing but the thread: the others are told as well.
            with suppress(SystemExit):
                each.tell()

    def _renew(self, charge: ServiceCharge) -> list[_Lost]:
        try:
            held = charge.renew()
        except PenstockError:
            with self._thread.lock:
                self._due.failed(charge)
            return []
        with self._thread.lock:
            return [] if held else self._due.lost(charge)


class LoopRenewer:
    """As `Renewer`, from a task of an event loop."""

    def __init__(self) -> None:
        self._due = _Due()
        self._task = DueTask(self._due, self._begin, _NAME)
        # An event loop holds its tasks weakly.
        self._calls: set[asyncio.Task[None]] = set()

    def keep(self, charge: ServiceCharge, on_lost: Any) -> None:
        self._due.add(charge, on_lost)
        self._task.changed()

    def let_go(self, charge: ServiceCharge) -> None:
        self._due.remove(charge)
        self._task.changed()

    async def _begin(self, work: _Work) -> None:
        call = running_loop().create_task(self._do(work), name=_NAME)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _do(self, work: _Work) -> None:
        lost = list(work.lost)
        try:
            for charge in work.charges:
                lost += await self._renew(charge)
        finally:
            self._due.answered(work)
        # Not when it was cancelled: a loop that is being closed takes no new task.
        self._task.changed()
        for each in lost:
            each.tell()

    async def _renew(self, charge: ServiceCharge) -> list[_Lost]:
        try:
            held = await charge.arenew()
        except PenstockError:
            self._due.failed(charge)
            return []
        return [] if held else self._due.lost(charge)
