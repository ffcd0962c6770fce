"""A TCP proxy that counts round trips: how often the client spoke after the server had.

A client that sends several messages before it reads makes one turn of them, which is what a
network charges for. Replies are passed on as they come.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

__all__ = ["TurnCounter"]

_CHUNK = 65_536


class TurnCounter:
    """Listens on `port` of 127.0.0.1 and forwards to `target_port`; `turns` counts."""

    def __init__(self, target_port: int, host: str = "127.0.0.1") -> None:
        self._target = (host, target_port)
        self._listener = socket.create_server((host, 0))
        self._sockets: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]
        self.turns = 0
        self.connections = 0

    def url_of(self, url: str) -> str:
        """The server's URL, led through this proxy."""
        return url.replace(f":{self._target[1]}", f":{self.port}")

    def __enter__(self) -> TurnCounter:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for one in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                for one in (client, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets += (client, server)
                self.connections += 1
                _Pair(self, client, server).start()


class _Pair:
    """One connection. `answered`: the server spoke last."""

    def __init__(self, counter: TurnCounter, client: socket.socket, server: socket.socket) -> None:
        self._counter = counter
        self._client = client
        self._server = server
        self._answered = True

    def start(self) -> None:
        for pump in (self._requests, self._replies):
            threading.Thread(target=pump, daemon=True).start()

    def _requests(self) -> None:
        with contextlib.suppress(OSError):
            while chunk := self._client.recv(_CHUNK):
                if self._answered:
                    self._answered = False
                    self._counter.turns += 1
                self._server.sendall(chunk)
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_WR)

    def _replies(self) -> None:
        with contextlib.suppress(OSError):
            while chunk := self._server.recv(_CHUNK):
                self._answered = True
                self._client.sendall(chunk)
        with contextlib.suppress(OSError):
            self._client.shutdown(socket.SHUT_WR)
