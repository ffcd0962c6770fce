"""Serving misses, sync and async, and leasing ahead of need in the background.

A lease has to complete even if its caller is cancelled, so an async lease is a task of its own: the
credits arrive for the next callers, and a cancelled caller costs no more than its own request.

Once a key's credits are down to the low-water mark, a lease is taken ahead of need while the rest
is being spent. Nobody waits for it, so its failure is not raised; a later miss raises its own.
"""

from __future__ import annotations

import asyncio
import sys
from abc import abstractmethod
from collections.abc import Coroutine
from functools import partial
from types import FrameType
from typing import Any

from .._queueing import Place, Queue, ThreadWaiter
from .._queueing.fork import Background, ForkAware, watch_forks
from .._queueing.tasks import TaskPlace
from ..accel._gates import spending
from ..core._decision import Decision
from ..core._errors import StoreUnavailableError
from ..core._loops import running_loop
from ..core._transform import Grant
from ..core._validation import MAX_SAFE, require_key
from ._near import LeaseRequest, NearTier

__all__ = ["Refilling"]


class Refilling(ForkAware):
    """A near tier that is refilled from a far tier; subclasses implement `_fetch` and `_afetch`."""

    def __init__(self, near: NearTier, low_water: int) -> None:
        self._near = near
        # -1 is never reached: no lease is taken ahead of need.
        self._low_water = low_water or -1
        # A local spend that leaves at most this many credits is passed on to `_settle`.
        self._level = MAX_SAFE if near.demand.learns else self._low_water
        self._begin()
        watch_forks(self)

    def _begin(self) -> None:
        """Start without credits and leases in flight."""
        self._bind()
        # Referenced here, because an event loop refers to its tasks weakly.
        self._tasks: dict[asyncio.AbstractEventLoop, set[asyncio.Task[Any]]] = {}
        # The keys with a lease ahead of need in flight, and its event loop; None for a thread.
        self._ahead: dict[str, asyncio.AbstractEventLoop | None] = {}
        self._background = Background("penstock-lease")

    def _bind(self) -> None:
        """Choose how local credits are spent: in compiled code, if they are in a native table."""
        near = self._near
        self._local = near.local.check
        self._compiled = spending(near.local, self._level, self._settle)
        self._spend = self._compiled or self._spend_interpreted

    def _spend_interpreted(self, key: str, cost: int = 1) -> Decision:
        decision = self._local(key, cost)
        if decision.allowed and decision.remaining > self._level:
            return decision
        return self._settle(key, cost, decision)

    @abstractmethod
    def _fetch(self, request: LeaseRequest) -> Grant:
        """Lease from the far tier."""

    @abstractmethod
    async def _afetch(self, request: LeaseRequest) -> Grant:
        """The awaitable twin of `_fetch`."""

    def _settle(self, key: str, cost: int, decision: Decision, now: int | None = None) -> Decision:
        """Finish a local check that missed, or that left few credits."""
        if decision.allowed:
            self._low(key, decision.remaining, now)
            return decision
        return self._serve(key, cost, now)

    async def _asettle(
        self, key: str, cost: int, decision: Decision, now: int | None = None
    ) -> Decision:
        """The awaitable twin of `_settle`."""
        if decision.allowed:
            self._alow(key, decision.remaining, now)
            return decision
        return await self._aserve(key, cost, now)

    def _serve(self, key: str, cost: int, now: int | None = None) -> Decision:
        """Serve a miss."""
        near, key = self._near, require_key(key)
        denied = near.recall(key, cost, now)
        if denied is not None:
            return denied
        place = self._place(key, sys._getframe())
        if place is None:
            return self._serve_apart(key, cost, now)
        with place:
            settled = near.settle(key, cost, place, now)
            if settled is not None:
                return settled
            request = near.ask(key, cost, now)
            try:
                grant = self._fetch(request)
            except StoreUnavailableError as error:
                place.share(error)
                raise
            return near.receive(request, cost, grant, now)

    def _place(self, key: str, frame: FrameType) -> Place[Queue] | None:
        """A place in the queue for a thread, which blocks until it leads. None if this thread runs
        an event loop and there are tasks in the queue, since that could deadlock: the tasks may
        belong to that loop, or to one whose thread waits for a task of this one."""
        on_a_loop = asyncio._get_running_loop() is not None
        admit = _has_threads_only if on_a_loop else None
        return Place.of_thread(self._near.queues, key, frame, admit)

    def _serve_apart(self, key: str, cost: int, now: int | None) -> Decision:
        """Serve a miss outside of the queue, in a thread that runs an event loop and must not wait
        for the tasks in the queue. The lease is just the cost of the request: it leaves no credits,
        so the bounds hold."""
        request = self._near.ask_for_one(key, cost, now)
        return self._near.receive(request, cost, self._fetch(request), now)

    async def _aserve(self, key: str, cost: int, now: int | None = None) -> Decision:
        """The awaitable twin of `_serve`."""
        near, key = self._near, require_key(key)
        denied = near.recall(key, cost, now)
        if denied is not None:
            return denied
        place = TaskPlace.of_task(near.queues, key, running_loop())
        assert place is not None
        await place.enter()
        lease: asyncio.Task[Decision] | None = None
        try:
            settled = near.settle(key, cost, place, now)
            if settled is not None:
                return settled
            lease = self._spawn(self._alease(key, cost, place, now))
            place.waiter.hand_to(lease)
            # Before the callback is added, so that the caller wakes before the next in the queue.
            waiting: asyncio.Future[Decision] = asyncio.shield(lease)
            # A callback also runs if the task is cancelled before it has started.
            lease.add_done_callback(partial(_ended, place))
        finally:
            if lease is None:
                place.leave()
        return await waiting

    async def _alease(self, key: str, cost: int, place: Place[Queue], now: int | None) -> Decision:
        request = self._near.ask(key, cost, now)
        try:
            grant = await self._afetch(request)
        except StoreUnavailableError as error:
            place.share(error)
            raise
        return self._near.receive(request, cost, grant, now)

    def _low(self, key: str, left: int, now: int | None) -> None:
        """Lease ahead of need, after a local spend that left few credits."""
        if self._worth_a_lease(key, left, now):
            self._ahead[key] = None
            try:
                self._background.submit(partial(self._run_ahead, key))
            except RuntimeError:
                # No thread can be started, as when the interpreter is shutting down.
                self._ahead.pop(key, None)

    def _alow(self, key: str, left: int, now: int | None) -> None:
        """As `_low`, in a task."""
        if self._worth_a_lease(key, left, now):
            self._ahead[key] = running_loop()
            task = self._spawn(self._arun_ahead(key))
            task.add_done_callback(lambda _: self._ahead.pop(key, None))

    def _worth_a_lease(self, key: str, left: int, now: int | None) -> bool:
        self._near.demand.note(key, left)
        if left > self._low_water or not self._near.may_prefetch(key, now):
            return False
        if key not in self._ahead:
            return True
        loop = self._ahead.get(key)
        return loop is not None and loop.is_closed()

    # A lease ahead of need never waits in the queue: if there is one, its leader leases credits.

    def _run_ahead(self, key: str) -> None:
        try:
            place = Place.of_thread(self._near.queues, key, sys._getframe(), _is_empty)
            if place is not None:
                with place:
                    request = self._near.ask_ahead(key, self._low_water)
                    if request is not None:
                        self._near.receive(request, 0, self._fetch(request))
        except Exception:
            self._near.rest()
        finally:
            self._ahead.pop(key, None)

    async def _arun_ahead(self, key: str) -> None:
        try:
            place = TaskPlace.of_task(self._near.queues, key, running_loop(), _is_empty)
            if place is not None:
                async with place:
                    request = self._near.ask_ahead(key, self._low_water)
                    if request is not None:
                        self._near.receive(request, 0, await self._afetch(request))
        except Exception:
            self._near.rest()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        loop = running_loop()
        tasks = self._tasks.get(loop)
        if tasks is None:
            for other in [each for each in list(self._tasks) if each.is_closed()]:
                self._tasks.pop(other, None)
            tasks = self._tasks[loop] = set()
        task = loop.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    def _finish(self) -> None:
        """Wait for leases of threads. The limiter can still be used afterwards."""
        self._background.finish()

    async def _afinish(self) -> None:
        """Wait for leases of this event loop and of threads."""
        loop = running_loop()
        await asyncio.gather(*self._tasks.pop(loop, ()), return_exceptions=True)
        if self._background.is_running:
            await loop.run_in_executor(None, self._finish)

    def _after_fork_in_child(self) -> None:
        """Drop the credits: the parent spends them."""
        self._near.after_fork()
        self._begin()


def _ended(place: Place[Queue], lease: asyncio.Task[Decision]) -> None:
    place.leave()
    if not lease.cancelled():
        # Retrieved, in case the caller was cancelled: asyncio would log an unretrieved exception.
        lease.exception()


def _is_empty(queue: Queue) -> bool:
    return not len(queue)


def _has_threads_only(queue: Queue) -> bool:
    return all(isinstance(waiter, ThreadWaiter) for waiter in queue.waiting())
