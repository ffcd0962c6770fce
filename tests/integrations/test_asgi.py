"""The ASGI middleware around Starlette apps, in a real server."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Mount, Route, Router

from penstock import ConfigInvalidError, Limit, ManualClock, slots
from penstock.integrations import Rule, by_header
from penstock.integrations.asgi import RateLimitMiddleware
from tests.integrations.asgi_app import home, starlette
from tests.integrations.serving import FIVE, ONE, TWO, client_of, left, members


def test_requests_beyond_the_limit_get_429_and_are_told_when_to_come_back() -> None:
    """With problem+json, and headers that agree with it."""
    with client_of(starlette("2/day")) as client:
        assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]
        answer = client.get("/")
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["type"] == "https://iana.org/assignments/http-problem-types#quota-exceeded"
    assert (body["status"], body["code"]) == (429, "rate_limit_exceeded")
    assert body["violated-policies"] == ["app"]
    assert answer.headers["ratelimit-policy"] == '"app";q=2;w=86400'
    retry = int(answer.headers["retry-after"])
    assert 43_000 <= retry <= 43_200
    assert answer.headers["ratelimit"] == f'"app";r=0;t={retry}'


@pytest.mark.parametrize("path", ["/", "/stream", "/failing", "/refused", "/nowhere"])
def test_headers_are_on_every_answer_once(path: str) -> None:
    """On streams, on errors that are handled and on those that are not, and on 404."""
    with client_of(starlette(FIVE)) as client:
        answer = client.get(path)
    assert answer.headers.get_list("ratelimit-policy") == ['"app";q=5;w=86400']
    assert left(answer.headers["ratelimit"], "app") == 4
    assert "retry-after" not in answer.headers


def test_as_middleware_of_an_app_it_does_the_same() -> None:
    """`add_middleware` is how Starlette's users know it."""
    app = Starlette(routes=[Route("/", home)])
    app.add_middleware(RateLimitMiddleware, TWO)  # type: ignore[arg-type]
    with client_of(app) as client:
        assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]


