"""`open_limiter`, and a limiter of a service inside a web framework."""

from __future__ import annotations

import asyncio
import re
import shutil
import ssl
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from fastapi import Depends, FastAPI

from penstock import ConfigInvalidError, Limiter, RateLimitExceededError, StoreUnavailableError
from penstock.client import LeasedLimiter, ServiceLimiter, open_limiter
from penstock.integrations import Rule
from penstock.integrations.asgi import RateLimitMiddleware
from penstock.integrations.fastapi import RateLimit, install
from tests.client.serving import TOKEN, TRANSPORTS, RunningService, still
from tests.integrations.serving import serving
from tests.servers.process import REPO
from tests.service.http.test_serve import Guarded, make_certificates
from tests.stores.redis.live import PATIENT_MS, new_key, url_of


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    with still() as running:
        yield running


@contextmanager
def visiting(app: Any) -> Iterator[httpx.Client]:
    """A client of an ASGI app behind a real server of its own."""
    with serving(app) as url, httpx.Client(base_url=url) as client:
        yield client


def app_of(limiter: ServiceLimiter, **options: Any) -> FastAPI:
    """One that closes the limiter in the loop that used it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with limiter:
            yield

    app = FastAPI(lifespan=lifespan, **options)

    @app.get("/")
    async def root() -> dict[str, Any]:
        return {}

    return app


def test_a_url_says_where_limits_are_counted(service: RunningService) -> None:
    with open_limiter("memory://", "2/minute", policy="one", prefix="api") as limiter:
        assert isinstance(limiter, Limiter)
        assert limiter.check("k").remaining == 1
    for transport in TRANSPORTS:
        url = service.url(transport)
        with open_limiter(url, "9/minute", policy="one", token=TOKEN) as limiter:
            assert isinstance(limiter, ServiceLimiter)
            assert limiter.check(f"opened-{transport}").limit == 2


def test_every_kind_of_url_opens_a_limiter(service: RunningService, tmp_path: Path) -> None:
    """Stores in this process, in a file and on a server, and both transports of a service: the same
    options, the same calls, the same answers."""
    urls = [
        "memory://",
        f"sqlite:///{tmp_path}/limits.db",
        f"{url_of('valkey')}?timeout_ms={PATIENT_MS}",
        *[service.url(transport) for transport in TRANSPORTS],
    ]
    options: Any = {"token": TOKEN, "timeout_ms": 10_000, "prefix": "opened", "fail": "error"}
    for url in urls:
        with open_limiter(url, "2/day", policy="one", **options) as limiter:
            name = new_key()
            told = [limiter.check(name) for _ in range(3)]
            assert [(each.allowed, each.limit, each.remaining) for each in told] == [
                (True, 2, 1),
                (True, 2, 0),
                (False, 2, 0),
            ]
            assert not limiter.peek(name).allowed
            with pytest.raises(RateLimitExceededError):
                limiter.acquire(name, timeout=0)


def test_a_batch_is_taken_from_a_service_and_spent_here(service: RunningService) -> None:
    """Over gRPC: most checks ask nobody, and together they are no more than the policy admits."""
    url = service.url("grpc")
    with open_limiter(
        url, "9/minute", policy="handed", batch=100, token=TOKEN, timeout_ms=10_000
    ) as leased:
        assert isinstance(leased, LeasedLimiter)
        assert [leased.check("leased").allowed for _ in range(50)] == [True] * 50
        # Known to the service by the batch: it has no more to give than what is left of it.
        with ServiceLimiter(url, "handed", token=TOKEN, timeout_ms=10_000) as asked:
            assert asked.peek("leased").remaining <= 900
    for wrong, told in (
        ({"url": service.url("http"), "policy": "handed"}, "leased over gRPC"),
        ({"url": "memory://", "rate": "1/second"}, "two_tier"),
        ({"url": url, "policy": "handed", "tls": object()}, "grpcs"),
    ):
        with pytest.raises(ConfigInvalidError, match=told):
            open_limiter(**{"batch": 10, **wrong})  # type: ignore[arg-type]


def test_what_is_missing_is_told() -> None:
    with pytest.raises(ConfigInvalidError, match="policy"):
        open_limiter("http://localhost:8080", "1/second")
    with pytest.raises(ConfigInvalidError, match="rate"):
        open_limiter("memory://", policy="api")
    with pytest.raises(ConfigInvalidError, match="a store that is away raises"):
        open_limiter("memory://", "1/second", policy="api", fail="open")
    with pytest.raises(ConfigInvalidError, match="scheme"):
        open_limiter("ftp://localhost", "1/second")
    with pytest.raises(ConfigInvalidError, match="string"):
        open_limiter(None, "1/second")  # type: ignore[arg-type]


@pytest.mark.parametrize(("url", "module"), [("http://h", "httpx"), ("grpc://h:1", "grpc")])
def test_a_missing_library_is_named_with_its_extra(
    url: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigInvalidError, match="'client'"):
        asyncio.run(ServiceLimiter(url, "p").acheck("k"))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_web_app_is_limited_by_a_service(service: RunningService, transport: str) -> None:
    """With its headers; a request that is not to be charged gets its unit back at the service."""
    limiter = ServiceLimiter(service.url(transport), "one", token=TOKEN, timeout_ms=10_000)
    key = f"app-{transport}"
    limit = RateLimit(
        limiter, name="api", key=lambda request: key, charge_when=lambda r: r.status_code < 400
    )
    app = app_of(limiter, dependencies=[Depends(limit)])
    install(app)

    with visiting(app) as client:
        assert client.get("/nowhere").status_code == 404
        assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]
        denied = client.get("/")
        assert denied.headers["ratelimit-policy"] == '"api";q=2'
        assert int(denied.headers["retry-after"]) > 0
    with limiter:
        assert limiter.peek(key).remaining == 0


def test_a_web_app_checks_where_nothing_has_to_be_given_back(service: RunningService) -> None:
    """And its own fail mode answers for a service that is away, if the limiter leaves it to it."""

    limiter = ServiceLimiter(service.url("http"), "one", token=TOKEN, timeout_ms=10_000)
    rule = Rule(limiter, name="api", key=lambda request: "asgi")
    with visiting(RateLimitMiddleware(app_of(limiter), rule)) as client:
        assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]
    with still() as gone:
        url = gone.url("http")
    away = ServiceLimiter(url, "one", fail="error")
    rule = Rule(away, key=lambda request: "k")
    with visiting(RateLimitMiddleware(app_of(away), rule, fail="closed")) as client:
        assert client.get("/").status_code == 503


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_policy_of_several_limits_is_asked_by_attributes(
    service: RunningService, transport: str
) -> None:
    """Made from the request, by a sync or an async function; the headers tell of each limit."""
    limiter = ServiceLimiter(service.url(transport), "api", token=TOKEN, timeout_ms=10_000)

    async def attributes(request: Any) -> dict[str, str | int] | None:
        user = request.headers.get("x-user")
        if user is None:
            return None
        return {"user": f"{user}-{transport}", "tokens": int(request.headers["x-tokens"])}

    app = RateLimitMiddleware(app_of(limiter), Rule(limiter, name="api", attributes=attributes))
    with visiting(app) as client:

        def get(tokens: int) -> httpx.Response:
            return client.get("/", headers={"x-user": "bob", "x-tokens": str(tokens)})

        first = get(600)
        assert first.headers["ratelimit-policy"] == '"user";q=3, "tokens";q=1000'
        assert '"tokens";r=400' in first.headers["ratelimit"]
        denied = get(600)
        assert denied.status_code == 429
        assert denied.json()["violated-policies"] == ["tokens"]
        assert [get(10).status_code for _ in range(3)] == [200, 200, 429]
        free = client.get("/")
        assert free.status_code == 200
        assert "ratelimit" not in free.headers


def test_a_request_that_is_not_to_be_charged_gets_all_of_its_limits_back(
    service: RunningService,
) -> None:
    limiter = ServiceLimiter(service.url("http"), "api", token=TOKEN, timeout_ms=10_000)
    rule = Rule(
        limiter,
        attributes=lambda request: {"user": "refunded", "tokens": 700},
        charge_when=lambda response: response.status_code < 400,
    )
    with visiting(RateLimitMiddleware(app_of(limiter), rule)) as client:
        assert [client.get("/nowhere").status_code for _ in range(4)] == [404] * 4
        assert [client.get("/").status_code for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("asked_by", ["key", "attributes"])
def test_slots_of_a_policy_are_held_until_a_response_is_over(
    service: RunningService, asked_by: str
) -> None:
    """Only the service knows that it has some: the first request finds out."""
    limiter = ServiceLimiter(service.url("http"), "key", token=TOKEN, timeout_ms=10_000)
    who = f"slots by {asked_by}"
    by: dict[str, Any] = {"key": lambda request: who}
    if asked_by == "attributes":
        by = {"attributes": lambda request: {"key": who}}
    inner = app_of(limiter)

    @inner.get("/left")
    async def left() -> int:
        return (await limiter.apeek({"key": who})).limits["flight"].remaining

    with visiting(RateLimitMiddleware(inner, Rule(limiter, name="api", **by))) as client:
        assert [client.get("/left").json() for _ in range(2)] == [0, 0]
        denied = client.get("/left")
        assert denied.status_code == 429
    with limiter:
        told = limiter.peek({"key": who}).limits
        assert (told["flight"].remaining, told["each"].remaining) == (1, 0)


def test_mistakes_with_attributes_are_told_at_construction() -> None:
    limiter = ServiceLimiter("http://localhost:1", "api")
    for made, told in (
        (lambda: Rule("1/second", attributes=lambda request: {}), "policy of a service"),
        (lambda: Rule(limiter, attributes={"user": "alice"}), "function of the request"),  # type: ignore[arg-type]
        (lambda: Rule(limiter, attributes=dict, key=str), "leave key"),
        (
            lambda: RateLimitMiddleware(
                app_of(limiter), Rule(limiter, attributes=dict), hash_keys="s" * 16
            ),
            "hash those that are identities",
        ),
    ):
        with pytest.raises(ConfigInvalidError, match=told):
            made()


def test_the_python_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """As one program, with a real service in the place of localhost."""
    text = (REPO / "docs" / "client.md").read_text()
    program = "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    policies = """\
