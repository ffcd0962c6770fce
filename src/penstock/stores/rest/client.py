"""The HTTP client, sync and async. The only file that imports httpx."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..._queueing import Mutex
from ...core.extras import require_module
from ..cas.perloop import PerLoop
from ..cas.workers import Workers
from ..failure import ConnectionFailedError
from .faults import translated
from .urls import Token, is_loopback, require_base_url

__all__ = ["HttpCall", "Reply", "RestClient"]

_CONNECTIONS = 64


@dataclass(frozen=True, slots=True)
class HttpCall:
    """One request. `body` is text as it is, or anything else as JSON."""

    method: str
    path: str
    body: Any = None


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    text: str

    def json(self) -> Any:
        """The body, or None where it is not JSON: a proxy may have answered."""
        try:
            return json.loads(self.text)
        except ValueError:
            return None


class RestClient:
    """One httpx client for all threads, and one for each loop. They repeat nothing by themselves.

    The token shows up in the header of a request and nowhere else.
    """

    def __init__(self, base_url: str, token: str, timeout_ms: int) -> None:
        self.base_url: str = require_base_url(base_url)
        self._timeout_s = timeout_ms / 1000
        self._make = partial(_make, self.base_url, Token(token), self._timeout_s)
        self._forget()

    def _forget(self) -> None:
        self._mutex = Mutex()
        self._workers = Workers()
        self._blocking: Any = None
        self._asynchronous = PerLoop(self._open, _shut)

    after_fork = _forget

    def prepare(self) -> None:
        if self._blocking is None:
            with self._mutex.hold():
                if self._blocking is None:
                    self._blocking = self._make("Client")

    async def aprepare(self) -> None:
        await self._asynchronous.get()

    def send(self, calls: Sequence[HttpCall], deadline: float) -> list[Any]:
        """All calls at once: for each its Reply, or the ConnectionFailedError it met."""
        self.prepare()
        jobs = [partial(self._send, self._blocking, call, deadline) for call in calls]
        return self._workers.run(jobs, deadline)

    async def asend(self, calls: Sequence[HttpCall], deadline: float) -> list[Any]:
        client = await self._asynchronous.get()
        jobs = [self._asend(client, call, deadline) for call in calls]
        return await asyncio.gather(*jobs, return_exceptions=True)

    def close(self) -> None:
        with self._mutex.hold():
            client, self._blocking = self._blocking, None
        if client is not None:
            client.close()
        self._workers.close()

    async def aclose(self) -> None:
        self.close()
        await self._asynchronous.aclose()

    def __repr__(self) -> str:
        return f"<RestClient of {self.base_url}>"

    def _send(self, client: Any, call: HttpCall, deadline: float) -> Reply:
        try:
            response = client.request(**self._arguments(call), timeout=_left_s(deadline))
        except Exception as error:
            raise translated(error, self.base_url) from None
        return Reply(response.status_code, response.text)

    async def _asend(self, client: Any, call: HttpCall, deadline: float) -> Reply:
        left_s = _left_s(deadline)
        try:
            request = client.request(**self._arguments(call), timeout=left_s)
            response = await asyncio.wait_for(request, left_s)
        except asyncio.TimeoutError:
            raise ConnectionFailedError("no reply in time", may_have_run=True) from None
        except Exception as error:
            raise translated(error, self.base_url) from None
        return Reply(response.status_code, response.text)

    def _arguments(self, call: HttpCall) -> dict[str, Any]:
        # Joined here: httpx would end the address with a slash that nobody wrote.
        arguments: dict[str, Any] = {"method": call.method, "url": self.base_url + call.path}
        if isinstance(call.body, str):
            arguments["content"] = call.body.encode()
        elif call.body is not None:
            arguments["content"] = json.dumps(call.body, separators=(",", ":")).encode()
            arguments["headers"] = {"Content-Type": "application/json"}
        return arguments

    async def _open(self) -> Any:
        return self._make("AsyncClient")


def _make(base_url: str, token: Token, timeout_s: float, kind: str) -> Any:
    httpx = require_module("a store behind an HTTP API", "httpx")
    limits = httpx.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS)
    return getattr(httpx, kind)(
        headers={"Authorization": token.header()},
        timeout=timeout_s,
        limits=limits,
        follow_redirects=False,
        # A proxy that the environment names is for the world, not for this machine.
        trust_env=not is_loopback(base_url),
    )


async def _shut(client: Any) -> None:
    await client.aclose()


def _left_s(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise ConnectionFailedError("no time left to ask", may_have_run=False)
    return left_s
