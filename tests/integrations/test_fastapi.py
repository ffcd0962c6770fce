"""Limits as dependencies of FastAPI apps, routers and routes, in a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, WebSocket
from pydantic import BaseModel
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from penstock import ConfigInvalidError
from penstock.integrations import Rule, by_header
from penstock.integrations.asgi import RateLimitMiddleware
from penstock.integrations.fastapi import RateLimit, TooManyRequests, install
from tests.integrations.serving import FIVE, ONE, TWO, client_of, left, members, serving
from tests.servers import Valkey, require


class Item(BaseModel):
    name: str


def limited(limit: str = FIVE, **options: Any) -> FastAPI:
    """An app with one limit, and one route of each kind."""
    app = FastAPI(dependencies=[Depends(RateLimit(limit))])
    install(app, **options)

    @app.get("/model")
    def model() -> Item:
        return Item(name="one")

    @app.get("/response")
    async def response() -> Response:
        return PlainTextResponse("as it is")

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        async def chunks() -> Any:
            yield b"one "
            await asyncio.sleep(0)
            yield b"two"

        return StreamingResponse(chunks())

    @app.get("/exception")
    def exception() -> None:
        raise HTTPException(418, headers={"x-kept": "yes"})

    @app.get("/failing")
    def failing() -> None:
        raise RuntimeError("nobody handles this")

    @app.get("/invalid")
    def invalid(number: int) -> int:
        return number

    return app


def test_the_common_case_takes_three_lines() -> None:
    """No `request` parameter, no decorator, headers and 429 on their own."""
    app = FastAPI(dependencies=[Depends(RateLimit("2/day"))])
    install(app)

    @app.get("/")
    def home() -> dict[str, str]:
        return {"hello": "world"}

    with client_of(app) as client:
        answers = [client.get("/") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].json() == {"hello": "world"}
    assert answers[2].headers["content-type"] == "application/problem+json"
    assert answers[2].json()["violated-policies"] == ["app"]
    assert int(answers[2].headers["retry-after"]) > 1


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/model", 200),
        ("/response", 200),
        ("/stream", 200),
        ("/exception", 418),
        ("/failing", 500),
        ("/invalid", 422),
    ],
)
def test_headers_are_on_a_returned_model_a_response_a_stream_and_an_exception(
    path: str, status: int
) -> None:
    """Once each, and beside those that the view set."""
    with client_of(limited()) as client:
        answer = client.get(path)
    assert answer.status_code == status
    assert answer.headers.get_list("ratelimit-policy") == ['"app";q=5;w=86400']
    assert left(answer.headers["ratelimit"], "app") == 4
    if status == 418:
        assert answer.headers["x-kept"] == "yes"


def test_limits_of_app_router_and_route_are_one_decision() -> None:
    """A request that the route's limit denies is charged to none of them."""
    app = FastAPI(dependencies=[Depends(RateLimit(FIVE, name="app"))])
    router = APIRouter(prefix="/shop", dependencies=[Depends(RateLimit(FIVE, name="shop"))])

    @router.get("/items/{item}", dependencies=[Depends(RateLimit(TWO, name="items"))])
    def items(item: int) -> int:
        return item

    @router.get("/prices")
    def prices() -> int:
        return 1

    app.include_router(router, prefix="/v1")
    install(app)
    with client_of(app) as client:
        codes = [client.get(f"/v1/shop/items/{n}").status_code for n in range(5)]
        assert codes == [200, 200, 429, 429, 429]
        denied = client.get("/v1/shop/items/9")
        assert members(denied.headers["ratelimit"])[0] == "items"
        other = client.get("/v1/shop/prices")
    assert members(other.headers["ratelimit"]) == ["app", "shop"]
    assert left(other.headers["ratelimit"], "app") == 2
    assert left(other.headers["ratelimit"], "shop") == 2


