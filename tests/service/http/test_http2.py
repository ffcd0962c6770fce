"""The HTTP API over HTTP/2, and gRPC, on one port with HTTP/1.1."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from penstock import gcra
from penstock.config import PolicySpec
from penstock.service._access import server_context
from penstock.service._options import TlsFiles
from penstock.wire.proto import rate_limiter_pb2 as pb
from penstock.wire.proto.rate_limiter_pb2_grpc import RateLimiterStub
from tests.servers import require
from tests.servers.node import node_binary
from tests.service.http2.frames import begin, request

from .serving import Client, InProcessServer, Penstock, talk
from .test_serve import make_certificates

ASK = {"key": "k", "limit": 3, "window_ms": 60_000}
TOKEN = "correct-horse-battery-staple"
POLICIES = """
version: 1
limiters:
  api: {strategy: fixedWindow, limit: 50, window: 1h, anchor: first}
"""


def over_http2(port: int, scheme: str = "http", **options: Any) -> httpx.Client:
    """A client that speaks nothing else."""
    base = f"{scheme}://127.0.0.1:{port}"
    return httpx.Client(http1=False, http2=True, base_url=base, timeout=20, **options)


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    plenty = PolicySpec("plenty", gcra(1_000, 60_000))
    with InProcessServer(policies=[plenty]) as running:
        yield running


def same(one: Any, other: Any) -> bool:
    """Whether two replies say the same, but for the moment at which they do."""
    moments = ("date", "connection", "ratelimit", "retry-after", "content-length")
    heads = [
        {name: value for name, value in reply.items() if name.lower() not in moments}
        for reply in (one.headers, other.headers)
    ]
    return one.status_code == other.status and heads[0] == heads[1]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/check", {**ASK, "key": "same"}),
        ("POST", "/check", {"key": "same"}),
        ("POST", "/v1/peek", {"policy": "plenty", "key": "a"}),
        ("POST", "/v1/peek", {"policy": "nope", "key": "a"}),
        ("GET", "/health", None),
        ("HEAD", "/health", None),
        ("GET", "/openapi.json", None),
        ("GET", "/nowhere", None),
        ("DELETE", "/check", None),
        ("POST", "/check?x=y", {"key": "a"}),
    ],
)
def test_a_request_is_answered_as_in_http_1(
    server: InProcessServer, method: str, path: str, body: Any
) -> None:
    """The same status, headers and, but for what time changes, body."""
    content = None if body is None else json.dumps(body).encode()
    with over_http2(server.port) as client:
        new = client.request(method, path, content=content)
    old_client = Client(server.port)
    old = old_client.ask(method, path, content)
    old_client.close()
    assert new.http_version == "HTTP/2"
    assert same(new, old), (dict(new.headers), old.headers)
    if method != "HEAD" and path not in ("/check", "/v1/peek"):
        assert new.content == old.body
    assert ("connection" in new.headers) is False


def test_many_requests_at_once_on_one_connection_spend_one_limit(server: InProcessServer) -> None:
    """Exactly as many are allowed as the limit says. In one thread: the client's library may send
    streams out of order when several share a connection."""
    asked = {"key": "crowd", "limit": 50, "window_ms": 3_600_000}

    async def scenario() -> list[int]:
        base = f"http://127.0.0.1:{server.port}"
        async with httpx.AsyncClient(http1=False, http2=True, base_url=base, timeout=30) as client:
            replies = await asyncio.gather(*(client.post("/check", json=asked) for _ in range(200)))
            return sorted(reply.status_code for reply in replies)

    assert asyncio.run(scenario()) == [200] * 50 + [429] * 150


def test_a_long_body_is_read_and_one_that_is_too_long_refused(server: InProcessServer) -> None:
    """By the bound of its path, as in HTTP/1.1."""
    keys = [f"{number:04}".ljust(1_000, "k") for number in range(1_000)]
    many = {"policy": "plenty", "keys": keys}
    with over_http2(server.port) as client:
        assert client.post("/v1/check-many", json=many).status_code == 200
        refused = client.post("/check", content=b" " * 40_000)
        assert (refused.status_code, refused.json()["code"]) == (413, "body_too_large")
        assert client.get("/health").status_code == 200


def test_a_token_is_asked_for() -> None:
    """By every protocol that the port speaks."""
    with InProcessServer(token=TOKEN) as server, over_http2(server.port) as client:
        assert client.post("/check", json=ASK).status_code == 401
        assert client.get("/health").status_code == 200
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        assert client.post("/check", json=ASK, headers=bearer).status_code == 200


def test_names_of_the_service_are_held_to(server: InProcessServer) -> None:
    """The authority of a request is its host."""
    with InProcessServer(hosts=["penstock.example"]) as strict, over_http2(strict.port) as client:
        assert client.get("/health", headers={"host": "evil.example"}).status_code == 421
        assert client.get("/health", headers={"host": "penstock.example"}).status_code == 200


def test_http2_is_begun_at_the_beginning_or_not_at_all(server: InProcessServer) -> None:
    """Behind a request of HTTP/1.1 its first bytes are a request like any other, and a bad one."""
    first = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    heard = talk(server.port, first + preface)
    assert heard.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 505 " in heard


def test_a_star_is_answered_as_in_http_1(server: InProcessServer) -> None:
    """`OPTIONS *` is well-formed, and about no path that is served here."""
    sent = begin() + request(1, end=True, method="OPTIONS", path="*")
    with socket.create_connection(("127.0.0.1", server.port), 20) as line:
        line.sendall(sent)
        heard = b""
        while b"malformed_request" not in heard:
            more = line.recv(65_536)
            assert more
            heard += more
    assert (
        talk(server.port, b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n")[:12] == b"HTTP/1.1 400"
    )


@pytest.mark.parametrize("cut", [1, 3, 17, 20, 24, 30])
def test_the_first_bytes_may_come_in_pieces(server: InProcessServer, cut: int) -> None:
    """However they are cut, the settings of HTTP/2 are the answer."""
    data = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
    with socket.create_connection(("127.0.0.1", server.port), 20) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.sendall(data[:cut])
        time.sleep(0.05)
        line.sendall(data[cut:])
        assert line.recv(9)[3:4] == b"\4"


def test_node_is_answered(server: InProcessServer) -> None:
    """Its own HTTP/2, over one session: many requests at once, and one that is cancelled."""
    require("node")
    script = """
    const http2 = require("node:http2");
    const session = http2.connect(process.argv[1]);
    const ask = (path, body) => new Promise((resolve, reject) => {
      const request = session.request({ ":path": path, ":method": body ? "POST" : "GET" });
      let status = 0;
      request.on("response", (headers) => { status = headers[":status"]; });
      request.on("data", () => {});
      request.on("end", () => resolve(status));
      request.on("error", reject);
      request.end(body);
    });
    (async () => {
      const cancelled = session.request({ ":path": "/health" });
      cancelled.on("error", () => {});
      cancelled.close(http2.constants.NGHTTP2_CANCEL);
      const body = JSON.stringify({ key: "node", limit: 20, window_ms: 3600000 });
      const answers = await Promise.all([...Array(50)].map(() => ask("/check", body)));
      const document = await ask("/openapi.json");
      await new Promise((resolve) => session.ping(resolve));
      session.close();
      console.log(JSON.stringify([answers.filter((s) => s === 200).length, document]));
    })();
    """
    command = [str(node_binary()), "-e", script, f"http://127.0.0.1:{server.port}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == [20, 200]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_a_client_chooses_its_protocol_over_tls(tmp_path: Path) -> None:
    """HTTP/2 where it offers it, else HTTP/1.1; both on the port that gRPC is on."""
    make_certificates(tmp_path)
    tls = server_context(TlsFiles(str(tmp_path / "server.pem"), str(tmp_path / "server.key")))
    trusts = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    with InProcessServer(tls=tls) as server:
        base = f"https://127.0.0.1:{server.port}"
        with httpx.Client(http2=True, verify=trusts, base_url=base, timeout=20) as client:
            reply = client.post("/check", json=ASK)
            assert (reply.status_code, reply.http_version) == (200, "HTTP/2")
        with httpx.Client(verify=trusts, base_url=base, timeout=20) as client:
            reply = client.post("/check", json=ASK)
            assert (reply.status_code, reply.http_version) == (200, "HTTP/1.1")


def test_three_protocols_on_one_port_spend_one_limit(tmp_path: Path) -> None:
    """HTTP/1.1, HTTP/2 and gRPC, and the port of gRPC beside it."""
    file = tmp_path / "penstock.yaml"
    file.write_text(POLICIES)
    with Penstock("--config", str(file), grpc=True) as service:
        http1, http2 = Client(service.port), over_http2(service.port)
        ports = (service.port, service.grpc_port)
        channels = [grpc.insecure_channel(f"127.0.0.1:{port}") for port in ports]
        ask = {"policy": "api", "key": "k"}
        request = pb.CheckRequest(**ask)
        allowed = 0
        for _ in range(15):
            allowed += http1.post("/check", ask).status == 200
            allowed += http2.post("/check", json=ask).status_code == 200
            for channel in channels:
                reply = RateLimiterStub(channel).Check(request, timeout=20, wait_for_ready=True)
                allowed += reply.decision.allowed
        assert allowed == 50
        with pytest.raises(grpc.RpcError, match="UNIMPLEMENTED"):
            channels[0].unary_unary("/throttlekit.v1.RateLimiter/Nope")(b"", timeout=20)
        for channel in channels:
            channel.close()
        http1.close()
        http2.close()
