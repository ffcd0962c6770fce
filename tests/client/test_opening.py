"""`open_limiter`, and a limiter of a service inside a web framework."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI

from penstock import ConfigInvalidError, Limiter
from penstock.client import ServiceLimiter, open_limiter
from penstock.integrations import Rule
from penstock.integrations.asgi import RateLimitMiddleware
from penstock.integrations.fastapi import RateLimit, install
from tests.client.serving import TOKEN, TRANSPORTS, RunningService, still
from tests.integrations.serving import serving


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


def test_what_is_missing_is_told() -> None:
    with pytest.raises(ConfigInvalidError, match="policy"):
        open_limiter("http://localhost:8080", "1/second")
    with pytest.raises(ConfigInvalidError, match="rate"):
        open_limiter("memory://", policy="api")
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
