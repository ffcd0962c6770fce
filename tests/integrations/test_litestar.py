"""The plugin for Litestar, in a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from litestar import Controller, Litestar, MediaType, Request, Router, get, post
from litestar import websocket as websocket_route
from litestar.connection import WebSocket
from litestar.exceptions import PermissionDeniedException
from litestar.response import Response, Stream
from litestar.response.base import ASGIResponse
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from penstock import ConfigInvalidError, Limit, slots
from penstock.integrations import Rule, by_header
from penstock.integrations.asgi import RateLimitMiddleware
from penstock.integrations.litestar import RateLimitPlugin
from tests.integrations.serving import FIVE, ONE, TWO, client_of, left, members
from tests.servers import Valkey, require


@get("/", media_type=MediaType.TEXT)
async def home() -> str:
    return "home"


@get("/seen")
async def seen(request: Request[Any, Any, Any]) -> dict[str, int]:
    return {"remaining": request.state.rate_limit.remaining}


@get("/stream")
async def stream() -> Stream:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"one "
        yield b"two"

    return Stream(chunks())


@get("/refused")
async def refused() -> None:
    raise PermissionDeniedException


@get("/failing")
async def failing() -> None:
    raise RuntimeError("nobody handles this")


@get("/users/{number:int}", media_type=MediaType.TEXT)
async def user(request: Request[Any, Any, Any]) -> str:
    return str(request.path_params["number"])


@get("/search", opt={"rate_limit": Rule(TWO, name="search")}, media_type=MediaType.TEXT)
async def search() -> str:
    return "found"


@websocket_route("/echo")
async def echo(socket: WebSocket[Any, Any, Any]) -> None:
    await socket.accept()
    await socket.send_text(await socket.receive_text())
    await socket.close()


class Shop(Controller):
    path = "/shop"
    opt = {"rate_limit": [Rule(ONE, name="shop")]}  # noqa: RUF012 - as Litestar wants it

    @get("/items")
    async def items(self) -> list[int]:
        return [1]

    @get("/prices")
    async def prices(self) -> list[int]:
        return [2]


class Market(Controller):
    path = "/market"
    opt = {"rate_limit": TWO}  # noqa: RUF012 - as Litestar wants it

    @get("/stalls")
    async def stalls(self) -> list[int]:
        return [1]

    @get("/streets", opt={"rate_limit": ONE})
    async def streets(self) -> list[int]:
        return [2]


def limited(*limits: Any, **options: Any) -> Litestar:
    handlers = [home, seen, stream, refused, failing, user, search, echo]
    plugin = RateLimitPlugin(*limits, **options)
    router = Router("/v1", route_handlers=[Shop, Market], opt={"rate_limit": FIVE})
    return Litestar([*handlers, router], plugins=[plugin], openapi_config=None, logging_config=None)


def test_the_common_case_is_one_plugin() -> None:
    """429 with problem+json and Retry-After."""
    with client_of(limited(TWO)) as client:
        answers = [client.get("/") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[2].headers["content-type"] == "application/problem+json"
    assert int(answers[2].headers["retry-after"]) > 1


@pytest.mark.parametrize("path", ["/", "/stream", "/refused", "/failing"])
def test_headers_are_on_every_answer_once(path: str) -> None:
    """On streams, and on exceptions, which Litestar answers outside of the middleware."""
    with client_of(limited(FIVE)) as client:
        answer = client.get(path)
    assert answer.headers.get_list("ratelimit-policy") == ['"app";q=5;w=86400']
    assert left(answer.headers["ratelimit"], "app") == 4


def test_limits_of_app_and_handler_are_one_decision() -> None:
    """Of a handler or a controller, by `opt`; the verdict is in the request's state."""
    with client_of(limited(Rule(FIVE, name="all"))) as client:
        assert [client.get("/search").status_code for _ in range(4)] == [200, 200, 429, 429]
        assert members(client.get("/search").headers["ratelimit"]) == ["search", "all"]
        assert client.get("/seen").json() == {"remaining": 2}
        asked = [client.get(f"/v1/shop/{name}").status_code for name in ("items", "prices")]
        assert asked == [200, 429]


def test_limits_of_router_controller_and_handler_are_one_decision() -> None:
    """Each counts for what it was given to, and none replaces another."""
    with client_of(limited()) as client:
        answers = [client.get(f"/v1/market/{path}") for path in ("streets", "streets", "stalls")]
        full = client.get("/v1/market/stalls")
    assert [answer.status_code for answer in answers] == [200, 429, 200]
    assert full.status_code == 429
    handler = f"{__name__}.Market.streets"
    assert members(answers[0].headers["ratelimit"]) == [handler, "v1", "v1-market"]
    assert left(answers[2].headers["ratelimit"], "v1-market") == 0
    assert left(answers[2].headers["ratelimit"], "v1") == 3


