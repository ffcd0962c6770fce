"""A proxy that ends a PostgreSQL session at an exact point of a reply, as an operator might.

The server's messages are counted from `arm` on; the one whose turn it is does not come. In its
place comes what `pg_terminate_backend` makes a server say, and the end of the connection, or the
end alone. The server itself has done what it was asked.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType

HOST = "127.0.0.1"


def _farewell() -> bytes:
    fields = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"
    return b"E" + struct.pack("!i", len(fields) + 4) + fields


class EndingProxy:
    """One connection at a time goes through it."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._left: int | None = None
        self._says_why = True
        self.has_ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def url_of(self, url: str) -> str:
        """The same, led through here; messages can only be counted where they are not encrypted."""
        return url.replace(f":{self._target_port}", f":{self.port}") + "&sslmode=disable"

    def arm(self, message: int | None, *, says_why: bool = True) -> None:
        """End the session at the server's message of this number, from 0; None: do not."""
        self.has_ended.clear()
        self._says_why = says_why
        self._left = message

    def __enter__(self) -> EndingProxy:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((HOST, self._target_port))
                for one in (client, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pair, args=(client, server), daemon=True).start()

    def _pair(self, client: socket.socket, server: socket.socket) -> None:
        forward = threading.Thread(target=_forward, args=(client, server), daemon=True)
        forward.start()
        with contextlib.suppress(OSError), server.makefile("rb") as replies:
            while len(head := replies.read(5)) == 5:
                body = replies.read(struct.unpack("!i", head[1:])[0] - 4)
                if self._left == 0:
                    self._left = None
                    client.sendall(_farewell() if self._says_why else b"")
                    self.has_ended.set()
                    break
                if self._left is not None:
                    self._left -= 1
                client.sendall(head + body)
        for one in (client, server):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        forward.join()
        client.close()
        server.close()


def _forward(client: socket.socket, server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := client.recv(65_536):
            server.sendall(chunk)
        server.shutdown(socket.SHUT_RDWR)
