"""A slot of a service's admission control, held while a block runs.

The service reclaims a slot without heartbeats. `Beats` sends them from a thread, for all slots of a
limiter in one call, and `LoopBeats` from a task of an event loop. Both end when nothing is held.

A heartbeat is due after a third of the time that a slot has left. The service tells its deadline as
an instant of its own clock, which may differ from the clock here; so the interval is bounded, from
below by a tenth of a second, from above by ten seconds or `heartbeat_ms`.
"""

from __future__ import annotations

import logging
import time
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING

from .._queueing.fork import ForkAware, watch_forks
from ..core._decision import Decision
from ..core._durations import wait_in_words
from ..core._errors import PenstockError, RateLimitExceededError
from ..core._owned import Owned
from ..core._renewing import DueTask, DueThread
from ..core._validation import reject
from ._questions import text_field, whole_field
from ._transport import Answer

if TYPE_CHECKING:
    from ._limiter import ServiceLimiter

__all__ = ["Beats", "LoopBeats", "ServiceSlot"]

_PER_TERM = 3
_SHORTEST_S = 0.1
_LONGEST_S = 10.0
_AT_ONCE = 1_000
"""The most ids that the service takes in one heartbeat."""

_log = logging.getLogger("penstock")


class ServiceSlot(Owned):
    """A slot of a policy with `concurrency`, as a context manager, sync and async. Made by
    `ServiceLimiter.admit`.

    Entering the block asks the service, and raises `rate_limit_exceeded` if it denies. During the
    block the slot is renewed in the background. Leaving the block gives it back; if the block
    raised, the request counts as dropped, a sign of overload that lowers the ceiling. A child that
    was forked within the block leaves it without effect. A slot cannot be copied or pickled.
    """

    def __init__(self, limiter: ServiceLimiter, key: str, cost: int) -> None:
        self.decision: Decision | None = None
        """The decision of the service; None before the block."""
        self.id: str = ""
        """The lease id; empty if no slot is held, as when the fail mode admitted the request."""
        self.binding_axis: str = ""
        """The axis that denied: concurrency, rate or cost."""
        self.is_lost: bool = False
        """Whether the service has reclaimed the slot, so that another holder may have it."""
        self._limiter = limiter
        self._key = key
        self._expires_at = 0
        self._question = limiter._admitting(key, cost, self._told)
        self._dropped = False
        self._own()

    def drop(self) -> None:
        """Count the request as dropped when the block ends, as after an overload answer."""
        self._dropped = True

    def __enter__(self) -> ServiceSlot:
        self._require_new()
        self._entered(self._limiter._ask(self._question))
        self._limiter._beats.keep(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_inherited:
            return
        self._limiter._beats.let_go(self)
        if self.id:
            try:
                self._limiter._ask(self._limiter._releasing(self.id, self._is_dropped(error)))
            except PenstockError as failed:
                self._kept(failed)

    async def __aenter__(self) -> ServiceSlot:
        self._require_new()
        self._entered(await self._limiter._aask(self._question))
        self._limiter._abeats().keep(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_inherited:
            return
        self._limiter._abeats().let_go(self)
        if self.id:
            question = self._limiter._releasing(self.id, self._is_dropped(error))
            try:
                await self._limiter._aask(question)
            except PenstockError as failed:
                self._kept(failed)

    def _require_new(self) -> None:
        self._require_owner()
        if self.decision is not None:
            reject("a ServiceSlot can be entered only once; call admit(...) for another one")

    def _told(self, answer: Answer) -> None:
        self.id = text_field(answer, "lease_id")
        self._expires_at = whole_field(answer, "lease_expires_at")
        self.binding_axis = text_field(answer, "binding_axis")

    def _entered(self, decision: Decision) -> None:
        self.decision = decision
        if not decision.allowed:
            axis = f" by its {self.binding_axis}" if self.binding_axis else ""
            raise RateLimitExceededError(
                f"{self._key!r} was not admitted{axis}; retry after "
                f"{wait_in_words(decision.retry_after_ms, exact=True)}",
                decision,
            )

    def _is_dropped(self, error: BaseException | None) -> bool:
        return self._dropped or error is not None

    def _kept(self, failed: PenstockError) -> None:
        """A slot could not be given back. The work is done, so that is only logged."""
        _log.warning("a slot could not be given back, and will expire by itself: %s", failed)

    def __repr__(self) -> str:
        state = "new" if self.decision is None else "lost" if self.is_lost else self.id or "none"
        return f"<ServiceSlot {state}>"


class _Held:
    """The slots that are held, and when the next heartbeat is due."""

    def __init__(self, limiter: ServiceLimiter, longest_s: float | None) -> None:
        self._limiter = limiter
        self._longest_s = _LONGEST_S if longest_s is None else longest_s
        self._slots: dict[str, ServiceSlot] = {}
        self._due = 0.0

    def add(self, slot: ServiceSlot, expires_at: int) -> None:
        due = self._due_at(expires_at)
        self._due = min(self._due, due) if self._slots else due
        self._slots[slot.id] = slot

    def remove(self, slot: ServiceSlot) -> None:
        self._slots.pop(slot.id, None)

    def wait_s(self) -> float | None:
        """How long until the next heartbeat; None if nothing is held."""
        return max(0.0, self._due - time.monotonic()) if self._slots else None

    def due(self) -> list[list[str]]:
        """The ids of each heartbeat that is due now."""
        if not self._slots or time.monotonic() < self._due:
            return []
        every = list(self._slots)
        # The answers set it again, each to its own deadline if that is earlier.
        self._due = inf
        return [every[start : start + _AT_ONCE] for start in range(0, len(every), _AT_ONCE)]

    def renewed(self, reclaimed_ids: list[str], next_deadline: int) -> None:
        """The service has answered a heartbeat."""
        for lease_id in reclaimed_ids:
            slot = self._slots.pop(lease_id, None)
            if slot is not None:
                slot.is_lost = True
        self._due = min(self._due, self._due_at(next_deadline))

    def failed(self) -> None:
        self._due = min(self._due, time.monotonic() + _SHORTEST_S)

    def _due_at(self, deadline: int) -> float:
        left_s = (deadline - self._limiter.clock.now()) / 1000 / _PER_TERM
        return time.monotonic() + max(_SHORTEST_S, min(left_s, self._longest_s))


class Beats(ForkAware):
    """Sends the heartbeats of a limiter's slots from a thread, while there are any."""

    def __init__(self, limiter: ServiceLimiter, longest_s: float | None) -> None:
        self._limiter = limiter
        self._longest_s = longest_s
        self._forget()
        watch_forks(self)

    def _forget(self) -> None:
        """Start without slots; also in the child of a fork, whose parent keeps the slots."""
        self._held = _Held(self._limiter, self._longest_s)
        self._thread = DueThread(self._held, self._beat, "penstock-heartbeat")

    _after_fork_in_child = _forget

    def keep(self, slot: ServiceSlot) -> None:
        if slot.id:
            with self._thread.lock:
                self._held.add(slot, slot._expires_at)
            self._thread.changed()

    def let_go(self, slot: ServiceSlot) -> None:
        with self._thread.lock:
            self._held.remove(slot)
        self._thread.changed()

    def _beat(self, ids: list[str]) -> None:
        try:
            answer = self._limiter._ask(self._limiter._beating(ids))
        except PenstockError:
            with self._thread.lock:
                self._held.failed()
            return
        with self._thread.lock:
            self._held.renewed(*answer)


class LoopBeats:
    """As `Beats`, from a task of an event loop."""

    def __init__(self, limiter: ServiceLimiter, longest_s: float | None) -> None:
        self._limiter = limiter
        self._held = _Held(limiter, longest_s)
        self._task = DueTask(self._held, self._beat, "penstock-heartbeat")

    def keep(self, slot: ServiceSlot) -> None:
        if slot.id:
            self._held.add(slot, slot._expires_at)
            self._task.changed()

    def let_go(self, slot: ServiceSlot) -> None:
        self._held.remove(slot)
        self._task.changed()

    async def _beat(self, ids: list[str]) -> None:
        try:
            self._held.renewed(*await self._limiter._aask(self._limiter._beating(ids)))
        except PenstockError:
            self._held.failed()
