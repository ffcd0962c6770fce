"""The HTTP transport: sync calls by the standard library's http.client, async ones by httpx.

Connections are kept open. Before one is used again it is checked that the server has not closed it,
and one that was idle for long is dropped, because the server may be about to close it. A request
that failed before it was sent completely is sent again, once, on a new connection: the service
cannot have acted on it. After that, only calls that spend nothing are repeated.

One deadline bounds a whole call, sync and async: connecting, sending, and every read of the answer.
An answer is read up to `_MAX_ANSWER` bytes, so a server that sends without end costs no more memory
than that.
"""

from __future__ import annotations

import asyncio
import io
import json
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Mapping
from contextlib import aclosing
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from weakref import WeakKeyDictionary

from .._queueing.fork import ForkAware, watch_forks
from ..core._errors import require_module
from ..core._loops import running_loop
from ._transport import SPENDING, Answer, no_answer, refusal

__all__ = ["HttpTransport"]

# Less than the 75 s after which the service closes a connection.
_IDLE_S = 30.0
_MAX_IDLE = 64
_MAX_ASYNC = 256
_MAX_ANSWER = 8 << 20
"""Head and body. The longest answer of a service, 1,000 verdicts, has under 2 MiB."""

_Faults = (OSError, HTTPException)


class _UnsentError(Exception):
    """The request was not sent completely, so the service cannot have acted on it."""


class _TooLongError(HTTPException):
    """The answer has more bytes than any answer of a service."""

    def __init__(self) -> None:
        super().__init__(f"its answer is longer than {_MAX_ANSWER:,} bytes")


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
                return self._answer(name, *self._exchange(connection, name, body, deadline))
            except _UnsentError:
                pass
            except _Faults as error:
                if name in SPENDING or isinstance(error, TimeoutError):
                    raise no_answer(self.where, name, error, sent=True) from error
        connection = self._new(deadline, name)
        try:
            return self._answer(name, *self._exchange(connection, name, body, deadline))
        except _UnsentError as error:
            raise no_answer(self.where, name, error, sent=False) from error
        except _Faults as error:
            raise no_answer(self.where, name, error, sent=True) from error

    async def acall(self, name: str, fields: Mapping[str, Any]) -> Answer:
        client, httpx = self._client(), self._httpx
        try:
            # httpx bounds each step of a call; this bounds the whole.
            status, content = await asyncio.wait_for(
                self._aexchange(client, name, fields), self._timeout_s
            )
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise no_answer(self.where, name, error, sent=False) from error
        except (httpx.HTTPError, _TooLongError, asyncio.TimeoutError) as error:
            reason = error if str(error) else f"none within {self._timeout_s} s"
            raise no_answer(self.where, name, reason, sent=True) from error
        return self._answer(name, status, content)

    async def _aexchange(
        self, client: Any, name: str, fields: Mapping[str, Any]
    ) -> tuple[int, bytes]:
        content = bytearray()
        async with (
            client.stream("POST", self._base + name, json=fields) as reply,
            # Raw: a compressed body, which was not accepted, must not be expanded.
            aclosing(reply.aiter_raw()) as chunks,
        ):
            async for chunk in chunks:
                content += chunk
                if len(content) > _MAX_ANSWER:
                    raise _TooLongError
        return reply.status_code, bytes(content)

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[0].close()

    async def aclose(self) -> None:
        """Close the connections of sync calls and of the running event loop."""
        self.close()
        client = self._clients.pop(running_loop(), None)
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
        if self._tls is None:
            connection = HTTPConnection(self._host, self._port)
        else:
            connection = HTTPSConnection(self._host, self._port, context=self._tls)
        try:
            connection.sock = _connect(connection.host, connection.port, deadline)
            if self._tls is not None:
                connection.sock = self._tls.wrap_socket(connection.sock, server_hostname=self._host)
        except OSError as error:
            connection.close()
            raise no_answer(self.where, name, error, sent=False) from error
        return connection

    def _exchange(
        self, connection: HTTPConnection, name: str, body: bytes, deadline: float
    ) -> tuple[int, bytes]:
        reply, keep = None, False
        try:
            try:
                connection.sock.settimeout(_left_s(deadline))
                connection.request("POST", self._base + name, body, self._headers)
            except OSError as error:
                raise _UnsentError(str(error)) from error
            connection.response_class = partial(_response, deadline=deadline)  # type: ignore[assignment]
            reply = connection.getresponse()
            # With a bound, since a length that the server declares would be allocated at once.
            content = reply.read(_MAX_ANSWER)
            keep = not reply.will_close and len(self._idle) < _MAX_IDLE
            return reply.status, content
        finally:
            # After an interrupt too: a late reply must not be read as that of the next request.
            if keep:
                self._idle.append((connection, time.monotonic()))
            else:
                connection.close()
                if reply is not None:
                    reply.close()

    def _answer(self, name: str, status: int, content: bytes) -> Answer:
        try:
            fields = json.loads(content)
        except (ValueError, RecursionError):
            fields = None
        if status != 200:
            raise refusal(self.where, status, fields if isinstance(fields, dict) else {})
        if not isinstance(fields, dict):
            problem = "its answer is not a JSON object; is it the address of a Penstock service?"
            raise no_answer(self.where, name, problem, sent=True)
        return fields

    def _client(self) -> Any:
        loop = running_loop()
        client = self._clients.get(loop)
        if client is None:
            httpx = self._httpx = require_module("asking a service over HTTP", "httpx", "client")
            client = self._clients[loop] = httpx.AsyncClient(
                base_url=self._url,
                headers={**self._headers, "Accept-Encoding": "identity"},
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


def _left_s(deadline: float) -> float:
    """The time until the deadline. A timeout of 0 would make a socket non-blocking."""
    return max(0.001, deadline - time.monotonic())


def _connect(host: str, port: int, deadline: float) -> socket.socket:
    """Connect to the first address of a host that answers. `socket.create_connection` would give
    each address the whole time."""
    failed: OSError = OSError(f"{host!r} has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(_left_s(deadline))
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(_left_s(deadline))
        except OSError as error:
            sock.close()
            failed = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
        if time.monotonic() >= deadline:
            break
    raise failed


class _BoundedReader(io.RawIOBase):
    """Reads an answer until a deadline, and no more than `_MAX_ANSWER` bytes. The timeout of a
    socket alone would bound each read, but not their number."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._deadline = deadline
        self._room = _MAX_ANSWER

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        # A timeout of 0 still reads the bytes that have arrived: if this process was not scheduled
        # until the deadline had passed, the answer is used.
        self._sock.settimeout(max(0.0, self._deadline - time.monotonic()))
        try:
            count = self._raw.readinto(buffer)
        except ssl.SSLWantReadError:
            count = None
        if count is None:
            raise TimeoutError("timed out")
        self._room -= count
        if self._room < 0:
            raise _TooLongError
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _BoundedSocket:
    """The part of a socket that `HTTPResponse` uses."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_BoundedReader(self._sock, self._deadline))


def _response(sock: socket.socket, *, method: str, deadline: float) -> HTTPResponse:
    return HTTPResponse(_BoundedSocket(sock, deadline), method=method)  # type: ignore[arg-type]


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
