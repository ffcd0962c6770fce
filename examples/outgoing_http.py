"""Keep an HTTP client within a partner's limits: requests wait, and a 429 pauses all of them.

The partner is played by a server of this program, which refuses the third request. The client
would send everything at once; its transport spaces the requests, hears the refusal and stays away
for as long as it was told.
"""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import httpx

from penstock import gcra
from penstock.integrations.httpx import LimitedTransport


class PartnerHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    arrivals: ClassVar[list[float]] = []

    def do_GET(self) -> None:
        self.arrivals.append(time.monotonic())
        refused = len(self.arrivals) == 3
        self.send_response(429 if refused else 200)
        if refused:
            self.send_header("Retry-After", "1")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_words: object) -> None:
        """Quiet."""


def main() -> None:
    partner = ThreadingHTTPServer(("127.0.0.1", 0), PartnerHandler)
    partner.daemon_threads = True
    thread = threading.Thread(target=partner.serve_forever, args=(0.05,))
    thread.start()
    url = f"http://127.0.0.1:{partner.server_port}/"

    # For a fleet: store="redis://localhost:6379".
    with httpx.Client(transport=LimitedTransport(gcra(20, 1_000, burst=1))) as client:
        for number in range(1, 6):
            print(f"request {number}: {client.get(url).status_code}")
    refused, after = PartnerHandler.arrivals[2:4]
    print(f"left alone for a second after the refusal: {after - refused >= 1}")

    partner.shutdown()
    thread.join()
    partner.server_close()


if __name__ == "__main__":
    main()