def test_inside_of_cors_preflights_are_free_and_refusals_can_be_read() -> None:
    """By a page of another origin: what is added last stands outermost."""
    app = Starlette(routes=[Route("/", home, methods=["GET", "PUT"])])
    app.add_middleware(RateLimitMiddleware, ONE)  # type: ignore[arg-type]
    app.add_middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["PUT"])
    asking = {"origin": "https://page.example", "access-control-request-method": "PUT"}
    with client_of(app) as client:
        assert [client.options("/", headers=asking).status_code for _ in range(3)] == [200] * 3
        answers = [client.put("/", headers={"origin": "https://page.example"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    for answer in answers:
        assert answer.headers["access-control-allow-origin"] == "*"
        assert left(answer.headers["ratelimit"], "app") == 0


def test_two_stacked_limits_are_one_decision_and_the_binding_one_comes_first() -> None:
    """A request that the second denies is not charged to the first."""
    app = starlette(Rule(FIVE, name="hourly"), Rule(TWO, name="burst"))
    with client_of(app) as client:
        assert [client.get("/").status_code for _ in range(4)] == [200, 200, 429, 429]
        answer = client.get("/")
    assert members(answer.headers["ratelimit"]) == ["burst", "hourly"]
    assert members(answer.headers["ratelimit-policy"]) == ["burst", "hourly"]
    # Two of five were used: three denied requests were not charged.
    assert left(answer.headers["ratelimit"], "hourly") == 3


def test_the_view_can_read_the_verdict() -> None:
    """It may want to tell the user, or to do less."""
    with client_of(starlette(FIVE)) as client:
        assert client.get("/seen").json() == {"remaining": 4, "binding": "app"}


def test_a_stream_arrives_in_pieces_and_its_background_task_runs() -> None:
    """Nothing is buffered: the second piece is sent after the client has had the first."""
    go, done = threading.Event(), threading.Event()

    async def waiting(request: Request) -> StreamingResponse:
        async def chunks() -> Any:
            yield b"one"
            assert await asyncio.to_thread(go.wait, 10)
            yield b"two"

        return StreamingResponse(chunks(), background=BackgroundTask(done.set))

    app = RateLimitMiddleware(Starlette(routes=[Route("/", waiting)]), FIVE)
    with client_of(app) as client, client.stream("GET", "/") as answer:
        pieces = answer.iter_raw()
        assert next(pieces) == b"one"
        go.set()
        assert next(pieces) == b"two"
        assert done.wait(10)


def test_a_disconnect_in_mid_stream_gives_the_slot_back() -> None:
    """The client hangs up while the app still sends; the next one gets in."""
    app = starlette(Limit(slots(1, ttl_ms=3_600_000)))

    async def endless(request: Request) -> StreamingResponse:
        async def chunks() -> Any:
            while True:
                yield b"more" * 1000
                await asyncio.sleep(0.01)

        return StreamingResponse(chunks())

    app.app.routes.append(Route("/endless", endless))
    with client_of(app) as client:
        with client.stream("GET", "/endless") as answer:
            assert answer.status_code == 200
            assert client.get("/").status_code == 429
        deadline = time.monotonic() + 20
        while client.get("/").status_code != 200:
            assert time.monotonic() < deadline, "the slot was not given back"
            time.sleep(0.02)


def test_mounted_apps_are_covered_and_counted_by_template() -> None:
    """`/users/1` and `/users/2` are one route, inside of a mount, too."""
    with client_of(starlette(Rule(TWO, per_route=True))) as client:
        asked = ["/users/1", "/users/2", "/users/3", "/inner/items/1", "/inner/items/2", "/"]
        codes = [client.get(path).status_code for path in asked]
    assert codes == [200, 200, 429, 200, 200, 200]


class Untouched:
    """A middleware of somebody else, which hides the routes of what it is around."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


@pytest.mark.parametrize("place", ["outside", "app", "mount", "router", "route", "sub-app"])
def test_a_mount_with_parameters_counts_by_its_template(place: str) -> None:
    """Wherever the middleware is: `/acme` and `/globex` are one route, and who tries paths that
    lead nowhere gets one limit for all of them."""
    limit = Middleware(RateLimitMiddleware, Rule(TWO, per_route=True))

    def at(*places: str) -> list[Middleware]:
        return [limit] if place in places else []

    items = Route("/items/{id}", home, middleware=at("route"))
    deep = Mount("/deep/{part}", Router([items], middleware=at("router")))
    inner: Any = Starlette(routes=[deep], middleware=at("sub-app"))
    app: Any = Starlette(
        routes=[Mount("/{tenant}", Untouched(inner), middleware=at("mount"))], middleware=at("app")
    )
    app = RateLimitMiddleware(app, *limit.args) if place == "outside" else app
    with client_of(app) as client:
        asked = ["/acme/deep/1/items/1", "/globex/deep/2/items/2", "/initech/deep/3/items/3"]
        assert [client.get(path).status_code for path in asked] == [200, 200, 429]
        lost = [client.get(f"/acme/deep/1/{n}").status_code for n in range(3)]
    assert lost == ([404, 404, 404] if place == "route" else [404, 404, 429])


def test_a_template_is_that_of_the_route_that_serves_the_request() -> None:
    """And not of another one for the same path, with another method."""
    routes = [Route("/users/me", home), Route("/users/{id}", home, methods=["POST"])]
    app = RateLimitMiddleware(Starlette(routes=routes), Rule(TWO, per_route=True))
    with client_of(app) as client:
        asked = ["/users/1", "/users/me", "/users/2"]
        assert [client.post(path).status_code for path in asked] == [200, 200, 429]
        assert [client.delete(path).status_code for path in asked] == [429, 405, 429]
        assert client.get("/users/me").status_code == 200


def test_the_middleware_of_a_mounted_app_adds_its_limits_to_the_same_headers() -> None:
    """One line each, stamped once, by the outer one."""
    inner = RateLimitMiddleware(Starlette(routes=[Route("/", home)]), Rule(ONE, name="inner"))
    app = RateLimitMiddleware(Starlette(routes=[Mount("/in", inner)]), Rule(FIVE, name="outer"))
    with client_of(app) as client:
        first, second = client.get("/in/"), client.get("/in/")
    assert (first.status_code, second.status_code) == (200, 429)
    for answer in (first, second):
        (line,) = answer.headers.get_list("ratelimit")
        assert members(line) == ["inner", "outer"]
    assert second.headers["retry-after"] in second.headers["ratelimit"].split(",")[0]


def test_a_spoofed_x_forwarded_for_changes_nothing() -> None:
    """Neither without trusted proxies nor behind one that appends what it saw."""
    with client_of(starlette(ONE)) as client:
        codes = [
            client.get("/", headers={"x-forwarded-for": f"1.1.1.{n}"}).status_code for n in range(3)
        ]
        assert codes == [200, 429, 429]
    behind = starlette(ONE, trusted_proxies=["127.0.0.0/8"])
    with client_of(behind) as client:

        def through_proxy(sent: str, address: str) -> int:
            return client.get("/", headers={"x-forwarded-for": f"{sent}, {address}"}).status_code

        assert through_proxy("1.1.1.1", "198.51.100.1") == 200
        assert through_proxy("1.1.1.2", "198.51.100.1") == 429
        assert through_proxy("198.51.100.1", "198.51.100.2") == 200


def test_async_functions_for_keys_costs_and_exemptions_are_awaited() -> None:
    """A user's plan may lie in a database."""

    async def key(request: Any) -> str:
        await asyncio.sleep(0)
        return str(request.headers["x-user"])

    async def cost(request: Any) -> int:
        await asyncio.sleep(0)
        return int(request.headers.get("x-cost", "1"))

    async def staff(request: Any) -> bool:
        await asyncio.sleep(0)
        return request.headers.get("x-user") == "root"

    rule = Rule(TWO, key=key, cost=cost)
    with client_of(starlette(rule, exempt=["/nowhere", staff])) as client:

        def ask(user: str, cost: str = "1") -> int:
            return client.get("/", headers={"x-user": user, "x-cost": cost}).status_code

        assert [ask("alice"), ask("alice"), ask("alice"), ask("bob", "2")] == [200, 200, 429, 200]
        assert [ask("root") for _ in range(4)] == [200] * 4
        assert [client.get("/nowhere").status_code for _ in range(4)] == [404] * 4
    with client_of(starlette(Rule(TWO, key=key))) as client:
        assert [ask("alice"), ask("alice"), ask("alice"), ask("bob")] == [200, 200, 429, 200]


def test_a_limit_for_some_methods_and_paths_leaves_others_alone() -> None:
    """Here writes, and one path."""
    app = starlette(
        Rule(ONE, name="writes", methods=["post"]), Rule(ONE, name="users", paths="/users/*")
    )
    with client_of(app) as client:
        assert [client.post("/").status_code for _ in range(2)] == [200, 429]
        assert [client.get("/users/1").status_code for _ in range(2)] == [200, 429]
        free = client.get("/")
    assert free.status_code == 200
    assert "ratelimit" not in free.headers


def test_a_head_counts_as_the_get_whose_view_answers_it() -> None:
    """So that it is no way around a limit."""
    with client_of(starlette(Rule(ONE, methods=["GET"]))) as client:
        asked = [client.head("/"), client.get("/"), client.head("/"), client.post("/")]
    assert [answer.status_code for answer in asked] == [200, 429, 429, 200]


def test_a_limit_for_everybody_counts_all_clients_together() -> None:
    """Keyless, as in `Limits`; and requests that it is not for leave it out."""
    everybody = Rule(Limit(TWO, keyless=True), name="everybody", methods=["GET"])
    with client_of(starlette(everybody, key=by_header("x-user"))) as client:
        codes = [client.get("/", headers={"x-user": name}).status_code for name in "abc"]
        assert codes == [200, 200, 429]
        assert client.post("/").status_code == 200


def test_a_cost_of_nothing_only_looks() -> None:
    """A page may ask how it stands."""
    app = starlette(Rule(TWO, cost=lambda request: 0 if request.path == "/seen" else 2))
    with client_of(app) as client:
        assert [client.get("/seen").status_code for _ in range(3)] == [200] * 3
        assert [client.get("/").status_code for _ in range(2)] == [200, 429]


def test_what_is_charged_can_depend_on_the_answer() -> None:
    """Failed logins count, others do not; an error that nobody handled is a 500."""
    rule = Rule(TWO, charge_when=lambda response: response.status_code >= 400)
    with client_of(starlette(rule)) as client:
        assert [client.get("/").status_code for _ in range(4)] == [200] * 4
        assert [client.get("/failing").status_code for _ in range(3)] == [500, 500, 429]
    rule = Rule(TWO, charge_when=lambda response: "x-nothing" in response.headers)
    with client_of(starlette(rule, Rule(FIVE, name="all"))) as client:
        codes = [client.get("/stream").status_code for _ in range(6)]
    assert codes == [200] * 5 + [429]


def test_a_charge_when_that_fails_does_not_break_the_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Which is on its way; what was charged stays, and what was held is free."""

    def broken(response: Any) -> bool:
        raise ValueError(response.status_code)

    app = starlette(Rule(TWO, charge_when=broken), Rule(Limit(slots(1)), name="flight"))
    with client_of(app) as client:
        answers = [client.get("/stream") for _ in range(3)]
    assert [(each.status_code, each.text) for each in answers[:2]] == [(200, "one two")] * 2
    assert answers[2].json()["violated-policies"] == ["app"]
    assert caplog.text.count("charge_when failed") == 2


def test_an_app_may_answer_refusals_itself() -> None:
    """Headers are on its answer, too."""

    async def page(request: Any, verdict: Any) -> PlainTextResponse:
        return PlainTextResponse(f"slow down, {request.client.host}", 429)

    with client_of(starlette(ONE, on_denied=page)) as client:
        client.get("/")
        answer = client.get("/")
    assert (answer.status_code, answer.text) == (429, "slow down, 127.0.0.1")
    assert int(answer.headers["retry-after"]) > 1


def test_a_shadow_counts_and_denies_nobody() -> None:
    """Nor do clients hear of it."""
    for app in (starlette(Rule(ONE, shadow=True)), starlette(ONE, shadow=True)):
        with client_of(app) as client:
            answers = [client.get("/seen") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200] * 3
        assert "ratelimit" not in answers[-1].headers


def test_headers_can_be_left_off_or_be_the_older_ones_too() -> None:
    """A refusal still says when to come back."""
    with client_of(starlette(ONE, headers=False)) as client:
        first, second = client.get("/"), client.get("/")
    assert "ratelimit" not in first.headers
    assert "retry-after" in second.headers
    with client_of(starlette(FIVE, legacy_headers=True)) as client:
        assert client.get("/").headers["x-ratelimit-remaining"] == "4"


def test_time_brings_it_back() -> None:
    """By the clock that was given."""
    clock = ManualClock(1_800_000_000_000)
    with client_of(starlette("1/second", clock=clock)) as client:
        assert [client.get("/").status_code for _ in range(2)] == [200, 429]
        clock.advance(1_000)
        assert client.get("/").status_code == 200


@pytest.mark.parametrize(
    ("limits", "options", "message"),
    [
        (["100 per minute"], {}, "did you mean '100/minute'"),
        ([None], {}, "a limit must be a rate"),
        ([ONE], {"trusted_proxy": 1}, "there is no option 'trusted_proxy'; did you mean"),
        ([ONE], {"fail": "shut"}, "fail must be 'open' or 'closed' or 'error', not 'shut'"),
        ([ONE], {"key": "x-user"}, "key must be a function of the request"),
        ([ONE], {"hash_keys": "short"}, "a secret of at least 16 bytes"),
        ([ONE], {"exempt": "health"}, "a path must begin with '/'"),
        ([Rule(ONE, name="a"), Rule(TWO, name="a")], {}, "two limits are called 'a'"),
        ([ONE], {"messages": slots(2)}, "it can hold no slots"),
        ([ONE], {"messages": Rule(ONE, charge_when=bool)}, "has no answer"),
    ],
)
def test_mistakes_are_told_when_the_app_is_made(
    limits: list[Any], options: dict[str, Any], message: str
) -> None:
    """And what would be right."""
    with pytest.raises(ConfigInvalidError, match=message):
        starlette(*limits, **options)


async def awaited(response: Any) -> bool:
    return False


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "a b"}, "the name of a limit consists of"),
        ({"cost": -1}, "cost must be an integer from 0"),
        ({"methods": "GET,POST"}, r"methods must be names such as \['POST'\]"),
        ({"paths": ["users"]}, "a path must begin with '/'"),
        ({"charge_when": True}, "charge_when must be a function"),
        ({"charge_when": awaited}, "charge_when must be a plain function of the response"),
        ({"key": 7}, "key must be a function"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    """With the argument that is wrong."""
    with pytest.raises(ConfigInvalidError, match=message):
        Rule(ONE, **options)


def test_half_a_request_does_not_count() -> None:
    """A client that connects and says nothing has asked for nothing."""
    with client_of(starlette(ONE)) as client:
        port = client.base_url.port
        assert port is not None
        socket.create_connection(("127.0.0.1", port)).close()
        assert client.get("/").status_code == 200
