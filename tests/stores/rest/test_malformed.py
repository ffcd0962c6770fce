"""Replies of edge backends that are no replies of theirs: a proxy, or a broken server, sent them.

Each is `store_unavailable` within the deadline, and bounded in memory.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from penstock import PenstockError, Store, StoreUnavailableError, fixed_window, rate_limit
from penstock.stores.d1 import D1Store
from penstock.stores.deno_kv import DenoKvStore
from penstock.stores.durable_object import DurableObjectStore
from penstock.stores.workers_kv import WorkersKVStore

ID = "0123456789abcdef0123456789abcdef"
STORES: dict[str, Callable[[str], Store]] = {
    "d1": lambda url: D1Store(ID, ID, token="t", base_url=url, timeout_ms=500),
    "workers_kv": lambda url: WorkersKVStore(ID, ID, token="t", base_url=url, timeout_ms=500),
    "durable_object": lambda url: DurableObjectStore(url, token="t", timeout_ms=500),
    "deno_kv": lambda url: DenoKvStore(url, token="t", timeout_ms=500),
}
FOUND = {"record": 5, "version": None}
WRONG: list[Any] = [
    *(None, [], 5, "text", {}, {"success": True}, {"success": True, "result": 7}),
    {"success": True, "result": [None]},
    {"success": True, "result": [{"results": 5, "meta": {"changes": 1}}]},
    {"success": True, "result": [{"results": [[1]], "meta": {"changes": "1"}}]},
    {"success": True, "result": [{"results": [{"record": 1, "version": 2}], "meta": {}}]},
    {"success": False, "errors": 5},
    {"success": False, "errors": [5, {"code": "x"}]},
    *({"answers": 5}, {"answers": []}, {"answers": [None]}, {"answers": [{}]}),
    {"answers": [{"found": FOUND}]},
    {"answers": [{"found": [FOUND]}]},
    {"answers": [{"found": {"unknown": 1}}]},
]
BODIES = [json.dumps(each).encode() for each in WRONG]
BODIES += [b"[" * 100_000, b'{"answers":' * 50_000, b"\xff\xfe", b"", b"9" * 10_000]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    reply: Callable[[Any], None]

    def _serve(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        type(self).reply(self)

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815 - names of the standard library

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def serving(reply: Callable[[Any], None]) -> Iterator[str]:
    handler = type("Handler", (_Handler,), {"reply": staticmethod(reply)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join(20)
        server.server_close()


def whole(body: bytes) -> Callable[[Any], None]:
    def reply(request: Any) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return reply


def outcome(limiter: Any, way: str) -> str:
    """The code of the error; "" if there is a decision."""
    try:
        asked(limiter, way)
    except PenstockError as error:
        return error.code
    return ""


def asked(limiter: Any, way: str) -> None:
    async def ask() -> None:
        try:
            await limiter.acheck("k")
        finally:
            await limiter.store.aclose()

    if way == "sync":
        limiter.check("k")
    else:
        asyncio.run(ask())


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("name", STORES)
def test_a_malformed_reply_is_an_outage(name: str, way: str) -> None:
    bodies = iter(BODIES)
    current = [b""]
    with serving(lambda request: whole(current[0])(request)) as url:
        store = STORES[name](url)
        limiter = rate_limit(fixed_window(5, 60_000), store=store)
        for current[0] in bodies:
            code = outcome(limiter, way)
            if name == "workers_kv":
                # A value is any text there: one of another form is a foreign state.
                assert code in ("store_unavailable", "config_invalid"), current[0][:80]
            else:
                assert code == "store_unavailable", current[0][:80]
        store.close()


@pytest.mark.parametrize("name", STORES)
def test_random_bytes_are_an_outage_or_a_foreign_state(name: str) -> None:
    randomness = random.Random(7)
    sound = json.dumps(
        {"success": True, "result": [{"results": [], "meta": {"changes": 0}}], "answers": [{}]}
    ).encode()

    def altered() -> bytes:
        body = bytearray(sound)
        for _ in range(randomness.randrange(1, 8)):
            body[randomness.randrange(len(body))] = randomness.randrange(256)
        return bytes(body)

    with serving(lambda request: whole(altered())(request)) as url:
        store = STORES[name](url)
        limiter = rate_limit(fixed_window(5, 60_000), store=store)
        codes = {outcome(limiter, "sync") for _ in range(60)}
        store.close()
    assert codes <= {"", "store_unavailable", "config_invalid"}


@pytest.mark.parametrize("way", ["sync", "async"])
def test_an_endless_reply_ends_with_the_deadline_or_the_bound(way: str) -> None:
    def drip(request: Any) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "1000000")
        request.end_headers()
        for _ in range(200):
            request.wfile.write(b"x")
            time.sleep(0.05)

    with serving(drip) as url:
        store = DenoKvStore(url, token="t", timeout_ms=300)
        limiter = rate_limit(fixed_window(5, 60_000), store=store)
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError):
            asked(limiter, way)
        assert time.monotonic() - began < 5
        store.close()
