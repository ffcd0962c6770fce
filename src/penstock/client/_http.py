"""The HTTP transport: sync calls by the standard library's http.client, async ones by httpx.

Connections are kept open. Before one is used again it is checked that the server has not closed it,
and one that was idle for long is dropped, because the server may be about to close it. A request
that failed before it was sent completely is sent again, once, on a new connection: the service
cannot have acted on it. After that, only calls that spend nothing are repeated.
"""

from __future__ import annotations

import asyncio
import json
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from weakref import WeakKeyDictionary

from .._queueing.fork import ForkAware, watch_forks
from ..core._errors import require_module
from ..core._validation import reject
from ._transport import SPENDING, Answer, no_answer, refusal

__all__ = ["HttpTransport"]

# Less than the 75 s after which the service closes a connection.
_IDLE_S = 30.0
_MAX_IDLE = 64
_MAX_ASYNC = 256

_Faults = (OSError, HTTPException)


class _UnsentError(Exception):
    """The request was not sent completely, so the service cannot have acted on it."""


class HttpTransport(ForkAware):
    """Calls a service over HTTP. `base_path` is the path before /v1, if the service is behind a
    proxy that serves it under a path."""

    def __init__(
        self,
        host: str,
        port: int | None,
        base_path: str,
        *,
        token: str | None,
        timeout_ms: int,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._base = f"{base_path.rstrip('/')}/v1/"
        self._timeout_s = timeout_ms / 1000
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        named = f"[{host}]" if ":" in host else host
        self.where: str = named if port is None else f"{named}:{port}"
        self._url = f"{'http' if tls is None else 'https'}://{self.where}"
        self._idle: deque[tuple[HTTPConnection, float]] = deque()
        self._httpx: Any = None
        self._clients: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        watch_forks(self)

    def call(self, name: str, fields: Mapping[str, Any]) -> Answer:
        deadline = time.monotonic() + self._timeout_s
        body = json.dumps(fields).encode()
        connection = self._kept()
        if connection is not None:
            try:
                return self._answer(*self._exchange(connection, name, body, deadline))
            except _UnsentError:
                pass
            except _Faults as error:
                if name in SPENDING or isinstance(error, TimeoutError):
                    raise no_answer(self.where, name, error, sent=True) from error
        connection = self._new(deadline, name)
        try:
            return self._answer(*self._exchange(connection, name, body, deadline))
        except _UnsentError as error:
            raise no_answer(self.where, name, error, sent=False) from error
        except _Faults as error:
            raise no_answer(self.where, name, error, sent=True) from error

    async def acall(self, name: str, fields: Mapping[str, Any]) -> Answer:
        client, httpx = self._client(), self._httpx
        try:
            # httpx bounds each step of a call; this bounds the whole.
            reply = await asyncio.wait_for(
                client.post(self._base + name, json=fields), self._timeout_s
            )
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise no_answer(self.where, name, error, sent=False) from error
        except (httpx.HTTPError, asyncio.TimeoutError) as error:
            told = error if str(error) else f"none within {self._timeout_s} s"
            raise no_answer(self.where, name, told, sent=True) from error
        return self._answer(reply.status_code, reply.content)

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[0].close()

    async def aclose(self) -> None:
        """Close the connections of sync calls and of the running event loop."""
        self.close()
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    def _kept(self) -> HTTPConnection | None:
        """An idle connection that the server has not closed, if there is one."""
        while True:
            try:
                connection, used_at = self._idle.pop()
            except IndexError:
                return None
            if time.monotonic() - used_at < _IDLE_S and not _has_ended(connection.sock):
                return connection
            connection.close()

    def _new(self, deadline: float, name: str) -> HTTPConnection:
        left = max(0.001, deadline - time.monotonic())
        if self._tls is None:
            connection = HTTPConnection(self._host, self._port, timeout=left)
        else:
            connection = HTTPSConnection(self._host, self._port, timeout=left, context=self._tls)
        try:
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            connection.close()
            raise no_answer(self.where, name, error, sent=False) from error
        return connection

    def _exchange(
        self, connection: HTTPConnection, name: str, body: bytes, deadline: float
    ) -> tuple[int, bytes]:
        keep = False
        try:
            try:
                connection.sock.settimeout(max(0.001, deadline - time.monotonic()))
                connection.request("POST", self._base + name, body, self._headers)
            except OSError as error:
                raise _UnsentError(str(error)) from error
            connection.sock.settimeout(max(0.001, deadline - time.monotonic()))
            reply = connection.getresponse()
            content = reply.read()
            keep = not reply.will_close and len(self._idle) < _MAX_IDLE
            return reply.status, content
        finally:
            # After an interrupt too: a late reply must not be read as that of the next request.
            if keep:
                self._idle.append((connection, time.monotonic()))
            else:
                connection.close()

    def _answer(self, status: int, content: bytes) -> Answer:
        try:
            told = json.loads(content)
        except ValueError:
            told = None
        if status != 200:
            raise refusal(self.where, status, told if isinstance(told, dict) else {})
        if not isinstance(told, dict):
            reject(
                f"{self.where} answered with something other than a JSON object; is it the address "
                "of a Penstock service?"
            )
        return told

    def _client(self) -> Any:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            httpx = self._httpx = require_module("asking a service over HTTP", "httpx", "client")
            client = self._clients[loop] = httpx.AsyncClient(
                base_url=self._url,
                headers=self._headers,
                timeout=self._timeout_s,
                verify=False if self._tls is None else self._tls,
                trust_env=False,
                limits=httpx.Limits(max_connections=_MAX_ASYNC, keepalive_expiry=_IDLE_S),
            )
        return client

    def _after_fork_in_child(self) -> None:
        """Close the child's copies of the sockets; the parent's connections stay open."""
        self.close()
        self._clients = WeakKeyDictionary()


def _has_ended(sock: socket.socket | None) -> bool:
    """Whether the server closed it: between requests there is nothing else to be read."""
    if sock is None:
        return True
    try:
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(sock, select.POLLIN)
            return bool(poll.poll(0))
        return bool(select.select([sock], [], [], 0)[0])
    except (OSError, ValueError):
        return True
