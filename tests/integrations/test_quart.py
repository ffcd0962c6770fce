"""The extension for Quart, in a real server and by the test client."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from quart import Blueprint, Quart, Response, abort, g, websocket
from quart.views import MethodView
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from penstock import ConfigInvalidError, Limit, slots
from penstock.integrations import Rule
from penstock.integrations.quart import AsyncRateLimits
from tests.integrations.serving import FIVE, ONE, TWO, client_of, left, members
from tests.servers import Valkey, require


def made(*limits: Any, **options: Any) -> tuple[Quart, AsyncRateLimits]:
    app = Quart(__name__)
    extension = AsyncRateLimits(app, *limits, **options)

    @app.route("/")
    async def home() -> str:
        return "home"

    @app.route("/stream")
    async def stream() -> Response:
        async def chunks() -> Any:
            yield b"one "
            yield b"two"

        return Response(chunks())

    @app.route("/aborted")
    async def aborted() -> None:
        abort(403)

    @app.route("/failing")
    async def failing() -> None:
        raise RuntimeError("nobody handles this")

    @app.route("/search")
    @extension.limit(TWO)
    async def search() -> dict[str, int]:
        return {"remaining": g.rate_limit.remaining}

    @app.route("/health")
    @extension.exempt
    def health() -> str:
        return "fine"

    return app, extension


@pytest.mark.parametrize("path", ["/", "/stream", "/aborted", "/failing", "/nowhere"])
def test_headers_are_on_every_answer_once(path: str) -> None:
    """On streams, aborted requests, errors that nobody handled, and 404."""
    with client_of(made(FIVE)[0]) as client:
        answer = client.get(path)
    assert answer.headers.get_list("ratelimit-policy") == ['"app";q=5;w=86400']
    assert left(answer.headers["ratelimit"], "app") == 4


def test_limits_of_app_blueprint_and_view_are_one_decision() -> None:
    """429 with problem+json; a request that is denied is charged nowhere."""
    app, limits = made(FIVE)
    shop = Blueprint("shop", __name__)

    @shop.route("/items")
    @limits.limit(ONE)
    async def items() -> str:
        return "items"

    limits.limit_blueprint(shop, "4/day")
    around = Blueprint("around", __name__)
    around.register_blueprint(shop)
    app.register_blueprint(around)
    with client_of(app) as client:
        answers = [client.get("/search") for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
        assert answers[0].json() == {"remaining": 1}
        assert answers[3].headers["content-type"] == "application/problem+json"
        answer = client.get("/items")
        assert left(answer.headers["ratelimit"], "app") == 2
        assert members(answer.headers["ratelimit"]) == ["around.shop.items", "app", "around.shop"]
        assert client.get("/items").status_code == 429
        assert [client.get("/health").status_code for _ in range(6)] == [200] * 6


def test_async_keys_outcomes_and_refusals() -> None:
    """As in every integration; two lines of X-Forwarded-For are one list."""

    async def key(request: Any) -> str:
        await asyncio.sleep(0)
        return str(request.headers["x-user"])

    async def page(request: Any, verdict: Any) -> tuple[str, int]:
        return "slow down", 429

    rule = Rule(ONE, key=key, charge_when=lambda response: response.status_code == 403)
    with client_of(made(rule, on_denied=page)[0]) as client:
        who = {"x-user": "alice"}
        codes = [client.get(path, headers=who).status_code for path in ("/", "/", "/aborted", "/")]
        assert codes == [200, 200, 403, 429]
        assert client.get("/", headers=who).text == "slow down"
    with client_of(made(ONE, trusted_proxies=["127.0.0.1"])[0]) as client:
        for spoofed, status in (("1.1.1.1", 200), ("1.1.1.2", 429)):
            lines = [("x-forwarded-for", spoofed), ("x-forwarded-for", "198.51.100.7")]
            assert client.get("/", headers=lines).status_code == status


def test_methods_of_a_class_of_views_have_limits_of_their_own() -> None:
    """As in Flask."""
    app, limits = made(FIVE)

    class Items(MethodView):
        @limits.limit(TWO)
        async def get(self) -> str:
            return "got"

        @limits.limit(ONE)
        async def post(self) -> str:
            return "put"

    app.add_url_rule("/items", view_func=Items.as_view("items"))
    with client_of(app) as client:
        assert [client.get("/items").status_code for _ in range(3)] == [200, 200, 429]
        assert [client.post("/items").status_code for _ in range(2)] == [200, 429]


def test_a_websocket_is_limited_when_it_connects() -> None:
    """By the limits of the app and its own; refused with 429, by the app's own handler, too."""
    app, limits = made(FIVE)

    @app.websocket("/echo")
    @limits.limit(TWO)
    async def echo() -> None:
        await websocket.accept()
        await websocket.send(await websocket.receive())

    with client_of(app) as client:
        url = f"{str(client.base_url).replace('http', 'ws', 1)}/echo"
        for remaining in (1, 0):
            with connect(url) as socket:
                socket.send("hello")
                assert socket.recv() == "hello"
            told = socket.response.headers["RateLimit"]
            assert left(told, "echo") == remaining
        with pytest.raises(InvalidStatus) as refused:
            connect(url)
        answer = refused.value.response
        assert answer.status_code == 429
        assert members(answer.headers["RateLimit"]) == ["echo", "app"]
        assert int(answer.headers["Retry-After"]) > 1
        assert left(client.get("/").headers["RateLimit"], "app") == 2

    @app.errorhandler(429)
    async def slow_down(error: Any) -> tuple[str, int]:
        return "slow down", 429

    with client_of(app) as client:
        with pytest.raises(InvalidStatus) as refused:
            connect(url)
        assert refused.value.response.body == b"slow down"
        assert [client.get("/search").text for _ in range(3)][2] == "slow down"


