"""Certificates are read again on SIGHUP, while the service listens, by both servers."""

from __future__ import annotations

import http.client
import multiprocessing
import os
import shutil
import signal
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.servers.process import NotReady, eventually
from tests.service.grpc.certificates import Pair, authority, signed
from tests.service.http.serving import Penstock
from tests.stores.redis.live import patient_url_of

pytest.importorskip("grpc")


class World:
    """Two authorities with a server and a client each, and the files that the service reads."""

    def __init__(self, folder: Path, elsewhere: Executor) -> None:
        self.folder = folder
        # The library's threads do not take it well when this process starts others later on.
        self.elsewhere = elsewhere
        self.authorities = {name: authority(folder, name) for name in ("old", "new")}
        self.servers = self._signed("server")
        self.clients = self._signed("client")
        self.install("old")

    def _signed(self, what: str) -> dict[str, Pair]:
        return {
            name: signed(self.folder, f"{name}-{what}", by) for name, by in self.authorities.items()
        }

    def install(self, name: str) -> None:
        """Put the certificates of this authority where the service looks."""
        shutil.copy(self.servers[name].cert, self.folder / "shown.pem")
        shutil.copy(self.servers[name].key, self.folder / "shown.key")
        shutil.copy(self.authorities[name].cert, self.folder / "known.pem")

    def flags(self, *, asks: bool) -> list[str]:
        names = ["--tls-cert", "shown.pem", "--tls-key", "shown.key"]
        names += ["--tls-ca", "known.pem"] if asks else []
        return [name if name.startswith("--") else str(self.folder / name) for name in names]

    def http(self, port: int, trusts: str, shows: str | None = None) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=self.authorities[trusts].cert)
        if shows is not None:
            context.load_cert_chain(self.clients[shows].cert, self.clients[shows].key)
        return http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)

    def asks_http(self, port: int, trusts: str, shows: str | None = None) -> bool:
        connection = self.http(port, trusts, shows)
        try:
            connection.request("GET", "/check/alice")
            return connection.getresponse().status in (200, 429)
        except OSError:
            return False
        finally:
            connection.close()

    def asks_grpc(self, port: int, trusts: str, shows: str | None = None) -> bool:
        key, cert = (None, None) if shows is None else self.clients[shows].read()
        roots = self.authorities[trusts].read()[1]
        return self.elsewhere.submit(_asks_grpc, port, roots, key, cert).result(60)


def _asks_grpc(port: int, roots: bytes, key: bytes | None, cert: bytes | None) -> bool:
    """Whether a check is answered; False if the two sides do not accept each other."""
    import grpc

    from penstock.wire.proto import rate_limiter_pb2 as pb
    from penstock.wire.proto.rate_limiter_pb2_grpc import RateLimiterStub

    trust = grpc.ssl_channel_credentials(roots, key, cert)
    # Of its own: the library shares connections between channels that look alike.
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(f"localhost:{port}", trust, options) as channel:
        request = pb.CheckRequest(policy="default", key="alice")
        try:
            RateLimiterStub(channel).Check(request, timeout=10)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return False
        return True


class Guarded(Penstock):
    """`penstock serve` with TLS on both servers."""

    def __init__(self, *flags: str) -> None:
        super().__init__(*flags, grpc=True)

    def ping(self) -> None:
        for port in (self.port, self.grpc_port):
            socket.create_connection(("127.0.0.1", port), 1).close()
        self.said("try:")

    def said(self, word: str, times: int = 1) -> str:
        text = self.log_path.read_text()
        if text.count(word) < times:
            raise NotReady(text)
        return text

    def reload(self, word: str, times: int = 1) -> None:
        os.kill(self.pid, signal.SIGHUP)
        eventually(lambda: self.said(word, times), within=20, what=word)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as elsewhere:
        yield World(tmp_path_factory.mktemp("certificates"), elsewhere)


@pytest.fixture(autouse=True)
def _old_certificates(world: World) -> None:
    """What each test begins with."""
    world.install("old")


