"""A view sees that a fail mode decided for its limits, in the same way in every framework."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import pytest

from tests.integrations import django_project  # noqa: F401 - it configures Django

from django.http import JsonResponse as DjangoResponse  # isort: skip
from django.test import AsyncClient, Client, override_settings  # isort: skip
from django.urls import path  # isort: skip
from rest_framework.response import Response as RestResponse  # isort: skip
from rest_framework.views import APIView  # isort: skip

from aiohttp import web
from fastapi import Depends, FastAPI
from flask import Flask, g
from litestar import Litestar
from litestar import Request as LitestarRequest
from litestar import get as litestar_get
from quart import Quart
from quart import g as quart_g
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from penstock import Verdict, rate_limit
from penstock.integrations import Rule
from penstock.integrations.aiohttp import RATE_LIMIT, setup
from penstock.integrations.asgi import RateLimitMiddleware
from penstock.integrations.drf import LimitThrottle
from penstock.integrations.fastapi import RateLimit, install
from penstock.integrations.flask import RateLimits
from penstock.integrations.litestar import RateLimitPlugin
from penstock.integrations.quart import AsyncRateLimits
from tests.integrations import test_aiohttp
from tests.integrations.serving import FIVE, TWO, client_of
from tests.servers import RedisServer, Valkey, require

Seen = dict[str, Any]
Between = Callable[[], Any]


def seen(verdict: Any) -> Seen:
    """What a view reads."""
    limits = {name: decision.degraded for name, decision in verdict.limits.items()}
    return {"degraded": verdict.degraded, "allowed": verdict.allowed, "limits": limits}


def _asgi(app: Any, between: Between) -> list[Seen]:
    with client_of(app) as client:
        first = client.get("/").json()
        between()
        return [first, client.get("/").json()]


def in_flask(rules: list[Rule], between: Between, **options: Any) -> list[Seen]:
    app = Flask(__name__)
    RateLimits(app, *rules, **options)
    app.add_url_rule("/", "home", lambda: seen(g.rate_limit))
    first = app.test_client().get("/").json
    between()
    return [first, app.test_client().get("/").json]


def in_quart(rules: list[Rule], between: Between, **options: Any) -> list[Seen]:
    app = Quart(__name__)
    AsyncRateLimits(app, *rules, **options)

    @app.route("/")
    async def home() -> Seen:
        return seen(quart_g.rate_limit)

    return _asgi(app, between)


def in_asgi(rules: list[Rule], between: Between, **options: Any) -> list[Seen]:
    async def home(request: Any) -> JSONResponse:
        return JSONResponse(seen(request.state.rate_limit))

    return _asgi(
        RateLimitMiddleware(Starlette(routes=[Route("/", home)]), *rules, **options), between
    )


def in_fastapi(rules: list[Rule], between: Between, **options: Any) -> list[Seen]:
    app = FastAPI()
    install(app, **options)
    limits = [
        RateLimit(rule.ready or rule.limit.strategy, name=rule.name)  # type: ignore[union-attr]
        for rule in rules
    ]

    def home(verdict: Any) -> Seen:
        return seen(verdict)

    home.__annotations__["verdict"] = Annotated[Verdict, Depends(limits[0])]
    app.get("/", dependencies=[Depends(each) for each in limits[1:]])(home)
    return _asgi(app, between)


def in_litestar(rules: list[Rule], between: Between, **options: Any) -> list[Seen]:
    @litestar_get("/")
    async def home(request: LitestarRequest[Any, Any, Any]) -> dict[str, Any]:
        return seen(request.state.rate_limit)

    plugin = RateLimitPlugin(*rules, **options)
    return _asgi(Litestar([home], plugins=[plugin], openapi_config=None), between)


def in_aiohttp(rules: list[Rule], between: Between, **options: Any) -> list[Seen]:
    async def home(request: web.Request) -> web.Response:
        return web.json_response(seen(request[RATE_LIMIT]))

    async def ask() -> list[Seen]:
        app = web.Application()
        setup(app, *rules, **options)
        app.router.add_get("/", home)
        async with test_aiohttp.client_of(app) as client:
            first = json.loads((await client.get("/")).text_read)
            between()
            return [first, json.loads((await client.get("/")).text_read)]

    return asyncio.run(ask())


def django_view(request: Any) -> Any:
    return DjangoResponse(seen(request.rate_limit))


class Shared(LimitThrottle):
    scope = "shared"
    rate = FIVE


class Throttled(APIView):
    throttle_classes = (Shared,)

    def perform_authentication(self, request: Any) -> None:
        """There are no users."""

    def get(self, request: Any) -> RestResponse:
        return RestResponse(seen(request.rate_limit))


urlpatterns = [path("", django_view), path("throttled/", Throttled.as_view())]


def _settings(rules: list[Rule], options: dict[str, Any]) -> Any:
    given = {name.upper(): value for name, value in options.items()}
    return override_settings(ROOT_URLCONF=__name__, PENSTOCK={"LIMITS": rules, **given})


def in_django(rules: list[Rule], between: Between, **options: Any) -> list[Seen]:
    with _settings(rules, options):
        first = Client().get("/").json()
        between()
        return [first, Client().get("/").json()]


def in_async_django(rules: list[Rule], between: Between, **options: Any) -> list[Seen]:
    async def ask() -> list[Seen]:
        first = (await AsyncClient().get("/")).json()
        between()
        return [first, (await AsyncClient().get("/")).json()]

    with _settings(rules, options):
        return asyncio.run(ask())


@pytest.fixture
def server() -> Iterator[RedisServer]:
    require("valkey")
    with Valkey() as started:
        yield started


every_framework = pytest.mark.parametrize(
    "ask",
    [
        in_flask,
        in_quart,
        in_asgi,
        in_fastapi,
        in_litestar,
        in_aiohttp,
        in_django,
        in_async_django,
    ],
)


@every_framework
def test_a_view_sees_that_its_limits_were_decided_by_the_fail_mode(
    ask: Any, server: RedisServer
) -> None:
    rules = [Rule(FIVE, name="shared")]
    first, second = ask(rules, server.kill, store=f"{server.url}?timeout_ms=500")
    assert first == {"degraded": None, "allowed": True, "limits": {"shared": None}}
    assert second == {"degraded": "open", "allowed": True, "limits": {"shared": "open"}}


@every_framework
def test_a_view_sees_which_of_its_limits_were_decided_by_the_fail_mode(
    ask: Any, server: RedisServer
) -> None:
    """Those on a store that answers are decided by that."""
    rules = [Rule(FIVE, name="shared"), Rule(rate_limit(TWO), name="ready")]
    first, second = ask(rules, server.kill, store=f"{server.url}?timeout_ms=500")
    assert first["limits"] == {"shared": None, "ready": None}
    assert second["limits"] == {"shared": "open", "ready": None}
    assert (first["degraded"], second["degraded"]) == (None, "open")


def test_a_throttled_view_sees_it_too(server: RedisServer) -> None:
    with _settings([], {"store": f"{server.url}?timeout_ms=500"}):
        first = Client().get("/throttled/").json()
        server.kill()
        second = Client().get("/throttled/").json()
    assert first["limits"] == {"shared": None}
    assert second == {"degraded": "open", "allowed": True, "limits": {"shared": "open"}}
