"""A partner's HTTP server, for clients that are limited: it answers as told, and remembers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType


class Partner:
    """`with Partner() as partner`: a server on a port of its own. `answers` are given in order,
    and then 200 without further headers. Of `/stream` the second half waits until `go` is set."""

    def __init__(self) -> None:
        self.answers: deque[tuple[int, Mapping[str, str]]] = deque()
        self.seen: list[str] = []
        self.go = threading.Event()
        partner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                partner.seen.append(self.path)
                status, headers = partner.answers.popleft() if partner.answers else (200, {})
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"o")
                if self.path == "/stream":
                    self.wfile.flush()
                    partner.go.wait(30)
                self.wfile.write(b"k")

            def log_message(self, *_words: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def url(self, path: str = "/") -> str:
        return f"http://{self.host}{path}"

    def __enter__(self) -> Partner:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
