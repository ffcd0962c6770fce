"""Who gets in: tokens, TLS, and certificates on both sides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from penstock import ConfigInvalidError
from penstock.service._access import Certificates
from penstock.service._options import TlsFiles
from penstock.wire.proto import rate_limiter_pb2 as pb
from penstock.wire.proto.rate_limiter_pb2_grpc import RateLimiterAsyncStub
from tests.service.grpc.certificates import Pair, authority, signed
from tests.service.grpc.servers import Visit, code_of, run, status, visiting

TOKEN = "correct-horse-battery-staple"
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


def bearing(value: str) -> dict[str, Any]:
    return {"metadata": (("authorization", value),)}


def test_without_the_token_no_call_is_answered() -> None:
    """Not with none, another, a longer or a shorter one, nor another scheme; nothing is spent."""

    async def scenario() -> None:
        async with visiting(server={"token": TOKEN}) as visit:
            code, text = await status(visit.check())
            assert code is UNAUTHENTICATED
            assert "authorization: Bearer" in text
            for wrong in ("", TOKEN, "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Basic {TOKEN}"):
                assert (await status(visit.check(**bearing(wrong))))[0] is UNAUTHENTICATED
            short = bearing(f"Bearer {TOKEN[:-1]}")
            assert (await status(visit.check(**short)))[0] is UNAUTHENTICATED
            good = await visit.check(**bearing(f"Bearer {TOKEN}"))
            assert good.remaining == 2
            assert (await visit.check(**bearing(f"bearer {TOKEN}"))).remaining == 1

    run(scenario())


def test_a_stranger_is_turned_away_before_the_request_is_read() -> None:
    """Bytes that are no message, or none at all, make no difference."""

    async def scenario() -> None:
        async with visiting(server={"token": TOKEN}) as visit:
            assert await code_of(visit.raw("Check")(b"\xff")) is UNAUTHENTICATED
            stream = visit.channel.stream_unary("/throttlekit.v1.RateLimiter/Check")
            assert await code_of(stream()) is UNAUTHENTICATED

    run(scenario())


def test_health_is_for_everyone_and_reflection_is_not() -> None:
    """Probes carry no token; what is served here is nobody's business."""

    async def scenario() -> None:
        async with visiting(server={"token": TOKEN}) as visit:
            health = visit.channel.unary_unary("/grpc.health.v1.Health/Check")
            request = health_pb2.HealthCheckRequest().SerializeToString()
            assert await code_of(health(request)) is grpc.StatusCode.OK
            stream = visit.channel.stream_stream(
                "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
            )(iter([b""]))
            assert await code_of(stream.read()) is UNAUTHENTICATED

    run(scenario())


def test_an_empty_token_is_refused_at_the_start() -> None:
    """It would look like protection."""

    async def scenario() -> None:
        async with visiting(server={"token": " "}):
            raise AssertionError("it opened")

    with pytest.raises(ConfigInvalidError, match="empty"):
        run(scenario())


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    folder: Path = tmp_path_factory.mktemp("certificates")
    ca, other = authority(folder, "ca"), authority(folder, "other")
    return {
        "ca": ca,
        "server": signed(folder, "server", ca),
        "client": signed(folder, "client", ca),
        "stranger": signed(folder, "stranger", other),
    }


async def asked_over_tls(visit: Visit, ca: Pair, own: Pair | None = None) -> grpc.StatusCode:
    """What a check ends with for a client that trusts `ca` and shows `own`."""
    key, cert = (None, None) if own is None else own.read()
    trust = grpc.ssl_channel_credentials(ca.read()[1], key, cert)
    target = f"localhost:{visit.server.port}"
    async with grpc.aio.secure_channel(target, trust) as channel:
        request = pb.CheckRequest(policy="api", key="a")
        return await code_of(RateLimiterAsyncStub(channel).Check(request, timeout=5))


def test_over_tls_only_those_who_speak_it_are_answered(certificates: dict[str, Pair]) -> None:
    """And only if they trust the server's authority."""

    async def scenario() -> None:
        server, ca = certificates["server"], certificates["ca"]
        tls = Certificates(TlsFiles(server.cert, server.key))
        async with visiting(server={"tls": tls}) as visit:
            assert await asked_over_tls(visit, ca) is grpc.StatusCode.OK
            stranger = certificates["stranger"]
            assert await asked_over_tls(visit, stranger) is grpc.StatusCode.UNAVAILABLE
            assert await code_of(visit.check()) is grpc.StatusCode.UNAVAILABLE

    run(scenario())


def test_with_an_authority_for_clients_only_its_clients_are_answered(
    certificates: dict[str, Pair],
) -> None:
    """Mutual TLS: no certificate, or another authority's, is no way in."""

    async def scenario() -> None:
        server, ca = certificates["server"], certificates["ca"]
        tls = Certificates(TlsFiles(server.cert, server.key, ca.cert))
        async with visiting(server={"tls": tls}) as visit:
            good = await asked_over_tls(visit, ca, certificates["client"])
            assert good is grpc.StatusCode.OK
            assert await asked_over_tls(visit, ca) is grpc.StatusCode.UNAVAILABLE
            stranger = await asked_over_tls(visit, ca, certificates["stranger"])
            assert stranger is grpc.StatusCode.UNAVAILABLE

    run(scenario())


@pytest.mark.parametrize("broken", ["cert", "key", "ca", "pair"])
def test_certificates_that_cannot_work_are_refused_at_the_start(
    certificates: dict[str, Pair], tmp_path: Path, broken: str
) -> None:
    """Not at the first handshake, when nobody reads the log."""
    server, ca = certificates["server"], certificates["ca"]
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    files = {"cert": server.cert, "key": server.key, "ca": ca.cert}
    files |= {"key": ca.key} if broken == "pair" else {broken: str(junk)}

    async def scenario() -> None:
        async with visiting(server={"tls": Certificates(TlsFiles(**files))}):
            raise AssertionError("it opened")

    with pytest.raises(ConfigInvalidError, match="PEM"):
        run(scenario())
