"""Serving misses in both colours, and leasing ahead of need in the background.

A lease outlives the caller who asked for it. A thread that waits for one cannot be interrupted;
a task can be cancelled, so its lease is a task of its own: the credits arrive for those who come
next, and a caller who hangs up costs no more than the request it made.

Ahead of need means: once a key's credits are down to the low-water mark, one lease is under way
while the rest is being spent. Its failure is nobody's; the miss that follows will tell.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from abc import abstractmethod
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..accel.limiter import spending
from ..core.decision import Decision
from ..core.errors import StoreUnavailableError
from ..core.grant import Grant
from ..core.turns import Turn
from ..core.validation import MAX_SAFE, require_key
from .near import Errand, NearTier

__all__ = ["Refilling"]


class Refilling:
    """A near tier and the way to its far tier, which subclasses supply."""

    def __init__(self, near: NearTier, low_water: int) -> None:
        self._near = near
        # Without a low-water mark, nothing is ever down to it.
        self._low_water = low_water or -1
        # From here down a local spend is of interest to more than its caller.
        self._level = MAX_SAFE if near.demand.learns else self._low_water
        self._tasks: set[asyncio.Task[Any]] = set()
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        """Start with nothing held and nothing under way."""
        self._bind()
        self._ahead: set[str] = set()
        self._executor: ThreadPoolExecutor | None = None
        self._starting = threading.Lock()

    def _bind(self) -> None:
        """Look up what spends local credits: compiled, where they are."""
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
    def _fetch(self, errand: Errand) -> Grant:
        """Lease from the far tier."""

    @abstractmethod
    async def _afetch(self, errand: Errand) -> Grant:
        """The awaitable twin of `_fetch`."""

    def _settle(self, key: str, cost: int, decision: Decision) -> Decision:
        """What a local check leaves over: a miss, or a key with few credits left."""
        if decision.allowed:
            self._low(key, decision.remaining)
            return decision
        return self._serve(key, cost)

    async def _asettle(self, key: str, cost: int, decision: Decision) -> Decision:
        """The awaitable twin of `_settle`."""
        if decision.allowed:
            self._alow(key, decision.remaining)
            return decision
        return await self._aserve(key, cost)

    def _serve(self, key: str, cost: int) -> Decision:
        """Serve a request for which the credits did not suffice."""
        near, key = self._near, require_key(key)
        denied = near.denials.recall(key, cost)
        if denied is not None:
            return denied
        with near.turns.join(key) as turn:
            settled = near.settle(key, cost, turn)
            if settled is not None:
                return settled
            errand = near.ask(key, cost)
            try:
                grant = self._fetch(errand)
            except StoreUnavailableError as error:
                turn.share(error)
                raise
            return near.receive(errand, cost, grant)

    async def _aserve(self, key: str, cost: int) -> Decision:
        """The awaitable twin of `_serve`."""
        near, key = self._near, require_key(key)
        denied = near.denials.recall(key, cost)
        if denied is not None:
            return denied
        turn = await near.turns.join(key).__aenter__()
        try:
            settled = near.settle(key, cost, turn)
            if settled is None:
                lease = self._spawn(self._alease(key, cost, turn))
        except BaseException:
            turn.leave()
            raise
        if settled is not None:
            turn.leave()
            return settled
        # In this order: the caller is woken before the next in line.
        waiting: asyncio.Future[Decision] = asyncio.shield(lease)
        # A callback also runs for a task that is cancelled before it has begun.
        lease.add_done_callback(lambda _: turn.leave())
        return await waiting

    async def _alease(self, key: str, cost: int, turn: Turn) -> Decision:
        errand = self._near.ask(key, cost)
        try:
            grant = await self._afetch(errand)
        except StoreUnavailableError as error:
            turn.share(error)
            raise
        return self._near.receive(errand, cost, grant)

    def _low(self, key: str, left: int) -> None:
        """A local spend left few credits."""
        if self._worth_a_lease(key, left):
            with self._starting:
                if self._executor is None:
                    self._executor = ThreadPoolExecutor(1, thread_name_prefix="penstock-lease")
                self._executor.submit(self._run_ahead, key)

    def _alow(self, key: str, left: int) -> None:
        """The same in a task."""
        if self._worth_a_lease(key, left):
            task = self._spawn(self._arun_ahead(key))
            task.add_done_callback(lambda _: self._ahead.discard(key))

    def _worth_a_lease(self, key: str, left: int) -> bool:
        self._near.demand.note(key, left)
        if left > self._low_water or key in self._ahead or not self._near.may_prefetch(key):
            return False
        self._ahead.add(key)
        return True

    def _run_ahead(self, key: str) -> None:
        try:
            with self._near.turns.join(key):
                errand = self._near.ask_ahead(key, self._low_water)
                if errand is not None:
                    self._near.receive(errand, 0, self._fetch(errand))
        except Exception:
            self._near.rest()
        finally:
            self._ahead.discard(key)

    async def _arun_ahead(self, key: str) -> None:
        try:
            async with self._near.turns.join(key):
                errand = self._near.ask_ahead(key, self._low_water)
                if errand is not None:
                    self._near.receive(errand, 0, await self._afetch(errand))
        except Exception:
            self._near.rest()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _finish(self) -> None:
        """Wait for what threads have under way. A later call starts anew."""
        with self._starting:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=True)

    async def _afinish(self) -> None:
        """Wait for what this loop has under way, and threads."""
        loop = asyncio.get_running_loop()
        own = [task for task in self._tasks if task.get_loop() is loop]
        await asyncio.gather(*own, return_exceptions=True)
        if self._executor is not None:
            await loop.run_in_executor(None, self._finish)

    def _after_fork(self) -> None:
        self._near.after_fork()
        self._tasks = set()
        self._begin()


_all: weakref.WeakSet[Refilling] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """A child must not spend what its parent leased: both would."""
    for each in list(_all):
        each._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
