"""`ServiceCharge`: units and slots that were reserved at a service.

The service reclaims slots that are not renewed. `Renewer` renews the charges of a limiter from a
thread, and `LoopRenewer` from a task of an event loop, three times per ttl. Both end when there is
nothing left to renew.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .._queueing.fork import ForkAware, watch_forks
from ..core._charges import Settling
from ..core._decision import Decision
from ..core._errors import PenstockError
from ..core._renewing import DueTask, DueThread
from ..core._validation import reject, require_int, shown
from ..core._verdict import Verdict
from ._questions import ServiceCall, flag

if TYPE_CHECKING:
    from ._limiter import ServiceLimiter

__all__ = ["LoopRenewer", "Renewer", "ServiceCharge"]

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
        """When it was decided (epoch ms), by the clock of the service."""
        self.starts_at: int = starts_at
        """From when on the units may be used (epoch ms), by the clock of the service."""
        self.is_lost: bool = False
        """Whether a renewal has found that the service reclaimed its slots."""
        self._limiter = limiter
        self._ttl_ms = ttl_ms
        self._is_open = bool(charge_id)
        self._renewer: Renewer | LoopRenewer | None = None

    @property
    def is_open(self) -> bool:
        """Whether it was neither settled nor cancelled in this process."""
        return self._is_open

    @property
    def ttl_ms(self) -> int | None:
        """How long its slots last without being renewed, set also after a denial; None if it is
        not a charge of slots."""
        return self._ttl_ms or None

    def settle(self, actual: int | Mapping[str, int]) -> bool:
        """Replace the reserved cost by the actual one: a number for every limit, or a mapping by
        name, in which limits that are left out keep what was reserved. True if this call settled
        it."""
        question = self._settlement(actual)
        return self._is_open and self._closed(self._limiter._ask(question))

    async def asettle(self, actual: int | Mapping[str, int]) -> bool:
        """The awaitable twin of `settle`."""
        question = self._settlement(actual)
        return self._is_open and self._closed(await self._limiter._aask(question))

    def cancel(self) -> bool:
        """Refund everything. True if this call cancelled it."""
        return self._is_open and self._closed(self._limiter._ask(self._named("cancel")))

    async def acancel(self) -> bool:
        """The awaitable twin of `cancel`."""
        return self._is_open and self._closed(await self._limiter._aask(self._named("cancel")))

    def renew(self) -> bool:
        """Hold its slots for another ttl. False if they were lost, or nothing is held."""
        return self._is_open and bool(self._limiter._ask(self._named("renew")))

    async def arenew(self) -> bool:
        """The awaitable twin of `renew`."""
        return self._is_open and bool(await self._limiter._aask(self._named("renew")))

    def keep_renewed(
        self, on_lost: Callable[[ServiceCharge], object] | None = None
    ) -> ServiceCharge:
        """Renew its slots in the background until it is settled or lost, from one thread for all
        charges of this limiter. `on_lost` is called in that thread if the service has reclaimed
        them. Returns the charge itself."""
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
        if not self._is_open:
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
            return self._named("settle", actual=dict(actual))
        return self._named("settle", actual=require_int("actual", actual, 0))

    def _closed(self, done: bool) -> bool:
        self._is_open = False
        if self._renewer is not None:
            self._renewer.let_go(self)
        return done

    def __repr__(self) -> str:
        state = "open" if self._is_open else "settled" if self.allowed else "denied"
        return f"<ServiceCharge {state}, starts_at={self.starts_at}>"


class _Due:
    """The charges to renew: when each is due, and its `on_lost` callback."""

    def __init__(self) -> None:
        self._kept: dict[ServiceCharge, tuple[Any, float]] = {}

    def add(self, charge: ServiceCharge, on_lost: Any) -> None:
        self._kept[charge] = on_lost, time.monotonic() + charge._term_s()

    def remove(self, charge: ServiceCharge) -> None:
        self._kept.pop(charge, None)

    def wait_s(self) -> float | None:
        """How long until the next is due; None if there are none."""
        dues = [due for _, due in self._kept.values()]
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    def due(self) -> list[ServiceCharge]:
        """The charges that are due now; each is scheduled again."""
        at = time.monotonic()
        found = [charge for charge, (_, due) in self._kept.items() if due <= at]
        for charge in found:
            self._kept[charge] = self._kept[charge][0], at + charge._term_s()
        return found

    def failed(self, charge: ServiceCharge) -> None:
        """The service did not answer: try again soon."""
        if charge in self._kept:
            self._kept[charge] = self._kept[charge][0], time.monotonic() + _SHORTEST_S

    def lost(self, charge: ServiceCharge) -> Any:
        """Stop renewing it. Returns its callback, None if it was settled in the meantime."""
        on_lost, _ = self._kept.pop(charge, (None, 0.0))
        if not charge.is_open:
            return None
        charge.is_lost = True
        return on_lost


class Renewer(ForkAware):
    """Renews the charges of a limiter from a thread, while there are any."""

    def __init__(self) -> None:
        self._forget()
        watch_forks(self)

    def _forget(self) -> None:
        """Start without charges; also in the child of a fork, whose parent keeps the charges."""
        self._due = _Due()
        self._thread = DueThread(self._due, self._renew, "penstock-renewer")

    _after_fork_in_child = _forget

    def keep(self, charge: ServiceCharge, on_lost: Any) -> None:
        with self._thread.lock:
            self._due.add(charge, on_lost)
        self._thread.changed()

    def let_go(self, charge: ServiceCharge) -> None:
        with self._thread.lock:
            self._due.remove(charge)
        self._thread.changed()

    def _renew(self, charge: ServiceCharge) -> None:
        try:
            held = charge.renew()
        except PenstockError:
            with self._thread.lock:
                self._due.failed(charge)
            return
        if not held:
            with self._thread.lock:
                on_lost = self._due.lost(charge)
            _tell(on_lost, charge)


class LoopRenewer:
    """As `Renewer`, from a task of an event loop."""

    def __init__(self) -> None:
        self._due = _Due()
        self._task = DueTask(self._due, self._renew, "penstock-renewer")

    def keep(self, charge: ServiceCharge, on_lost: Any) -> None:
        self._due.add(charge, on_lost)
        self._task.changed()

    def let_go(self, charge: ServiceCharge) -> None:
        self._due.remove(charge)
        self._task.changed()

    async def _renew(self, charge: ServiceCharge) -> None:
        try:
            if await charge.arenew():
                return
        except PenstockError:
            self._due.failed(charge)
            return
        _tell(self._due.lost(charge), charge)


def _tell(on_lost: Any, charge: ServiceCharge) -> None:
    if on_lost is None:
        return
    try:
        on_lost(charge)
    except Exception:
        _log.exception("on_lost of %r failed", charge)