def test_routes_count_by_their_template_and_outcomes_decide() -> None:
    """As in every integration."""
    with client_of(limited(Rule(TWO, per_route=True))) as client:
        codes = [client.get(path).status_code for path in ("/users/1", "/users/2", "/users/3", "/")]
        assert codes == [200, 200, 429, 200]
    failed = Rule(TWO, charge_when=lambda response: response.status_code >= 400)
    with client_of(limited(failed)) as client:
        asked = ["/", "/", "/", "/refused", "/failing", "/"]
        assert [client.get(path).status_code for path in asked] == [200] * 3 + [403, 500, 429]
    with client_of(limited(Limit(slots(1, ttl_ms=3_600_000)))) as client:
        assert [client.get("/stream").status_code for _ in range(3)] == [200] * 3


def test_an_app_may_answer_refusals_itself() -> None:
    """By an ASGI response."""

    async def page(request: Any, verdict: Any) -> ASGIResponse:
        assert request.headers["x-user"] == "alice"
        return Response("slow down", status_code=429).to_asgi_response(None, request)

    with client_of(limited(ONE, key=by_header("x-user"), on_denied=page)) as client:
        answers = [client.get("/", headers={"x-user": "alice"}) for _ in range(2)]
    assert answers[1].status_code == 429
    assert "slow down" in answers[1].text
    assert "retry-after" in answers[1].headers


@pytest.mark.parametrize("place", ["plugin", "around"])
def test_an_answer_from_the_cache_has_headers_of_its_own(place: str) -> None:
    """Litestar keeps the messages of an answer, headers included."""

    @get("/kept", cache=True, media_type=MediaType.TEXT)
    async def kept() -> str:
        return "kept"

    if place == "plugin":
        app: Any = Litestar([kept], plugins=[RateLimitPlugin(FIVE)])
    else:
        app = RateLimitMiddleware(Litestar([kept]), FIVE)
    with client_of(app) as client:
        answers = [client.get("/kept") for _ in range(3)]
    assert [left(answer.headers["ratelimit"], "app") for answer in answers] == [4, 3, 2]


def test_a_key_may_be_read_from_the_body() -> None:
    """And the handler reads it again."""

    async def tenant(request: Any) -> str:
        return str((await request.json())["tenant"])

    @post("/orders", opt={"rate_limit": Rule(ONE, key=tenant)}, status_code=200)
    async def order(request: Request[Any, Any, Any]) -> Any:
        return await request.json()

    with client_of(Litestar([order], plugins=[RateLimitPlugin()])) as client:
        answers = [client.post("/orders", json={"tenant": name}) for name in ("a", "a", "b")]
    assert [answer.status_code for answer in answers] == [200, 429, 200]
    assert answers[2].json() == {"tenant": "b"}


def test_a_mistake_in_an_opt_is_told_when_the_app_starts() -> None:
    """And not to the first client."""

    @get("/", opt={"rate_limit": "often"})
    async def wrong() -> None: ...

    app = Litestar([wrong], plugins=[RateLimitPlugin()])

    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope: Any = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}}
    with pytest.raises(Exception, match=r".*"):
        asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]
    assert sent[0]["type"] == "lifespan.startup.failed"
    assert "not 'often'" in sent[0]["message"]


def test_a_websocket_is_refused_with_429() -> None:
    """And headers are on the one that is accepted."""
    with client_of(limited(ONE)) as client:
        url = str(client.base_url.copy_with(scheme="ws")).rstrip("/") + "/echo"
        with connect(url) as there:
            assert there.response is not None
            assert left(there.response.headers["ratelimit"], "app") == 0
            there.send("hello")
            assert there.recv() == "hello"
        with pytest.raises(InvalidStatus) as told:
            connect(url).__enter__()
    assert told.value.response.status_code == 429


def test_redis_down_is_not_a_500() -> None:
    """Open by default, 503 where the app says closed."""
    require("valkey")
    with Valkey() as server:
        url = f"{server.url}?timeout_ms=200"
        server.kill()
        for fail, status in (("open", 200), ("closed", 503)):
            with client_of(limited(ONE, store=url, fail=fail)) as client:
                assert client.get("/").status_code == status


def test_mistakes_are_told_at_construction() -> None:
    """Of limits and of options."""
    with pytest.raises(ConfigInvalidError, match="did you mean '5/minute'"):
        RateLimitPlugin("5 per minute")
    with pytest.raises(ConfigInvalidError, match="there is no option 'stores'"):
        RateLimitPlugin(ONE, stores="redis://localhost")  # type: ignore[call-arg]
