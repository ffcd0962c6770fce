"""Pace a web handler: each client gets 5 requests a minute, the rest get 429 with Retry-After."""

from __future__ import annotations

import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import ceil

from penstock import rate_limit

limiter = rate_limit("5/minute")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        decision = limiter.check(self.client_address[0])
        self.send_response(200 if decision else 429)
        self.send_header("X-RateLimit-Limit", str(decision.limit))
        self.send_header("X-RateLimit-Remaining", str(decision.remaining))
        if not decision:
            self.send_header("Retry-After", str(ceil(decision.retry_after_ms / 1000)))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """The main program prints what matters."""


def ask(port: int) -> str:
    connection = HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/")
    response = connection.getresponse()
    connection.close()
    remaining, retry = (
        response.getheader(name) for name in ("X-RateLimit-Remaining", "Retry-After")
    )
    return f"{response.status}, {remaining} left" + (f", retry after {retry} s" if retry else "")


def main() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        for _ in range(7):
            print(ask(server.server_port))
        server.shutdown()


if __name__ == "__main__":
    main()
