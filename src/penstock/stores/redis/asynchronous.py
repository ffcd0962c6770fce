"""Which link a task uses: per event loop, one shared link per server, and spare ones for
transactions. A link belongs to the loop that made it, so a store may serve several loops, one
after the other or in several threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable
from typing import Any

from ...core.flow import adrive
from .faults import cannot_connect, late_connect
from .multiplexed import Link
from .recipe import Recipe
from .requests import Address, Ask, Discard, LinkError, Pause, RedisFlow, Request, Scatter
from .wire import pack

__all__ = ["AsyncShell"]

# Transactions at a time: more of them would only fail each other's, or wait for the server.
_LANES = 8

# Transports inherited by a forked child. To close one would unregister its socket from the
# parent's event loop, which still uses it.
_inherited: list[Any] = []


class _Hub:
    """The links of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, recipe: Recipe, timeout_s: float) -> None:
        self.loop = loop
        self._recipe = recipe
        self._timeout_s = timeout_s
        self._links: dict[Address, Link] = {}
        self._spare: dict[Address, list[Link]] = {}
        self._connecting: dict[Address, asyncio.Task[Link]] = {}
        self._closed = False
        self._lanes = asyncio.Semaphore(_LANES)

    def ready(self, where: Address | None) -> Link | None:
        """The shared link, if it is there and sound."""
        link = self._links.get(where)  # type: ignore[arg-type]
        if link is None or not link.takes_requests:
            return None
        if link.is_stale():
            link.close()
            return None
        return link

    async def shared(self, where: Address, deadline: float) -> Link:
        if link := self.ready(where):
            return link
        task = self._connecting.get(where)
        if task is None:
            task = self.loop.create_task(self._connect(where))
            self._connecting[where] = task
            task.add_done_callback(lambda done: self._connected(where, done))
        return await _within(deadline, task, where)

    async def spare(self, where: Address, deadline: float) -> Link:
        """A link of one's own, until `give` or `drop`."""
        left_s = deadline - self.loop.time()
        try:
            await asyncio.wait_for(self._lanes.acquire(), max(0.0, left_s))
        except (asyncio.TimeoutError, TimeoutError):
            raise late_connect(where) from None
        try:
            return self._idle(where) or await self._connect_spare(where, deadline)
        except BaseException:
            self._lanes.release()
            raise

    def give(self, link: Link) -> None:
        self._lanes.release()
        self._keep(link)

    def drop(self, link: Link) -> None:
        self._lanes.release()
        link.close()

    def _keep(self, link: Link) -> None:
        if self._closed or not link.takes_requests:
            link.close()
        else:
            self._spare.setdefault(link.address, []).append(link)

    def _idle(self, where: Address) -> Link | None:
        while self._spare.get(where):
            link = self._spare[where].pop()
            if link.takes_requests and not link.is_stale():
                return link
            link.close()
        return None

    async def _connect_spare(self, where: Address, deadline: float) -> Link:
        task = self.loop.create_task(self._connect(where))
        try:
            return await _within(deadline, task, where)
        finally:
            if not task.done():
                task.add_done_callback(self._keep_late)

    def discard(self, where: Address) -> None:
        for link in self._spare.pop(where, []):
            link.close()
        if shared := self._links.pop(where, None):
            # Others may still wait for their replies on it.
            shared.takes_requests = False

    def close(self) -> None:
        self._closed = True
        for task in self._connecting.values():
            task.cancel()
        for link in self._all_links():
            link.close()
        self._links.clear()
        self._spare.clear()

    def hang_up(self) -> None:
        """What is left to do when the loop has ended: the sockets close when they are collected."""
        for link in self._all_links():
            link.hang_up()

    def _all_links(self) -> list[Link]:
        return [*self._links.values(), *(s for group in self._spare.values() for s in group)]

    async def _connect(self, where: Address) -> Link:
        connection = self._recipe.make(where, self._timeout_s)
        try:
            await asyncio.wait_for(connection.connect(), self._timeout_s)
            return Link(connection, where)
        except (asyncio.TimeoutError, TimeoutError):
            raise late_connect(where) from None
        except Exception as error:
            raise cannot_connect(where, error) from error
        finally:
            # A login that was cut short leaves its socket behind.
            if (writer := connection._writer) is not None:
                connection._reader = connection._writer = None
                writer.transport.abort()

    def _connected(self, where: Address, task: asyncio.Task[Link]) -> None:
        self._connecting.pop(where, None)
        if task.cancelled() or task.exception() is not None:
            return
        if self._closed:
            task.result().close()
        else:
            self._links[where] = task.result()

    def _keep_late(self, task: asyncio.Task[Link]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._keep(task.result())


async def _within(deadline: float, task: asyncio.Task[Link], where: Address) -> Link:
    """The task's result, if in time; the task goes on for whoever comes next."""
    left_s = deadline - asyncio.get_running_loop().time()
    done, _ = await asyncio.wait({task}, timeout=max(0.0, left_s))
    if not done:
        raise late_connect(where)
    if task.cancelled():
        raise LinkError(f"connecting to {where} was called off", may_have_run=False)
    failure = task.exception()
    if isinstance(failure, LinkError):
        # Waiters share the failure; each raises its own copy, with its own traceback.
        raise LinkError(str(failure), may_have_run=False, again=failure.again)
    return task.result()


class AsyncShell:
    """All asynchronous connections of a store."""

    def __init__(self, recipe: Recipe, timeout_ms: int) -> None:
        self._recipe = recipe
        self._timeout_s = timeout_ms / 1000
        self._forget()

    def after_fork(self) -> None:
        _inherited.append((list(self._hubs.values()), list(self._hubs)))
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._hubs: dict[asyncio.AbstractEventLoop, _Hub] = {}
        # Nearly every call comes from the loop of the one before.
        self._latest: _Hub | None = None

    async def run(self, flow: RedisFlow) -> Any:
        """Serve a flow's requests to its end, within the time of one call."""
        loop = asyncio.get_running_loop()
        hub = self._latest
        if hub is None or hub.loop is not loop:
            hub = self._latest = self._hub_of(loop)
        call = _Call(hub, loop.time() + self._timeout_s)
        try:
            result = await adrive(flow, call.serve)
        except BaseException:
            call.abandon()
            raise
        if call.pinned is not None:
            call.release()
        return result

    def _hub_of(self, loop: asyncio.AbstractEventLoop) -> _Hub:
        with self._lock:
            hub = self._hubs.get(loop)
            if hub is None:
                self._drop_ended()
                hub = self._hubs[loop] = _Hub(loop, self._recipe, self._timeout_s)
            return hub

    def _drop_ended(self) -> None:
        """Forget the loops that were closed without `aclose`, so that a program that starts one
        after the other does not pile up their sockets."""
        for loop in [loop for loop in self._hubs if loop.is_closed()]:
            self._hubs.pop(loop).hang_up()

    async def aclose(self) -> None:
        """Close the links of this loop. Other loops may be in the middle of a call."""
        with self._lock:
            hub = self._hubs.pop(asyncio.get_running_loop(), None)
            self._latest = None
        if hub is not None:
            hub.close()
            # Sockets close in the loop's next turn.
            await asyncio.sleep(0)

    def close(self) -> None:
        """Tell each loop to close its links; one that has ended cannot any more."""
        with self._lock:
            hubs = list(self._hubs.items())
            self._hubs.clear()
            self._latest = None
        for loop, hub in hubs:
            if loop.is_closed():
                hub.hang_up()
                continue
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(hub.close)


class _Call:
    """One call: its deadline, and the link pinned to it, if any."""

    __slots__ = ("_deadline", "_hub", "pinned")

    def __init__(self, hub: _Hub, deadline: float) -> None:
        self._hub = hub
        self._deadline = deadline
        self.pinned: Link | None = None

    def serve(self, request: Request) -> Awaitable[Any]:
        if type(request) is Ask:
            # The common case without a coroutine: the future of a link that is there.
            if not request.pinned and (link := self._hub.ready(request.where)) is not None:
                deadline = self._deadline if request.share == 1.0 else self._part(request.share)
                return link.ask(pack(request.commands), len(request.commands), deadline)
            return self._ask(request)
        return self._serve(request)

    async def _serve(self, request: Request) -> Any:
        if isinstance(request, Scatter):
            asks = [self._ask(ask) for ask in request.asks]
            answers = await asyncio.gather(*asks, return_exceptions=True)
            return [_link_failure(answer) for answer in answers]
        if isinstance(request, Pause):
            return await self._pause(request.ms / 1000)
        assert isinstance(request, Discard)
        return self._hub.discard(request.where)

    def release(self) -> None:
        """Give back what is pinned, with every reply read."""
        if self.pinned is not None:
            self._hub.give(self.pinned)
            self.pinned = None

    def abandon(self) -> None:
        """After a failure nobody knows what the pinned link is in the middle of."""
        if self.pinned is not None:
            self._hub.drop(self.pinned)
            self.pinned = None

    async def _ask(self, ask: Ask) -> list[Any]:
        deadline = self._deadline if ask.share == 1.0 else self._part(ask.share)
        link = await self._link_for(ask, deadline)
        return await link.ask(pack(ask.commands), len(ask.commands), deadline)

    def _part(self, share: float) -> float:
        """An earlier deadline, at this share of the time that is left."""
        now = self._hub.loop.time()
        return now + (self._deadline - now) * share

    async def _link_for(self, ask: Ask, deadline: float) -> Link:
        if not ask.pinned:
            assert ask.where is not None
            return await self._hub.shared(ask.where, deadline)
        pinned = self.pinned
        if pinned is not None:
            if ask.where in (None, pinned.address):
                return pinned
            self.release()
        assert ask.where is not None
        self.pinned = await self._hub.spare(ask.where, deadline)
        return self.pinned

    async def _pause(self, seconds: float) -> None:
        if seconds >= self._deadline - asyncio.get_running_loop().time():
            raise LinkError("out of time", may_have_run=False)
        await asyncio.sleep(seconds)


def _link_failure(answer: Any) -> Any:
    if isinstance(answer, BaseException) and not isinstance(answer, LinkError):
        raise answer
    return answer