def test_a_limit_counts_for_what_it_was_given_to() -> None:
    """Routes with a limit of their own count apart, and those that share one count together."""
    app = FastAPI()
    install(app)
    both = Depends(RateLimit(TWO))
    for path in ("/a", "/b"):
        app.add_api_route(path, lambda: 1, dependencies=[Depends(RateLimit(ONE))])
    for path in ("/c", "/d"):
        app.add_api_route(path, lambda: 1, dependencies=[both])
    app.add_api_route("/e/{n}", lambda n: n, dependencies=[Depends(RateLimit(ONE))])
    app.add_api_route("/free", lambda: 1)
    with client_of(app) as client:

        def codes(*paths: str) -> list[int]:
            return [client.get(path).status_code for path in paths]

        assert codes("/a", "/b", "/a", "/b") == [200, 200, 429, 429]
        assert codes("/c", "/d", "/c", "/d") == [200, 200, 429, 429]
        assert codes("/e/1", "/e/2") == [200, 429]
        assert "ratelimit" not in client.get("/free").headers


def test_names_in_the_store_are_the_same_in_every_process() -> None:
    """They come from the routes, and not from the order of requests."""

    def app_on(store: str) -> FastAPI:
        app = FastAPI(dependencies=[Depends(RateLimit(FIVE))])
        install(app, store=store, prefix="shop")
        app.add_api_route("/a", lambda: 1, dependencies=[Depends(RateLimit(ONE))])
        app.add_api_route("/b", lambda: 1, dependencies=[Depends(RateLimit(ONE))])
        return app

    async def ask(app: FastAPI, *paths: str) -> list[int]:
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://here") as client,
        ):
            return [(await client.get(path)).status_code for path in paths]

    require("valkey")
    with Valkey() as server:
        url = f"{server.url}?timeout_ms=20000"
        for paths, codes in ((("/a", "/a", "/b"), [200, 429, 200]), (("/b", "/a"), [429, 429])):
            app = app_on(url)
            assert asyncio.run(_then_closed(app, ask(app, *paths))) == codes
        keys: Any = server.call("KEYS", "*")
    assert {str(key).split(":")[1] for key in keys} == {
        "app",
        "GET-a",
        "GET-b",
    }


async def _then_closed(app: Any, asking: Any) -> Any:
    try:
        return await asking
    finally:
        await app.build_middleware_stack.__self__.limits.aclose()


def test_async_keys_costs_and_the_outcome_are_per_limit() -> None:
    """Only failed logins are charged, by a user that a database knows."""

    async def account(request: Request) -> str:
        await asyncio.sleep(0)
        return request.headers["x-user"]

    def failed(response: Any) -> bool:
        return bool(response.status_code == 401)

    app = FastAPI(dependencies=[Depends(RateLimit(FIVE, key=by_header("x-user")))])
    install(app)

    @app.post("/login", dependencies=[Depends(RateLimit(TWO, key=account, charge_when=failed))])
    def login(good: bool) -> bool:
        if not good:
            raise HTTPException(401)
        return True

    with client_of(app) as client:

        def ask(user: str, good: bool) -> int:
            answer = client.post("/login", params={"good": good}, headers={"x-user": user})
            return answer.status_code

        assert [ask("a", good) for good in (True, True, True, False, False)] == [200] * 3 + [
            401
        ] * 2
        assert [ask("b", good) for good in (False, False, True)] == [401, 401, 429]


def test_an_app_may_answer_refusals_itself() -> None:
    """By `on_denied`."""
    with client_of(
        limited(ONE, on_denied=lambda request, verdict: PlainTextResponse(verdict.binding, 429))
    ) as client:
        client.get("/model")
        assert client.get("/model").text == "app"


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_handler_of_the_exception_stays_whenever_it_was_given(place: str) -> None:
    """To the app when it is made, which is before `install`, or later."""

    async def handle(request: Request, error: Any) -> JSONResponse:
        return JSONResponse({"wait": error.verdict.retry_after_ms}, 429)

    app = FastAPI(exception_handlers={TooManyRequests: handle} if place == "before" else None)
    install(app)
    if place == "after":
        app.add_exception_handler(TooManyRequests, handle)
    app.add_api_route("/model", lambda: 1, dependencies=[Depends(RateLimit(ONE))])
    with client_of(app) as client:
        client.get("/model")
        answer = client.get("/model")
    assert answer.json()["wait"] > 1000
    assert "retry-after" in answer.headers


