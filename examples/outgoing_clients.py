"""Requests, urllib3 and aiohttp within a partner's limits: a line for each, one limit for all.

The partner is played by a server of this program. Each client has its own limiter; they count in
the same store, so together they send no more than the partner allows.
"""

from __future__ import annotations

import asyncio
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import aiohttp
import requests

from penstock import MemoryStore, gcra
from penstock.integrations.aiohttp_client import LimitedMiddleware
from penstock.integrations.requests import limit_session
from penstock.integrations.urllib3 import LimitedPoolManager

SPACING_MS = 100
LIMIT = gcra(1, SPACING_MS, burst=1)
# For a fleet: "redis://localhost:6379".
STORE = MemoryStore()


class PartnerHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    arrivals: ClassVar[list[float]] = []

    def do_GET(self) -> None:
        self.arrivals.append(time.monotonic())
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_words: object) -> None:
        """Quiet."""


def by_requests(url: str) -> None:
    with requests.Session() as session:
        limit_session(session, LIMIT, store=STORE)
        print("requests:", [session.get(url).status_code for _ in range(3)])


def by_urllib3(url: str) -> None:
    with LimitedPoolManager(LIMIT, store=STORE) as pools:
        print("urllib3:", [pools.request("GET", url).status for _ in range(3)])


async def by_aiohttp(url: str) -> None:
    async with (
        LimitedMiddleware(LIMIT, store=STORE) as limited,
        aiohttp.ClientSession(middlewares=[limited]) as session,
    ):
        codes = []
        for _ in range(3):
            async with session.get(url) as answer:
                codes.append(answer.status)
        print("aiohttp:", codes)


def main() -> None:
    partner = ThreadingHTTPServer(("127.0.0.1", 0), PartnerHandler)
    partner.daemon_threads = True
    thread = threading.Thread(target=partner.serve_forever, args=(0.05,))
    thread.start()
    url = f"http://127.0.0.1:{partner.server_port}/"

    began = time.monotonic()
    by_requests(url)
    by_urllib3(url)
    asyncio.run(by_aiohttp(url))

    # The last of nine has eight spaces before it, whoever sent the others.
    together = (PartnerHandler.arrivals[-1] - began) * 1000 > 7.5 * SPACING_MS
    print(f"{len(PartnerHandler.arrivals)} requests, spaced by one limit: {together}")
    partner.shutdown()
    thread.join()
    partner.server_close()


if __name__ == "__main__":
    main()
