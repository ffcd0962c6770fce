"""Limits on aiohttp's server, served by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import pytest
from aiohttp import ClientSession, WSServerHandshakeError, web

from penstock import ConfigInvalidError, Limit, slots
from penstock.integrations import Rule
from penstock.integrations.aiohttp import RATE_LIMIT, rate_limited, setup
from tests.integrations.serving import FIVE, ONE, TWO, left, members
from tests.servers import Valkey, require


async def home(request: web.Request) -> web.Response:
    return web.Response(text="home")


async def seen(request: web.Request) -> web.Response:
    return web.json_response({"remaining": request[RATE_LIMIT].remaining})


async def stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"one ")
    await response.write(b"two")
    return response


async def refused(request: web.Request) -> web.Response:
    raise web.HTTPForbidden


async def failing(request: web.Request) -> web.Response:
    raise RuntimeError("nobody handles this")


@rate_limited(TWO, name="search")
async def search(request: web.Request) -> web.Response:
    return web.Response(text="found")


@rate_limited(ONE, name="things")
class Things(web.View):
    async def get(self) -> web.Response:
        return web.Response(text="things")


async def echo(request: web.Request) -> web.WebSocketResponse:
    there = web.WebSocketResponse()
    await there.prepare(request)
    await there.send_str(await there.receive_str())
    await there.close()
    return there


def limited(*limits: Any, **options: Any) -> web.Application:
    app = web.Application()
    setup(app, *limits, **options)
    inner = web.Application()
    inner.router.add_get("/{number}", home)
    app.add_subapp("/inner", inner)
    app.router.add_get("/", home)
    app.router.add_post("/", home)
    for name, handler in (("seen", seen), ("stream", stream), ("refused", refused)):
        app.router.add_get(f"/{name}", handler)
    app.router.add_get("/failing", failing)
    app.router.add_get("/search", search)
    app.router.add_get("/users/{number}", home)
    app.router.add_get("/echo", echo)
    app.router.add_view("/things", Things)
    return app


class Client:
    def __init__(self, session: ClientSession) -> None:
        self.session = session

    async def get(self, path: str, **named: Any) -> Any:
        async with self.session.get(path, **named) as answer:
            answer.text_read = await answer.text()  # type: ignore[attr-defined]
            return answer

    async def codes(self, *paths: str, **named: Any) -> list[int]:
        return [(await self.get(path, **named)).status for path in paths]


@asynccontextmanager
async def client_of(app: web.Application) -> AsyncIterator[Client]:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as session:
            yield Client(session)
    finally:
        await runner.cleanup()


def test_the_common_case_is_one_line() -> None:
    """429 with problem+json and Retry-After."""

    async def ask() -> None:
        async with client_of(limited(TWO)) as client:
            assert await client.codes("/", "/") == [200, 200]
            answer = await client.get("/")
        assert answer.status == 429
        assert answer.headers["content-type"] == "application/problem+json"
        assert "quota-exceeded" in answer.text_read
        assert int(answer.headers["retry-after"]) > 1

    asyncio.run(ask())


@pytest.mark.parametrize("path", ["/", "/stream", "/refused", "/failing", "/none", "/inner/1"])
def test_headers_are_on_every_answer_once(path: str) -> None:
    """On streams, exceptions, errors that nobody handled, 404 and apps inside."""

    async def ask() -> None:
        async with client_of(limited(FIVE)) as client:
            answer = await client.get(path)
        assert answer.headers.getall("ratelimit-policy") == ['"app";q=5;w=86400']
        assert left(answer.headers["ratelimit"], "app") == 4

    asyncio.run(ask())


def test_limits_of_app_and_handler_are_one_decision() -> None:
    """Of a function or a class; the verdict is on the request."""

    async def ask() -> None:
        async with client_of(limited(Rule(FIVE, name="all"))) as client:
            assert await client.codes(*["/search"] * 4) == [200, 200, 429, 429]
            denied = await client.get("/search")
            assert members(denied.headers["ratelimit"]) == ["search", "all"]
            assert '"remaining": 2' in (await client.get("/seen")).text_read
            assert await client.codes("/things", "/things") == [200, 429]

    asyncio.run(ask())


def test_a_handler_is_decided_once_whatever_apps_are_around_it() -> None:
    """By the outermost that is limited; the others add what is for them as a whole."""

    async def ask() -> None:
        inner = limited(Rule(FIVE, name="inner"))
        app = web.Application()
        setup(app, Rule(FIVE, name="outer"))
        app.add_subapp("/in", inner)
        async with client_of(app) as client:
            answers = [await client.get("/in/search") for _ in range(3)]
            others = await client.get("/in/")
        assert [answer.status for answer in answers] == [200, 200, 429]
        assert members(answers[0].headers["ratelimit"]) == ["inner", "search", "outer"]
        assert [left(others.headers["ratelimit"], name) for name in ("inner", "outer")] == [2, 2]

    asyncio.run(ask())


class Orders(web.View):
    @rate_limited(TWO, slots(1, ttl_ms=3_600_000))
    async def get(self) -> web.Response:
        return web.Response(text="orders")

    @rate_limited(ONE, charge_when=lambda response: response.status == 402)
    async def post(self) -> web.Response:
        raise web.HTTPPaymentRequired


def unmarked(handler: Any) -> Any:
    """A decorator that does not tell what it wraps."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return cast("web.StreamResponse", await handler(request))

    return handle


async def greeting(word: str, request: web.Request) -> web.Response:
    return web.Response(text=word)