def test_it_works_in_the_test_client() -> None:
    """And a store that is away is not a 500."""

    async def ask(app: Quart) -> list[int]:
        client = app.test_client()
        return [(await client.get("/")).status_code for _ in range(2)]

    assert asyncio.run(ask(made(ONE)[0])) == [200, 429]
    require("valkey")
    with Valkey() as server:
        url = f"{server.url}?timeout_ms=200"
        server.kill()
        for fail, status in (("open", 200), ("closed", 503)):
            app, _ = made(ONE, store=url, fail=fail)
            assert asyncio.run(ask(app)) == [status, status]


def test_mistakes_are_told_at_construction() -> None:
    """Of limits and of options."""
    with pytest.raises(ConfigInvalidError, match="did you mean '5/minute'"):
        AsyncRateLimits("5 per minute")  # type: ignore[arg-type]
    with pytest.raises(ConfigInvalidError, match="there is no option 'keys'"):
        made(ONE, keys=1)


def test_slots_are_held_until_a_stream_is_over() -> None:
    """And come back when the client hangs up."""
    app, _ = made(Limit(slots(1, ttl_ms=3_600_000)))
    go = threading.Event()

    @app.route("/endless")
    async def endless() -> Response:
        async def chunks() -> Any:
            yield b"one"
            while not go.is_set():
                await asyncio.sleep(0.01)
                yield b"more"

        return Response(chunks())

    def is_back() -> bool:
        deadline = time.monotonic() + 20
        while client.get("/").status_code != 200:
            assert time.monotonic() < deadline, "the slot was not given back"
            time.sleep(0.01)
        return True

    with client_of(app) as client:
        with client.stream("GET", "/endless") as answer:
            pieces = answer.iter_raw()
            assert next(pieces).startswith(b"one")
            assert client.get("/").status_code == 429
        assert is_back()
        with client.stream("GET", "/endless") as answer:
            assert client.get("/").status_code == 429
            go.set()
            assert answer.read().startswith(b"one")
        assert is_back()


def test_what_the_app_charged_comes_back_when_a_hidden_limit_denies() -> None:
    """A decorator that hides the view leaves its limit to be decided later."""
    app, extension = made(FIVE)

    @extension.limit(ONE, name="view")
    async def view() -> str:
        return "seen"

    async def hiding() -> Any:
        return await view()

    app.add_url_rule("/hidden", view_func=hiding)
    with client_of(app) as client:
        assert [client.get("/hidden").status_code for _ in range(4)] == [200, 429, 429, 429]
        assert left(client.get("/").headers["ratelimit"], "app") == 3
