"""A place in flight behind a service, kept while a block runs.

The service reclaims a slot whose holder is silent. `Beats` knows which slots of a limiter are held
and when the service has to hear of them next; a thread says so for all of them in one call, and a
task for those of its event loop. Both end when nothing is held.

Of the slot's time the client only knows an instant by the service's clock. Where the two clocks
disagree, a third of what seems to be left may be wrong, so it is bounded: by a tenth of a second
from below, and by ten seconds, or what the caller says, from above.
"""

from __future__ import annotations

import logging
import time
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING

from .._queueing.fork import ForkAware, watch_forks
from ..core._decision import Decision
from ..core._errors import PenstockError, RateLimitExceededError
from ..core._renewing import DueTask, DueThread
from ..core._validation import reject
from ._transport import Answer

if TYPE_CHECKING:
    from ._limiter import ServiceLimiter

__all__ = ["Beats", "LoopBeats", "ServiceSlot"]

_PER_TERM = 3
_SHORTEST_S = 0.1
_LONGEST_S = 10.0
_AT_ONCE = 1_000
"""Ids in one heartbeat, as the service takes them."""

_log = logging.getLogger("penstock")


class ServiceSlot:
    """A place in flight, from `ServiceLimiter.admit`: a context manager, sync or async.

    Entering asks the service, and raises `rate_limit_exceeded` if it denies. While the block runs
    the slot is renewed in the background. Leaving gives it back; left by an exception, it counts as
    dropped, which says that what is behind the service is overloaded.
    """

    def __init__(self, limiter: ServiceLimiter, key: str, cost: int) -> None:
        self.decision: Decision | None = None
        """What the service said; None before the block."""
        self.id: str = ""
        """The lease; empty where nothing is held, as after an outage that was let through."""
        self.binding_axis: str = ""
        """The axis that denied: concurrency, rate or cost."""
        self.is_lost: bool = False
        """Whether the service gave the slot to somebody else."""
        self._limiter = limiter
        self._key = key
        self._expires_at = 0
        self._question = limiter._admitting(key, cost, self._told)
        self._dropped = False

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
        self._limiter._abeats().let_go(self)
        if self.id:
            question = self._limiter._releasing(self.id, self._is_dropped(error))
            try:
                await self._limiter._aask(question)
            except PenstockError as failed:
                self._kept(failed)

    def _require_new(self) -> None:
        if self.decision is not None:
            reject("a slot is for one block; ask for another one with admit(...)")

    def _told(self, answer: Answer) -> None:
        self.id = answer["lease_id"]
        self._expires_at = answer["lease_expires_at"]
        self.binding_axis = answer["binding_axis"]

    def _entered(self, decision: Decision) -> None:
        self.decision = decision
        if not decision.allowed:
            axis = f" by its {self.binding_axis}" if self.binding_axis else ""
            raise RateLimitExceededError(
                f"{self._key!r} was not admitted{axis}; the next attempt is worth making in "
                f"{decision.retry_after_ms} ms",
                decision,
            )

    def _is_dropped(self, error: BaseException | None) -> bool:
        return self._dropped or error is not None

    def _kept(self, failed: PenstockError) -> None:
        """A slot could not be given back after the work was done: said in the log alone."""
        _log.warning("a slot could not be given back, and runs out by itself: %s", failed)

    def __repr__(self) -> str:
        state = "new" if self.decision is None else "lost" if self.is_lost else self.id or "none"
        return f"<ServiceSlot {state}>"


class _Held:
    """The slots that are held, and when the service has to hear of them."""

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
        """What the next heartbeats name; none before they are due."""
        if not self._slots or time.monotonic() < self._due:
            return []
        every = list(self._slots)
        # Until the answers say; of several, the first to be due counts.
        self._due = inf
        return [every[start : start + _AT_ONCE] for start in range(0, len(every), _AT_ONCE)]

    def heard(self, answer: Answer) -> None:
        for lease_id in answer["reclaimed_ids"]:
            slot = self._slots.pop(lease_id, None)
            if slot is not None:
                slot.is_lost = True
        self._due = min(self._due, self._due_at(answer["next_deadline"]))

    def failed(self) -> None:
        self._due = min(self._due, time.monotonic() + _SHORTEST_S)

    def _due_at(self, deadline: int) -> float:
        left_s = (deadline - self._limiter.clock.now()) / 1000 / _PER_TERM
        return time.monotonic() + max(_SHORTEST_S, min(left_s, self._longest_s))


class Beats(ForkAware):
    """The heartbeats of a limiter's slots, by a thread while there are any."""

    def __init__(self, limiter: ServiceLimiter, longest_s: float | None) -> None:
        self._limiter = limiter
        self._longest_s = longest_s
        self._forget()
        watch_forks(self)

    def _forget(self) -> None:
        """Hold nothing: at first, and in the child of a fork, whose parent keeps its slots."""
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
            self._held.heard(answer)


class LoopBeats:
    """The same by a task of an event loop."""

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
            self._held.heard(await self._limiter._aask(self._limiter._beating(ids)))
        except PenstockError:
            self._held.failed()
