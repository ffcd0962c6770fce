"""HTTP over TLS: the same requests and bounds, from a connection's first byte on."""

from __future__ import annotations

import contextlib
import gc
import json
import shutil
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.service._access import server_context
from penstock.service._options import TlsFiles
from penstock.service.http import Bounds
from penstock.service.http2 import ErrorCode

from ..http2.frames import GOAWAY, frames
from .serving import InProcessServer, post_bytes, read_all
from .test_bounds import StuckStore
from .test_serve import make_certificates

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")

ASK = post_bytes("/check", b'{"key":"k","limit":1000000,"window_ms":60000}')
LAST = post_bytes("/check", b'{"key":"k","limit":1000000,"window_ms":60000}', close=True)
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    return folder


def context_of(folder: Path, *, ca: bool = False) -> ssl.SSLContext:
    files = TlsFiles(str(folder / "server.pem"), str(folder / "server.key"))
    if ca:
        files = TlsFiles(files.cert, files.key, str(folder / "ca.pem"))
    return server_context(files)


@contextlib.contextmanager
def line_to(
    port: int, folder: Path, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> Iterator[ssl.SSLSocket]:
    trusts = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    trusts.minimum_version = trusts.maximum_version = version
    plain = socket.create_connection(("127.0.0.1", port), 20)
    # An end without a notice is an error to this client.
    with trusts.wrap_socket(plain, server_hostname="127.0.0.1", suppress_ragged_eofs=False) as line:
        yield line


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_in_one_piece_are_answered_in_order(folder: Path, version: ssl.TLSVersion) -> None:
    """More than fit into one slice, and the end is announced, so that nothing can be cut off."""
    with (
        InProcessServer(tls=context_of(folder)) as server,
        line_to(server.port, folder, version) as line,
    ):
        line.sendall(ASK * 500 + LAST)
        left = [int(part.split(b",")[0]) for part in read_all(line).split(b'"remaining":')[1:]]
        assert left == list(range(999_999, 999_999 - 501, -1))


def test_who_agreed_on_http2_and_speaks_something_else_is_told_in_http2(folder: Path) -> None:
    trusts = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    trusts.set_alpn_protocols(["h2"])
    with InProcessServer(tls=context_of(folder)) as server:
        plain = socket.create_connection(("127.0.0.1", server.port), 20)
        with trusts.wrap_socket(plain, server_hostname="127.0.0.1") as line:
            assert line.selected_alpn_protocol() == "h2"
            line.sendall(ASK)
            told = frames(read_all(line))
    kind, _, _, payload = told[-1]
    assert (kind, payload[4:8]) == (GOAWAY, struct.pack(">I", ErrorCode.PROTOCOL_ERROR))


@pytest.mark.parametrize("version", VERSIONS)
def test_long_requests_and_long_replies_come_through(folder: Path, version: ssl.TLSVersion) -> None:
    """In as many records as it takes, also to a client that reads late."""
    keys = [f"{number:04}" + "k" * 3_000 for number in range(1_000)]
    body = json.dumps({"policy": "default", "keys": keys}).encode()
    with (
        InProcessServer(tls=context_of(folder)) as server,
        line_to(server.port, folder, version) as line,
    ):
        line.sendall(post_bytes("/v1/check-many", body, close=True))
        time.sleep(0.2)
        head, _, reply = read_all(line).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert len(json.loads(reply)["decisions"]) == 1_000


def test_a_handshake_byte_by_byte_is_a_handshake(folder: Path) -> None:
    """However the network cuts it."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    trusts = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    client = trusts.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with (
        InProcessServer(tls=context_of(folder)) as server,
        socket.create_connection(("127.0.0.1", server.port), 20) as plain,
    ):
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
                break
            for byte in outgoing.read():
                plain.send(bytes([byte]))
            incoming.write(plain.recv(65_536))
        client.write(LAST)
        for byte in outgoing.read():
            plain.send(bytes([byte]))
        received = b""
        while b'"allowed":true' not in received:
            incoming.write(plain.recv(65_536))
            with contextlib.suppress(ssl.SSLWantReadError):
                received += client.read()


def test_who_does_not_shake_hands_is_closed_in_time(folder: Path) -> None:
    """Silent, or stopped in the middle."""
    bounds = Bounds(handshake_s=0.3, linger_s=0.3)
    with InProcessServer(tls=context_of(folder), bounds=bounds) as server:
        for said in (b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"):
            with socket.create_connection(("127.0.0.1", server.port), 20) as plain:
                plain.sendall(said)
                with contextlib.suppress(ConnectionResetError):
                    assert plain.recv(100) == b""


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\xff" * 100])
def test_who_speaks_something_else_is_told_so_and_closed(
    folder: Path, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """With an alert at most, and without a line in the log."""
    with (
        InProcessServer(tls=context_of(folder)) as server,
        socket.create_connection(("127.0.0.1", server.port), 20) as plain,
    ):
        plain.sendall(said)
        with contextlib.suppress(ConnectionResetError):
            assert len(read_all(plain)) < 100
    assert caplog.records == []


@pytest.mark.parametrize("ca", [False, True])
def test_handshakes_that_are_not_finished_take_nobodys_place(folder: Path, ca: bool) -> None:
    """They are strangers, and the oldest makes room for the next."""
    bounds = Bounds(stranger_connections=5, linger_s=0.3)
    with InProcessServer(tls=context_of(folder, ca=ca), bounds=bounds) as server:
        with contextlib.ExitStack() as stack:
            for _ in range(20):
                place = ("127.0.0.1", server.port)
                stack.enter_context(socket.create_connection(place, 20))
            if ca:
                trusts = ssl.create_default_context(cafile=str(folder / "ca.pem"))
                trusts.load_cert_chain(folder / "client.pem", folder / "client.key")
                plain = stack.enter_context(socket.create_connection(place, 20))
                line = stack.enter_context(trusts.wrap_socket(plain, server_hostname="127.0.0.1"))
            else:
                line = stack.enter_context(line_to(server.port, folder))
            line.sendall(LAST)
            assert read_all(line).startswith(b"HTTP/1.1 200 ")
        assert server.server.strangers.max_connections == 5


def begin_handshake(port: int) -> socket.socket:
    """A connection whose client has sent its first message and reads the answer."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client = context.wrap_bio(incoming, outgoing, server_hostname="a")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    plain = socket.create_connection(("127.0.0.1", port), 20)
    plain.sendall(outgoing.read())
    plain.recv(1)
    return plain


def test_tls_state_is_freed_with_its_connection_without_a_garbage_collection(folder: Path) -> None:
    """Whether the client leaves, is displaced by other strangers, or has made a request."""
    bounds = Bounds(stranger_connections=5, linger_s=0.3)
    gc.collect()
    gc.disable()
    try:
        with InProcessServer(tls=context_of(folder), bounds=bounds) as server:
            for _ in range(30):
                begin_handshake(server.port).close()
            begun = [begin_handshake(server.port) for _ in range(30)]
            with line_to(server.port, folder) as line:
                line.sendall(LAST)
                read_all(line)
            for each in begun:
                each.close()
            deadline = time.monotonic() + 20
            while server.server.open_connections and time.monotonic() < deadline:
                time.sleep(0.01)
            kept = [each for each in gc.get_objects() if isinstance(each, ssl.SSLObject)]
            assert [each for each in kept if each.server_side] == []
    finally:
        gc.enable()


def test_a_client_that_has_said_all_gets_all_its_answers(folder: Path) -> None:
    """Though the store takes its time."""
    store = StuckStore()
    with (
        InProcessServer(tls=context_of(folder), store=store) as server,
        line_to(server.port, folder) as line,
    ):
        line.sendall(ASK * 3)
        line.shutdown(socket.SHUT_WR)
        time.sleep(0.2)
        store.go_on.set()
        # The socket has forgotten its keys, so the answers are counted as records.
        assert len(read_all(line)) > 3 * 300


def test_a_client_that_does_not_read_is_cut_off(folder: Path) -> None:
    """What it is owed does not pile up."""
    bounds = Bounds(write_s=0.4, linger_s=0.2)
    with (
        InProcessServer(tls=context_of(folder), bounds=bounds) as server,
        line_to(server.port, folder) as line,
    ):
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        ended = threading.Event()

        def keep_asking() -> None:
            with contextlib.suppress(OSError):
                while True:
                    line.sendall(ASK * 100)
            ended.set()

        threading.Thread(target=keep_asking, daemon=True).start()
        assert ended.wait(20)
