"""A server that speaks the protocol and answers whatever a test says, over real sockets."""

from __future__ import annotations

import contextlib
import socketserver
import threading
from collections.abc import Callable, Iterator
from typing import Any

Reply = Callable[[list[bytes]], bytes]

_GREETINGS = (b"CLIENT", b"HELLO", b"AUTH", b"SELECT", b"PING")


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while line := self.rfile.readline():
                words = [self._word() for _ in range(int(line[1:]))]
                if words[0].upper() in _GREETINGS:
                    self.wfile.write(b"+OK\r\n")
                else:
                    self.wfile.write(self.server.reply(words))  # type: ignore[attr-defined]

    def _word(self) -> bytes:
        size = int(self.rfile.readline()[1:])
        return self.rfile.read(size + 2)[:size]


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    reply: Reply


class BrokenServer:
    """`reply` makes the bytes of a reply from the words of a command, and may be replaced."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self.port: int = server.server_address[1]

    def answer(self, reply: Reply | bytes) -> None:
        if isinstance(reply, bytes):
            fixed = reply
            self._server.reply = lambda words: fixed
        else:
            self._server.reply = reply


@contextlib.contextmanager
def broken_server() -> Iterator[BrokenServer]:
    with _Server(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield BrokenServer(server)
        finally:
            server.shutdown()
            thread.join()


def resp(value: Any) -> bytes:
    """A value as the protocol has it."""
    if value is None:
        return b"$-1\r\n"
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, list):
        return b"*%d\r\n%b" % (len(value), b"".join(map(resp, value)))
    text = value if isinstance(value, bytes) else str(value).encode()
    return b"$%d\r\n%b\r\n" % (len(text), text)
