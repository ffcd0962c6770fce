"""The connections of async calls: per event loop, one shared connection per server, and spare ones
for transactions. A connection belongs to the loop that made it, so a store may serve several
loops, one after the other or in several threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from ..._queueing.fork import keep_inherited
from ...core._flow import adrive
from ...core._loops import running_loop
from ...core._store import Told
from .._sheet import ConnectionFailedError
from ._factory import ConnectionFactory
from ._multiplexed import MultiplexedConnection
from ._requests import (
    Address,
    CloseIdle,
    Delay,
    Enter,
    Exchange,
    Parallel,
    Pulse,
    RedisFlow,
    RedisRequest,
    cannot_connect,
    late_connect,
    never_sent,
    no_room,
)
from ._room import AsyncRoom
from ._sync_connections import pack

__all__ = ["AsyncConnections"]


# Concurrent transactions: more of them would only make each other fail, or wait for the server.
_MAX_TRANSACTIONS = 8


class _LoopPool:
    """The connections of one loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, factory: ConnectionFactory, timeout_s: float
    ) -> None:
        self.loop = loop
        self._factory = factory
        self._timeout_s = timeout_s
        self._shared: dict[Address, MultiplexedConnection] = {}
        self._spare: dict[Address, list[MultiplexedConnection]] = {}
        self._connecting: dict[Address, asyncio.Task[MultiplexedConnection]] = {}
        self._pulses: dict[Address, Pulse] = {}
        self.room: AsyncRoom = AsyncRoom()
        self._closed = False
        self._transactions = asyncio.Semaphore(_MAX_TRANSACTIONS)

    def ready(self, where: Address | None) -> MultiplexedConnection | None:
        """The shared connection, if it is there and sound."""
        connection = self._shared.get(where)  # type: ignore[arg-type]
        return connection if connection is not None and connection.is_ready() else None

    def _pulse(self, where: Address) -> Pulse:
        pulse = self._pulses.get(where)
        if pulse is None:
            pulse = self._pulses[where] = Pulse(self._timeout_s)
        return pulse

    def _late(self, where: Address) -> ConnectionFailedError:
        return self._pulse(where).judge(late_connect(where), self.loop.time())

    async def enter(self, weight: int, deadline: float) -> None:
        """Wait for room for a heavy call."""
        if not await self.room.enter(weight, deadline):
            raise Pulse.judge_all(self._pulses.values(), no_room(), self.loop.time())

    async def shared(self, where: Address, deadline: float) -> MultiplexedConnection:
        if connection := self.ready(where):
            return connection
        task = self._connecting.get(where)
        if task is None:
            task = self.loop.create_task(self._connect(where))
            self._connecting[where] = task
            task.add_done_callback(lambda done: self._connected(where, done))
        return await self._within(deadline, task, where)

    async def spare(self, where: Address, deadline: float) -> MultiplexedConnection:
        """A connection of one's own, until `give` or `drop`."""
        left_s = deadline - self.loop.time()
        try:
            await asyncio.wait_for(self._transactions.acquire(), max(0.0, left_s))
        except (asyncio.TimeoutError, TimeoutError):
            raise self._late(where) from None
        try:
            return self._idle(where) or await self._connect_spare(where, deadline)
        except BaseException:
            self._transactions.release()
            raise

    def give(self, connection: MultiplexedConnection) -> None:
        self._transactions.release()
        self._keep(connection)

    def drop(self, connection: MultiplexedConnection) -> None:
        self._transactions.release()
        connection.close()

    def _keep(self, connection: MultiplexedConnection) -> None:
        if self._closed or not connection.takes_requests:
            connection.close()
        else:
            self._spare.setdefault(connection.address, []).append(connection)

    def _idle(self, where: Address) -> MultiplexedConnection | None:
        while self._spare.get(where):
            connection = self._spare[where].pop()
            if connection.is_ready():
                return connection
            connection.close()
        return None

    async def _connect_spare(self, where: Address, deadline: float) -> MultiplexedConnection:
        task = self.loop.create_task(self._connect(where))
        try:
            return await self._within(deadline, task, where)
        finally:
            if not task.done():
                task.add_done_callback(self._keep_late)

    def discard(self, where: Address) -> None:
        for connection in self._spare.pop(where, []):
            connection.close()
        if shared := self._shared.pop(where, None):
            # Others may still wait for their replies on it.
            shared.takes_requests = False

    def close(self) -> None:
        self._closed = True
        for task in self._connecting.values():
            task.cancel()
        for connection in self._all():
            connection.close()
        self._shared.clear()
        self._spare.clear()

    def hang_up(self) -> None:
        """Clean up after the loop has ended: the sockets are closed when they are collected."""
        for connection in self._all():
            connection.hang_up()

    def _all(self) -> list[MultiplexedConnection]:
        return [*self._shared.values(), *(s for group in self._spare.values() for s in group)]

    async def _connect(self, where: Address) -> MultiplexedConnection:
        connection = self._factory.make(where, self._timeout_s)
        try:
            await asyncio.wait_for(connection.connect(), self._timeout_s)
            if connection._writer.is_closing():
                # Only the driver was notified of that, before `MultiplexedConnection` took over.
                raise never_sent(where)
            return MultiplexedConnection(connection, where, self._pulse(where))
        except ConnectionFailedError:
            raise
        except (asyncio.TimeoutError, TimeoutError):
            raise self._late(where) from None
        except Exception as error:
            raise cannot_connect(where, error) from error
        finally:
            # An interrupted login leaves its socket open.
            if (writer := connection._writer) is not None:
                connection._reader = connection._writer = None
                writer.transport.abort()

    def _connected(self, where: Address, task: asyncio.Task[MultiplexedConnection]) -> None:
        self._connecting.pop(where, None)
        if task.cancelled() or task.exception() is not None:
            return
        if self._closed:
            task.result().close()
        else:
            self._shared[where] = task.result()

    def _keep_late(self, task: asyncio.Task[MultiplexedConnection]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._keep(task.result())

    async def _within(
        self, deadline: float, task: asyncio.Task[MultiplexedConnection], where: Address
    ) -> MultiplexedConnection:
        """The task's result, if in time; the task continues for the next caller."""
        done, _ = await asyncio.wait({task}, timeout=max(0.0, deadline - self.loop.time()))
        if not done:
            raise self._late(where)
        if task.cancelled():
            raise ConnectionFailedError(f"connecting to {where} was called off", may_have_run=False)
        failure = task.exception()
        if isinstance(failure, ConnectionFailedError):
            # Waiters share the failure; each raises its own copy, with its own traceback.
            raise failure.unsent()
        return task.result()


class AsyncConnections:
    """All asynchronous connections of a store."""

    def __init__(self, factory: ConnectionFactory, timeout_ms: int) -> None:
        self._factory = factory
        self.timeout_s: float = timeout_ms / 1000
        self._forget()

    def after_fork(self) -> None:
        keep_inherited((list(self._pools.values()), list(self._pools)))
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._pools: dict[asyncio.AbstractEventLoop, _LoopPool] = {}
        # Nearly every call comes from the loop of the one before.
        self._latest: _LoopPool | None = None

    def run(self, flow: RedisFlow, deadline: float | None = None) -> Coroutine[Any, Any, Any]:
        """Serve a flow's requests to its end, within the time of one call, or what is left of
        it."""
        pool = self._pool()
        call = _AsyncCall(pool, deadline or pool.loop.time() + self.timeout_s)
        return adrive(flow, call.serve, None, call.finish)

    def begin(self, flow: RedisFlow, told: Told) -> None:
        """As `run`, without a task as long as none is needed. The callback is always called later;
        an error that is known at once is raised."""
        pool = self._pool()
        _BegunCall(pool, pool.loop.time() + self.timeout_s, flow, told).begin()

    def go_on(self, flow: RedisFlow, told: Told, deadline: float) -> None:
        """As `begin`, for a call that has already begun: an error that is known at once goes to the
        callback."""
        _BegunCall(self._pool(), deadline, flow, told).go_on()

    def ready(self, where: Address | None) -> MultiplexedConnection | None:
        """The connection of this loop to a server, if it is there and sound."""
        return self._pool().ready(where)

    def _pool(self) -> _LoopPool:
        loop = running_loop()
        pool = self._latest
        if pool is None or pool.loop is not loop:
            pool = self._latest = self._pool_of(loop)
        return pool

    def _pool_of(self, loop: asyncio.AbstractEventLoop) -> _LoopPool:
        with self._lock:
            pool = self._pools.get(loop)
            if pool is None:
                self._drop_ended()
                pool = self._pools[loop] = _LoopPool(loop, self._factory, self.timeout_s)
            return pool

    def _drop_ended(self) -> None:
        """Forget the loops that were closed without `aclose`, so that a program that starts one
        after the other does not pile up their sockets."""
        for loop in [loop for loop in self._pools if loop.is_closed()]:
            self._pools.pop(loop).hang_up()

    async def aclose(self) -> None:
        """Close the connections of this loop. Other loops may be in the middle of a call."""
        with self._lock:
            pool = self._pools.pop(running_loop(), None)
            self._latest = None
        if pool is not None:
            pool.close()
            # Sockets close in the loop's next turn.
            await asyncio.sleep(0)

    def close(self) -> None:
        """Tell each loop to close its connections; one that has ended cannot any more."""
        with self._lock:
            pools = list(self._pools.items())
            self._pools.clear()
            self._latest = None
        for loop, pool in pools:
            if loop.is_closed():
                pool.hang_up()
                continue
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(pool.close)


class _AsyncCall:
    """One call: its deadline, and the connection pinned to it, if any."""

    __slots__ = ("_deadline", "_pool", "_weight", "pinned")

    def __init__(self, pool: _LoopPool, deadline: float) -> None:
        self._pool = pool
        self._deadline = deadline
        self._weight = 0
        self.pinned: MultiplexedConnection | None = None

    def serve(self, request: RedisRequest) -> Awaitable[Any]:
        # The common case without a coroutine: the future of a connection that is there.
        if type(request) is Exchange and (connection := self._ready_for(request)) is not None:
            return connection.exchange(request, self._deadline)
        return self._serve(request)

    def _ready_for(self, exchange: Exchange) -> MultiplexedConnection | None:
        """The connection on which an exchange that asks for nothing special can be made now."""
        if exchange.pinned or exchange.share != 1.0:
            return None
        return self._pool.ready(exchange.where)

    async def _serve(self, request: RedisRequest) -> Any:
        if isinstance(request, Exchange):
            return await self._exchange(request)
        if isinstance(request, Parallel):
            exchanges = [self._exchange(exchange) for exchange in request.exchanges]
            answers = await asyncio.gather(*exchanges, return_exceptions=True)
            return [_connection_failure(answer) for answer in answers]
        if isinstance(request, Delay):
            return await self._pause(request.ms / 1000)
        if isinstance(request, Enter):
            await self._pool.enter(request.weight, self._deadline)
            self._weight = request.weight
            return None
        assert isinstance(request, CloseIdle)
        return self._pool.discard(request.where)

    def finish(self, is_well: bool) -> None:
        """The end of the flow."""
        if self._weight:
            self._pool.room.leave(self._weight)
        self.end(is_well)

    def end(self, is_well: bool) -> None:
        """Give back the pinned connection, with every reply read. After a failure its state is
        unknown, so it is closed."""
        pinned, self.pinned = self.pinned, None
        if pinned is None:
            return
        if is_well:
            self._pool.give(pinned)
        else:
            self._pool.drop(pinned)

    async def _exchange(self, exchange: Exchange) -> list[Any]:
        deadline = self._deadline if exchange.share == 1.0 else self._part(exchange.share)
        connection = await self._connection_for(exchange, deadline)
        try:
            return await connection.exchange(exchange, deadline)
        except ConnectionFailedError:
            if exchange.pinned:
                self.end(is_well=False)
            raise

    def _part(self, share: float) -> float:
        """An earlier deadline, at this share of the time that is left."""
        now = self._pool.loop.time()
        return now + (self._deadline - now) * share

    async def _connection_for(self, exchange: Exchange, deadline: float) -> MultiplexedConnection:
        if not exchange.pinned:
            assert exchange.where is not None
            return await self._pool.shared(exchange.where, deadline)
        pinned = self.pinned
        if pinned is not None:
            if exchange.where in (None, pinned.address):
                return pinned
            self.end(is_well=True)
        assert exchange.where is not None
        self.pinned = await self._pool.spare(exchange.where, deadline)
        return self.pinned

    async def _pause(self, seconds: float) -> None:
        if seconds >= self._deadline - running_loop().time():
            raise ConnectionFailedError("out of time", may_have_run=False)
        await asyncio.sleep(seconds)


class _BegunCall(_AsyncCall):
    """A call whose flow goes on where its reply arrives. As soon as it asks for anything but an
    exchange on a connection that is there, a task runs the rest of it."""

    __slots__ = ("_flow", "_task", "_told")

    def __init__(self, pool: _LoopPool, deadline: float, flow: RedisFlow, told: Told) -> None:
        super().__init__(pool, deadline)
        self._flow = flow
        self._told: Told | None = told

    def begin(self) -> None:
        self._ask(next(self._flow))

    def go_on(self) -> None:
        """As `begin`; an error that is known at once goes to the callback as well."""
        self._go_on(self._flow.send, None)

    # The interface of a future, for the connection.

    def done(self) -> bool:
        return self._told is None

    def set_result(self, replies: list[Any]) -> None:
        self._go_on(self._flow.send, replies)

    def set_exception(self, error: ConnectionFailedError) -> None:
        self._go_on(self._flow.throw, error)

    def _go_on(self, resume: Callable[[Any], RedisRequest], answer: Any) -> None:
        try:
            self._ask(resume(answer))
        except StopIteration as finished:
            self._end(finished.value, None)
        except Exception as error:
            self._end(None, error)

    def _ask(self, request: RedisRequest) -> None:
        if type(request) is Exchange and (connection := self._ready_for(request)) is not None:
            request.wait(self, self._deadline)
            connection.send(request, pack(request.commands))
            return
        rest = adrive(self._flow, self.serve, request, self.finish)
        self._task = self._pool.loop.create_task(rest)
        self._task.add_done_callback(self._rested)

    def _rested(self, task: asyncio.Task[Any]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self._end(None if error else task.result(), error)

    def _end(self, result: Any, error: BaseException | None) -> None:
        told, self._told = self._told, None
        assert told is not None
        try:
            told(result, error)
        except Exception as failure:
            # The replies of other calls follow this one.
            context = {"message": "a call could not be answered", "exception": failure}
            self._pool.loop.call_exception_handler(context)


def _connection_failure(answer: Any) -> Any:
    if isinstance(answer, BaseException) and not isinstance(answer, ConnectionFailedError):
        raise answer
    return answer
