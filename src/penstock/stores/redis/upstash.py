"""Upstash over its REST API: the same scripts, one HTTP request each.

REST has no connection to hold, so there is no WATCH: strategies without a Lua rider are refused.
Its client repeats a request whose answer was lost, which would charge it twice; the store refuses
a client that is set to do so. The client has no deadline of its own: a blocking request runs on a
thread, and the caller stops waiting for it when its time is up.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from ...core.clock import SystemClock
from ...core.errors import UnsupportedError
from ...core.validation import reject
from .faults import late_reply, lost_reply
from .requests import Address, Ask, Command, LinkError, Pause, Refusal, Request, Scatter
from .topology import Fixed

__all__ = ["upstash_shells", "upstash_topology"]

_WHERE = Address("the Upstash REST API", 0)
_now_ms = SystemClock().now


def upstash_topology() -> Fixed:
    return Fixed(_WHERE)


def upstash_shells(client: Any, timeout_ms: int) -> tuple[_Shell | None, _Shell | None]:
    """The blocking and the asynchronous shell; the one that the client is not is None."""
    if getattr(getattr(client, "_http", None), "_retries", 0):
        reject(
            "this Upstash client repeats requests whose answer was lost, which would charge them "
            "twice: make it with rest_retries=0"
        )
    is_async = inspect.iscoroutinefunction(client.execute)
    shell = _Shell(client, timeout_ms, _AsyncCall if is_async else _BlockingCall)
    return (None, shell) if is_async else (shell, None)


class _Shell:
    def __init__(self, client: Any, timeout_ms: int, call: Callable[[Any, int], Any]) -> None:
        self._client = client
        self._timeout_ms = timeout_ms
        self._call = call

    def call(self) -> Any:
        return self._call(self._client, _now_ms() + self._timeout_ms)

    def close(self) -> None:
        """The client belongs to whoever made it."""

    async def aclose(self) -> None:
        pass

    def after_fork(self) -> None:
        pass


class _Call:
    def __init__(self, client: Any, deadline: int) -> None:
        self._client = client
        self._deadline = deadline

    def finish(self) -> None:
        pass

    abandon = finish

    def _left_s(self) -> float:
        return (self._deadline - _now_ms()) / 1000

    def _request(self, commands: list[Command]) -> Any:
        """The client's answer, or what awaits it."""
        if len(commands) == 1:
            return self._client.execute(list(commands[0]))
        pipeline = self._client.pipeline()
        for command in commands:
            pipeline.execute(list(command))
        return pipeline.exec()

    def _nap_s(self, pause: Pause) -> float:
        if pause.ms / 1000 >= self._left_s():
            raise LinkError("out of time", may_have_run=False)
        return pause.ms / 1000


class _BlockingCall(_Call):
    def serve(self, request: Request) -> Any:
        if isinstance(request, Pause):
            return time.sleep(self._nap_s(request))
        if isinstance(request, Scatter):
            return [self._serve_one(ask) for ask in request.asks]
        return self._serve_one(request) if isinstance(request, Ask) else None

    def _serve_one(self, ask: Ask) -> list[Any]:
        commands = _commands(ask)
        hope: Future[Any] = Future()

        def work() -> None:
            try:
                hope.set_result(self._request(commands))
            except Exception as error:
                hope.set_exception(error)

        threading.Thread(target=work, name="penstock-upstash", daemon=True).start()
        try:
            return _replies(commands, hope.result(max(0.0, self._left_s())))
        except (FutureTimeoutError, TimeoutError):
            raise late_reply(_WHERE) from None
        except Exception as error:
            return _failed(commands, error)


class _AsyncCall(_Call):
    async def serve(self, request: Request) -> Any:
        if isinstance(request, Pause):
            return await asyncio.sleep(self._nap_s(request))
        if isinstance(request, Scatter):
            return [await self._serve_one(ask) for ask in request.asks]
        return await self._serve_one(request) if isinstance(request, Ask) else None

    async def _serve_one(self, ask: Ask) -> list[Any]:
        commands = _commands(ask)
        try:
            answer = await asyncio.wait_for(self._request(commands), max(0.0, self._left_s()))
            return _replies(commands, answer)
        except (asyncio.TimeoutError, TimeoutError):
            raise late_reply(_WHERE) from None
        except Exception as error:
            return _failed(commands, error)


def _commands(ask: Ask) -> list[Command]:
    if ask.pinned:
        raise UnsupportedError(
            "the Upstash REST API has no WATCH, which a strategy without a Lua rider needs; use "
            "one of penstock's own strategies, or connect to Upstash by its rediss:// URL"
        )
    return list(ask.commands)


def _replies(commands: list[Command], answer: Any) -> list[Any]:
    return [answer] if len(commands) == 1 else list(answer)


def _failed(commands: list[Command], error: Exception) -> list[Any]:
    """An error reply, once per command; anything else is a lost connection."""
    if type(error).__name__ == "UpstashError":
        return [Refusal(str(error))] * len(commands)
    raise lost_reply(_WHERE, str(error) or type(error).__name__) from error