version: 1
limiters:
  api: {strategy: fixedWindow, limit: 200, window: 1d, federated: {batch: 100}}
  backend:
    concurrency: {minLimit: 1, maxLimit: 1}
"""
    with RunningService(policies=policies, token=None) as service:
        names: dict[str, Any] = {}
        for transport, said in (
            ("http", "http://localhost:8080"),
            ("grpc", "grpc://localhost:50051"),
        ):
            program = program.replace(said, service.url(transport))
        exec(program, names)
        for name in ("limiter", "backend", "chosen", "leased", "several"):
            names[name].close()
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "go",
        "call",
        "go",
    ]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_a_service_behind_tls_is_asked_by_those_who_trust_it(tmp_path: Path) -> None:
    """Sync and async, over https and grpcs; to the others it is away."""
    make_certificates(tmp_path)
    trusts = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    credentials = grpc.ssl_channel_credentials((tmp_path / "ca.pem").read_bytes())
    flags = ["--tls-cert", str(tmp_path / "server.pem"), "--tls-key", str(tmp_path / "server.key")]
    policies = tmp_path / "policies.yaml"
    policies.write_text(
        "version: 1\nlimiters:\n  default: {strategy: fixedWindow, limit: 9, window: 1d}\n"
    )

    async def awaited(limiter: ServiceLimiter) -> bool:
        async with limiter:
            return (await limiter.acheck("k")).allowed

    with Guarded(trusts, [*flags, "--config", str(policies)], grpc=True) as server:
        https, grpcs = f"https://127.0.0.1:{server.port}", f"grpcs://127.0.0.1:{server.grpc_port}"
        for url, tls in ((https, trusts), (grpcs, credentials)):
            with ServiceLimiter(
                url, "default", tls=tls, timeout_ms=10_000, fail="error"
            ) as limiter:
                assert limiter.check("k").limit == 9
                assert asyncio.run(awaited(limiter))
            with (
                ServiceLimiter(url, "default", fail="error") as stranger,
                pytest.raises(StoreUnavailableError),
            ):
                stranger.check("k")