def test_openapi_tells_of_429_where_there_is_a_limit() -> None:
    """And nowhere else."""
    app = FastAPI()
    app.add_api_route("/free", lambda: 1)
    router = APIRouter(prefix="/in", dependencies=[Depends(RateLimit(ONE))])
    for method in ("GET", "POST"):
        router.add_api_route("/{n}", lambda n: n, methods=[method])
    app.include_router(router)
    install(app)
    paths = app.openapi()["paths"]
    assert "429" not in paths["/free"]["get"]["responses"]
    for method in ("get", "post"):
        told = paths["/in/{n}"][method]["responses"]["429"]
        assert "application/problem+json" in told["content"]
        assert "Retry-After" in told["headers"]
    assert app.openapi() == app.openapi()


@pytest.mark.parametrize("is_async", [True, False])
def test_a_key_may_be_read_from_the_body_of_every_request(is_async: bool) -> None:
    """By an async function, or by a plain one that returns something to await."""

    async def name_in_body(request: Any) -> str:
        return str((await request.json())["name"])

    key = name_in_body if is_async else lambda request: name_in_body(request)
    app = FastAPI(dependencies=[Depends(RateLimit(TWO, key=key))])
    install(app)

    @app.post("/")
    def create(item: Item) -> Item:
        return item

    with client_of(app) as client:
        answers = [client.post("/", json={"name": name}) for name in ("a", "b") * 3]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 200, 429, 429]
    assert answers[3].json() == {"name": "b"}


def test_a_body_is_not_read_for_a_request_that_is_denied() -> None:
    """The limit comes first, so what is wrong with the body is not even looked at, and nobody can
    ask as often as they like by sending nonsense."""
    app = FastAPI(dependencies=[Depends(RateLimit(TWO))])
    install(app)

    @app.post("/")
    def create(item: Item) -> Item:
        return item

    with client_of(app) as client:
        told = {"content-type": "application/json"}
        codes = [client.post("/", content=b"{", headers=told).status_code for _ in range(3)]
    assert codes == [422, 422, 429]


@pytest.mark.parametrize("where", ["memory", "valkey"])
def test_what_a_middleware_charged_comes_back_when_a_route_denies(where: str) -> None:
    """They are two decisions, and still a denied request is charged nowhere."""
    with ExitStack() as stack:
        store = None
        if where == "valkey":
            require("valkey")
            store = stack.enter_context(Valkey()).url
        app = FastAPI()
        app.add_api_route("/", lambda: 1, dependencies=[Depends(RateLimit(ONE, name="route"))])
        app.add_api_route("/free", lambda: 1)
        install(app, store=store)
        app.add_middleware(RateLimitMiddleware, Rule(FIVE, name="outer"), store=store)
        with serving(app) as url, httpx.Client(base_url=url) as client:
            codes = [client.get("/").status_code for _ in range(6)]
            assert codes == [200] + [429] * 5
            answer = client.get("/free")
        assert left(answer.headers["ratelimit"], "outer") == 3


def test_a_mounted_app_is_limited_with_the_rest() -> None:
    """Installed once, outside."""
    inner = FastAPI(dependencies=[Depends(RateLimit(ONE, name="inner"))])
    inner.add_api_route("/{n}", lambda n: n)
    app = FastAPI()
    install(app)
    app.mount("/in", inner)
    with client_of(app) as client:
        answers = [client.get(f"/in/{n}") for n in range(2)]
        assert "429" in client.get("/in/openapi.json").json()["paths"]["/{n}"]["get"]["responses"]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert answers[1].json()["violated-policies"] == ["inner"]


