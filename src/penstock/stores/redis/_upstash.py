"""Upstash over its REST API: the same scripts, one HTTP request each.

REST has no connection to hold, so there is no WATCH: strategies without Lua are not supported. Its
client by default repeats a request whose answer was lost, which would charge it twice; the store
rejects a client that is configured so. The client has no deadline of its own: a blocking request
runs on a thread, and the caller stops waiting when its time is up. The thread is busy until the
answer comes or the connection ends, so their number is bounded: in an outage further calls fail at
once, uncharged, instead of each adding a thread.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import Any

from ...core._clock import SystemClock
from ...core._errors import UnsupportedError
from ...core._flow import adrive, drive
from ...core._loops import running_loop
from ...core._validation import reject
from .._sheet import ConnectionFailedError
from ..cas._drivers import Workers
from ._requests import (
    Address,
    Command,
    Delay,
    Exchange,
    Parallel,
    RedisFlow,
    RedisRequest,
    Refusal,
    late_reply,
    lost_reply,
    malformed,
)
from ._topology import Fixed

__all__ = ["upstash_connections", "upstash_topology"]


_WHERE = Address("the Upstash REST API", 0)
_now_ms = SystemClock().now


def upstash_topology() -> Fixed:
    return Fixed(_WHERE)


def upstash_connections(client: Any, timeout_ms: int) -> tuple[_SyncRest | _AsyncRest, bool]:
    """The connections that run flows over this client, and whether it is async."""
    if getattr(getattr(client, "_http", None), "_retries", 0):
        reject(
            "this Upstash client repeats requests whose answer was lost, which would charge them "
            "twice: make it with rest_retries=0"
        )
    if inspect.iscoroutinefunction(client.execute):
        return _AsyncRest(client, timeout_ms), True
    return _SyncRest(client, timeout_ms), False


class _Rest:
    def __init__(self, client: Any, timeout_ms: int) -> None:
        self._client = client
        self._timeout_ms = timeout_ms

    def _deadline(self) -> int:
        return _now_ms() + self._timeout_ms

    def close(self) -> None:
        """Nothing to close: the client belongs to the caller."""

    async def aclose(self) -> None:
        pass

    def after_fork(self) -> None:
        pass


class _SyncRest(_Rest):
    def __init__(self, client: Any, timeout_ms: int) -> None:
        super().__init__(client, timeout_ms)
        self._workers = Workers()

    def run(self, flow: RedisFlow) -> Any:
        return drive(flow, _SyncRestCall(self._client, self._deadline(), self._workers).serve)

    def close(self) -> None:
        self._workers.close()

    def after_fork(self) -> None:
        # The threads exist only in the parent.
        self._workers = Workers()


class _AsyncRest(_Rest):
    async def run(self, flow: RedisFlow) -> Any:
        running_loop()
        return await adrive(flow, _AsyncRestCall(self._client, self._deadline()).serve)


class _RestCall:
    def __init__(self, client: Any, deadline: int) -> None:
        self._client = client
        self._deadline = deadline

    def _left_s(self) -> float:
        return (self._deadline - _now_ms()) / 1000

    def _request(self, commands: list[Command]) -> Any:
        """The client's answer, or an awaitable of it."""
        if len(commands) == 1:
            return self._client.execute(_texts(commands[0]))
        pipeline = self._client.pipeline()
        for command in commands:
            pipeline.execute(_texts(command))
        return pipeline.exec()

    def _nap_s(self, pause: Delay) -> float:
        if pause.ms / 1000 >= self._left_s():
            raise ConnectionFailedError("out of time", may_have_run=False)
        return pause.ms / 1000


class _SyncRestCall(_RestCall):
    def __init__(self, client: Any, deadline: int, workers: Workers) -> None:
        super().__init__(client, deadline)
        self._workers = workers

    def serve(self, request: RedisRequest) -> Any:
        if isinstance(request, Delay):
            return time.sleep(self._nap_s(request))
        if isinstance(request, Parallel):
            return [self._settled(exchange) for exchange in request.exchanges]
        return self._serve_one(request) if isinstance(request, Exchange) else None

    def _settled(self, exchange: Exchange) -> list[Any] | ConnectionFailedError:
        try:
            return self._serve_one(exchange)
        except ConnectionFailedError as error:
            return error

    def _serve_one(self, exchange: Exchange) -> list[Any]:
        commands = _commands(exchange)
        by = time.monotonic() + max(0.0, self._left_s())
        (answer,) = self._workers.run([lambda: self._request(commands)], by)
        if isinstance(answer, ConnectionFailedError):
            if answer.may_have_run:
                raise late_reply(_WHERE)
            raise ConnectionFailedError(f"no thread for {_WHERE}: {answer}", may_have_run=False)
        if isinstance(answer, Exception):
            return _failed(commands, answer)
        return _replies(commands, answer)


class _AsyncRestCall(_RestCall):
    async def serve(self, request: RedisRequest) -> Any:
        if isinstance(request, Delay):
            return await asyncio.sleep(self._nap_s(request))
        if isinstance(request, Parallel):
            return [await self._settled(exchange) for exchange in request.exchanges]
        return await self._serve_one(request) if isinstance(request, Exchange) else None

    async def _settled(self, exchange: Exchange) -> list[Any] | ConnectionFailedError:
        try:
            return await self._serve_one(exchange)
        except ConnectionFailedError as error:
            return error

    async def _serve_one(self, exchange: Exchange) -> list[Any]:
        commands = _commands(exchange)
        try:
            answer = await asyncio.wait_for(self._request(commands), max(0.0, self._left_s()))
            return _replies(commands, answer)
        except (asyncio.TimeoutError, TimeoutError):
            raise late_reply(_WHERE) from None
        except Exception as error:
            return _failed(commands, error)


def _commands(exchange: Exchange) -> list[Command]:
    if exchange.pinned:
        raise UnsupportedError(
            "the Upstash REST API has no WATCH, which a strategy without Lua needs; use "
            "one of penstock's own strategies, or connect to Upstash by its rediss:// URL"
        )
    return list(exchange.commands)


def _texts(command: Command) -> list[str]:
    """As JSON has it."""
    return [part.decode() for part in command]


def _replies(commands: list[Command], answer: Any) -> list[Any]:
    if len(commands) == 1:
        return [answer]
    if not isinstance(answer, list) or len(answer) != len(commands):
        raise malformed(answer)
    return answer


def _failed(commands: list[Command], error: Exception) -> list[Any]:
    """An error reply, once per command; anything else is a lost connection."""
    if type(error).__name__ == "UpstashError":
        return [Refusal(str(error))] * len(commands)
    raise lost_reply(_WHERE, str(error) or type(error).__name__) from error