@pytest.mark.parametrize("workers", [1, 2])
def test_new_connections_are_shown_the_new_certificate(world: World, workers: int) -> None:
    """Over HTTP and gRPC, by every worker; connections that are open are served on."""
    flags = ["--store", patient_url_of("valkey"), "--workers", str(workers)]
    with Guarded(*world.flags(asks=False), *flags) as server:
        assert world.asks_http(server.port, trusts="old")
        assert world.asks_grpc(server.grpc_port, trusts="old")
        kept = world.http(server.port, trusts="old")
        kept.request("GET", "/check/alice")
        kept.getresponse().read()

        world.install("new")
        assert world.asks_http(server.port, trusts="old")
        server.reload("using the certificates of", times=workers)
        for _ in range(4):
            assert world.asks_http(server.port, trusts="new")
            assert world.asks_grpc(server.grpc_port, trusts="new")
            assert not world.asks_http(server.port, trusts="old")
            assert not world.asks_grpc(server.grpc_port, trusts="old")
        kept.request("GET", "/check/alice")
        assert kept.getresponse().status in (200, 429)
        kept.close()


def test_the_authority_of_clients_is_replaced_as_well(world: World) -> None:
    """Who was known by the old one alone is a stranger from then on."""
    with Guarded(*world.flags(asks=True)) as server:
        assert world.asks_http(server.port, "old", "old")
        assert world.asks_grpc(server.grpc_port, "old", "old")
        assert not world.asks_http(server.port, "old", "new")
        assert not world.asks_grpc(server.grpc_port, "old", "new")

        world.install("new")
        server.reload("using the certificates of")
        assert world.asks_http(server.port, "new", "new")
        assert world.asks_grpc(server.grpc_port, "new", "new")
        assert not world.asks_http(server.port, "new", "old")
        assert not world.asks_grpc(server.grpc_port, "new", "old")
        assert not world.asks_http(server.port, "new")
        assert not world.asks_grpc(server.grpc_port, "new")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_does_not_outlive_the_authority_it_began_under(
    world: World, version: ssl.TLSVersion
) -> None:
    """A client that takes up an old session would not be asked for its certificate again."""
    context = ssl.create_default_context(cafile=world.authorities["old"].cert)
    context.load_verify_locations(world.authorities["new"].cert)
    context.load_cert_chain(world.clients["old"].cert, world.clients["old"].key)
    context.maximum_version = version

    def ask(session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool, bytes]:
        with (
            socket.create_connection(("127.0.0.1", server.port), 10) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as line,
        ):
            line.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            # A session of TLS 1.3 comes after the handshake, with the answer.
            answer = line.recv(1_000)
            return line.session, bool(line.session_reused), answer

    with Guarded(*world.flags(asks=True)) as server:
        session, _, _ = ask(None)
        _, reused, answer = ask(session)
        assert reused
        assert answer.startswith(b"HTTP/1.1 200")
        world.install("new")
        server.reload("using the certificates of")
        try:
            _, _, answer = ask(session)
        except OSError:
            answer = b""
        assert answer == b""


@pytest.mark.parametrize("broken", ["junk", "gone", "key of another"])
def test_bad_files_change_nothing_and_are_reported(world: World, broken: str) -> None:
    """And once they are mended, the next hangup takes them up."""
    with Guarded(*world.flags(asks=False)) as server:
        if broken == "junk":
            (world.folder / "shown.pem").write_text("junk")
        elif broken == "gone":
            (world.folder / "shown.pem").unlink()
        else:
            shutil.copy(world.servers["new"].key, world.folder / "shown.key")
        server.reload("the previous certificates are still used: ")
        assert str(world.folder / "shown.pem") in server.log_path.read_text()
        assert world.asks_http(server.port, trusts="old")
        assert world.asks_grpc(server.grpc_port, trusts="old")
        assert "Traceback" not in server.log_path.read_text()

        world.install("new")
        server.reload("using the certificates of")
        assert world.asks_http(server.port, trusts="new")
        assert world.asks_grpc(server.grpc_port, trusts="new")


def test_a_hangup_reads_policies_and_certificates(world: World, tmp_path: Path) -> None:
    """One signal, both files."""
    file = tmp_path / "penstock.yaml"
    text = "version: 1\nlimiters:\n  default: {strategy: fixedWindow, limit: %d, window: 1h}\n"
    file.write_text(text % 5)
    with Guarded(*world.flags(asks=False), "--config", str(file)) as server:
        file.write_text(text % 7)
        world.install("new")
        server.reload("using the certificates of")
        eventually(
            lambda: server.said("serving 1 policies"), within=20, what="the policies, read again"
        )
        connection = world.http(server.port, trusts="new")
        connection.request("POST", "/check", '{"policy": "default", "key": "k"}')
        assert b'"limit":7' in connection.getresponse().read()
        connection.close()