@pytest.mark.parametrize("by_middleware", [True, False])
def test_parameters_of_mounts_and_included_routers_are_part_of_the_template(
    by_middleware: bool,
) -> None:
    """Whether a dependency counts by route, or a middleware around the app."""
    router = APIRouter(prefix="/{team}")
    limits = [] if by_middleware else [Depends(RateLimit(TWO, per_route=True))]
    router.add_api_route("/items/{n}", lambda n: n, dependencies=limits)
    router.add_api_route("/others/{n}", lambda n: n, dependencies=limits)
    around = APIRouter()
    around.include_router(router, prefix="/teams")
    inner, app = FastAPI(), FastAPI()
    inner.include_router(around)
    app.mount("/{tenant}", inner)
    install(app)
    served = RateLimitMiddleware(app, Rule(TWO, per_route=True)) if by_middleware else app
    with client_of(served) as client:
        codes = [client.get(f"/{n}/teams/{n}/items/{n}").status_code for n in range(3)]
        assert client.get("/0/teams/0/others/0").status_code == 200
    assert codes == [200, 200, 429]


def test_a_mounted_app_refuses_as_the_outer_one_says() -> None:
    """Also inside of another one; an app that is prepared itself has its own way."""

    def app_of(*mounted: tuple[str, Any], limit: Any = None) -> FastAPI:
        app = FastAPI(dependencies=[] if limit is None else [Depends(RateLimit(limit))])
        app.add_api_route("/", lambda: "in")
        for path, inner in mounted:
            app.mount(path, inner)
        return app

    def saying(text: str) -> Any:
        return lambda request, verdict: PlainTextResponse(text, 429)

    own = app_of(limit=ONE)
    install(own, on_denied=saying("own"))
    app = app_of(("/a", app_of(("/b", app_of(limit=ONE)))), ("/own", own))
    install(app, on_denied=saying("outer"))
    with client_of(app) as client:
        told = [client.get(path).text for path in ("/a/b/", "/a/b/", "/own/", "/own/")]
    assert told == ['"in"', "outer", '"in"', "own"]


@contextmanager
def dead_store() -> Iterator[str]:
    require("valkey")
    with Valkey() as server:
        url = server.url
        server.kill()
        yield f"{url}?timeout_ms=200"


def test_redis_down_is_not_a_500() -> None:
    """Open by default, 503 where the app says closed."""
    with dead_store() as url:
        for fail, status in (("open", 200), ("closed", 503)):
            with client_of(limited(ONE, store=url, fail=fail)) as client:
                assert client.get("/model").status_code == status


def test_a_websocket_is_refused_with_429() -> None:
    """A dependency of its route, as of any other."""
    app = FastAPI()
    install(app)

    @app.websocket("/echo", dependencies=[Depends(RateLimit(ONE))])
    async def echo(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text(await websocket.receive_text())
        await websocket.close()

    with client_of(app) as client:
        url = str(client.base_url.copy_with(scheme="ws")).rstrip("/") + "/echo"
        with connect(url) as there:
            there.send("hello")
            assert there.recv() == "hello"
        with pytest.raises(InvalidStatus) as refused:
            connect(url).__enter__()
    assert refused.value.response.status_code == 429
    assert "retry-after" in refused.value.response.headers


def test_an_app_that_is_not_prepared_is_told_how() -> None:
    """Without it there would be no headers."""
    app = FastAPI(dependencies=[Depends(RateLimit(ONE))])
    app.add_api_route("/", lambda: 1)
    transport = httpx.ASGITransport(app)

    async def ask() -> None:
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            await client.get("/")

    with pytest.raises(ConfigInvalidError, match=r"install\(app\) once"):
        asyncio.run(ask())


def test_mistakes_are_told_at_construction() -> None:
    """Of a limit, of an option, of what is installed on."""
    with pytest.raises(ConfigInvalidError, match="did you mean '5/minute'"):
        RateLimit("5 per minute")
    with pytest.raises(ConfigInvalidError, match="there is no option 'stores'; did you mean"):
        install(FastAPI(), stores="redis://localhost")  # type: ignore[call-arg]
    with pytest.raises(ConfigInvalidError, match="install takes a FastAPI app"):
        install(APIRouter())  # type: ignore[arg-type]
    app = FastAPI()
    install(app)
    with pytest.raises(ConfigInvalidError, match="was called for this app already"):
        install(app, store="memory://")
    two = [Depends(RateLimit(rate, name="same")) for rate in (ONE, TWO)]
    app.add_api_route("/", lambda: 1, dependencies=two)
    with pytest.raises(ConfigInvalidError, match="two limits of one route are called 'same'"):
        app.build_middleware_stack()