def test_limits_that_the_middleware_cannot_see_are_decided_where_they_are() -> None:
    """Of a method of a class of views, or below a decorator; what they deny is charged nowhere."""

    async def ask() -> None:
        app = web.Application()
        setup(app, FIVE)
        app.router.add_view("/orders", Orders)
        app.router.add_get("/hidden", unmarked(rate_limited(ONE, name="hidden")(home)))
        app.router.add_get("/hello", rate_limited(ONE)(partial(greeting, "hello")))
        async with client_of(app) as client:
            assert await client.codes("/orders", "/orders", "/orders") == [200, 200, 429]
            posted = [await client.session.post("/orders") for _ in range(2)]
            assert [answer.status for answer in posted] == [402, 429]
            told = posted[0].headers["ratelimit"]
            assert members(told) == [f"{__name__}.Orders.post", "app"]
            assert left(told, "app") == 2
            assert await client.codes("/hidden", "/hidden") == [200, 429]
            answer = await client.get("/hello")
            assert f"{__name__}.greeting" in members(answer.headers["ratelimit"])

    asyncio.run(ask())


def test_a_limited_handler_of_an_app_that_is_not_limited_is_told() -> None:
    """It would not be limited at all."""
    errors: list[Exception] = []

    @web.middleware
    async def noting(request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            return cast("web.StreamResponse", await handler(request))
        except Exception as error:
            errors.append(error)
            raise

    async def ask() -> None:
        app = web.Application(middlewares=[noting])
        app.router.add_get("/search", search)
        async with client_of(app) as client:
            assert await client.codes("/search") == [500]

    asyncio.run(ask())
    assert isinstance(errors[0], ConfigInvalidError)
    assert "call setup(app)" in str(errors[0])


def test_routes_outcomes_slots_and_async_keys() -> None:
    """As in every integration."""

    async def key(request: web.Request) -> str:
        await asyncio.sleep(0)
        return request.headers.get("x-user", "nobody")

    async def ask() -> None:
        async with client_of(limited(Rule(TWO, per_route=True, key=key))) as client:
            asked = ["/users/1", "/users/2", "/users/3", "/inner/1", "/"]
            assert await client.codes(*asked) == [200, 200, 429, 200, 200]
            assert await client.codes("/users/1", headers={"x-user": "a"}) == [200]
        failed = Rule(TWO, charge_when=lambda response: response.status >= 400)
        async with client_of(limited(failed)) as client:
            asked = ["/", "/", "/", "/refused", "/failing", "/"]
            assert await client.codes(*asked) == [200] * 3 + [403, 500, 429]
        async with client_of(limited(Limit(slots(1, ttl_ms=3_600_000)))) as client:
            assert await client.codes("/stream", "/", "/refused", "/") == [200, 200, 403, 200]

    asyncio.run(ask())


def test_an_app_may_answer_refusals_itself_and_a_proxy_is_not_believed() -> None:
    """Two lines of X-Forwarded-For are one list, of which the last entry is the proxy's."""

    async def page(request: web.Request, verdict: Any) -> web.Response:
        return web.Response(text="slow down", status=429)

    async def ask() -> None:
        app = limited(ONE, on_denied=page, trusted_proxies=["127.0.0.1"])
        async with client_of(app) as client:
            for spoofed, expected in (("1.1.1.1", 200), ("1.1.1.2", 429)):
                lines = [("x-forwarded-for", spoofed), ("x-forwarded-for", "198.51.100.7")]
                answer = await client.get("/", headers=lines)
                assert answer.status == expected
        assert answer.text_read == "slow down"
        assert "retry-after" in answer.headers

    asyncio.run(ask())


def test_a_websocket_is_refused_with_429() -> None:
    """And headers are on the one that is accepted."""

    async def ask() -> None:
        async with client_of(limited(ONE)) as client:
            async with client.session.ws_connect("/echo") as there:
                await there.send_str("hello")
                assert await there.receive_str() == "hello"
            with pytest.raises(WSServerHandshakeError) as told:
                await client.session.ws_connect("/echo")
        assert told.value.status == 429

    asyncio.run(ask())


def test_redis_down_is_not_a_500_and_a_store_is_closed_with_the_app() -> None:
    """Open by default, 503 where the app says closed; limited again when it is there."""
    require("valkey")

    async def ask(url: str, fail: str) -> list[int]:
        async with client_of(limited(ONE, store=url, fail=fail)) as client:
            return await client.codes("/", "/")

    with Valkey() as server:
        assert asyncio.run(ask(f"{server.url}?timeout_ms=20000", "open")) == [200, 429]
        server.kill()
        for fail, status in (("open", 200), ("closed", 503)):
            assert asyncio.run(ask(f"{server.url}?timeout_ms=200", fail)) == [status, status]


def test_mistakes_are_told_at_construction() -> None:
    """Of limits, of options, of what is limited."""
    with pytest.raises(ConfigInvalidError, match="did you mean '5/minute'"):
        setup(web.Application(), "5 per minute")
    with pytest.raises(ConfigInvalidError, match="there is no option 'stores'"):
        setup(web.Application(), ONE, stores="redis://localhost")  # type: ignore[call-arg]
    with pytest.raises(ConfigInvalidError, match="setup takes an aiohttp"):
        setup(ONE, ONE)  # type: ignore[arg-type]
    with pytest.raises(ConfigInvalidError, match="a limit must be given"):
        rate_limited()

    class Handlers:
        async def home(self, request: web.Request) -> web.Response:
            return web.Response()

    with pytest.raises(ConfigInvalidError, match=r"above the definition of .*Handlers\.home"):
        rate_limited(ONE)(Handlers().home)
