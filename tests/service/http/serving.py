"""Servers for these tests: one inside this process, with its clock and bounds at hand, and
`penstock serve` as a process of its own."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from penstock import Clock, Store
from penstock.config import PolicyFile, PolicySpec
from penstock.service import Service, build_service
from penstock.service.http import Bounds, HttpServer, Pool
from tests.servers.process import REPO, NotReady, Port, Server, environment
from tests.support.loops import LoopThread

PENSTOCK = [sys.executable, "-m", "penstock.cli"]


@dataclass
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """One connection, kept open."""

    def __init__(self, port: int, timeout: float = 10) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        self._connection.request(method, path, body, dict(headers or {}))
        answer = self._connection.getresponse()
        lowered = {name.lower(): value for name, value in answer.getheaders()}
        return Reply(answer.status, lowered, answer.read())

    def post(self, path: str, body: Any, **headers: str) -> Reply:
        return self.ask("POST", path, body, headers)

    def get(self, path: str, **headers: str) -> Reply:
        return self.ask("GET", path, None, headers)

    def close(self) -> None:
        self._connection.close()


def talk(port: int, *parts: bytes, timeout: float = 5) -> bytes:
    """Send bytes as they are and return everything that comes back until the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout) as line:
        for part in parts:
            line.sendall(part)
        return read_all(line)


def read_all(line: socket.socket) -> bytes:
    received = b""
    while data := line.recv(65_536):
        received += data
    return received


def post_bytes(path: str, body: bytes, *lines: str, close: bool = False) -> bytes:
    """A request as bytes."""
    head = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *lines]
    if close:
        head.append("Connection: close")
    return "\r\n".join([*head, "", ""]).encode() + body


class InProcessServer(LoopThread):
    """A server in this process, on a port of its own, in a thread of its own."""

    def __init__(
        self,
        *,
        policies: Sequence[PolicySpec] = (),
        clock: Clock | None = None,
        bounds: Bounds | None = None,
        store: Store | None = None,
        token: str | None = None,
        hosts: Sequence[str] | None = None,
        tls: ssl.SSLContext | None = None,
        inline: bool = True,
        fail: str = "open",
        pool: Pool | None = None,
    ) -> None:
        config = PolicyFile({spec.name: spec for spec in policies}) if policies else None
        self._make: Callable[[], Service] = lambda: build_service(
            config, clock=clock, store=store, inline=inline, fail=fail
        )
        bounds = bounds or Bounds(linger_s=0.3)
        self._options = {"bounds": bounds, "token": token, "hosts": hosts, "pool": pool}
        self._tls = tls
        self.port = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        service = self._make()
        await service.start()
        self.server = HttpServer(service, **self._options)  # type: ignore[arg-type]
        self.port = await self.server.start("127.0.0.1", 0, tls=self._tls)
        yield
        await self.server.stop()
        await service.aclose()


class Penstock(Server):
    """`penstock serve`, by default with the HTTP server only."""

    name = "penstock"

    def __init__(self, *flags: str, grpc: bool = False) -> None:
        super().__init__()
        self._flags = flags
        self._grpc = Port() if grpc else None

    @property
    def grpc_port(self) -> int:
        assert self._grpc is not None
        return self._grpc.number

    def command(self) -> list[str]:
        servers = ["--http-port", str(self.port)]
        servers += ["--no-grpc"] if self._grpc is None else ["--grpc-port", str(self.grpc_port)]
        return [*PENSTOCK, "serve", *servers, *self._flags]

    def popen_options(self) -> dict[str, Any]:
        return {"env": environment(PYTHONPATH=str(REPO / "src"))}

    def ping(self) -> None:
        client = Client(self.port, timeout=1)
        try:
            if client.get("/health").status != 200:
                raise NotReady("not alive")
        finally:
            client.close()
