"""The extension for Flask, by its test client and in a threaded server."""

from __future__ import annotations

import functools
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from flask import Blueprint, Flask, Response, abort, g, jsonify, request
from flask.views import MethodView
from werkzeug.exceptions import HTTPException
from werkzeug.serving import make_server

from penstock import ConfigInvalidError, Limit, slots
from penstock.integrations import Rule, by_header
from penstock.integrations.flask import RateLimits
from tests.integrations.serving import FIVE, ONE, TWO, left, members
from tests.servers import Valkey, require


def made(*limits: Any, **options: Any) -> tuple[Flask, RateLimits]:
    """An app with limits for all of it, and one route of each kind."""
    app = Flask(__name__)
    extension = RateLimits(app, *limits, **options)

    @app.route("/", methods=["GET", "POST"])
    def home() -> str:
        return "home"

    @app.route("/users/<int:number>")
    def user(number: int) -> str:
        return str(number)

    @app.route("/stream")
    def stream() -> Response:
        return Response(iter(["one ", "two"]))

    @app.route("/aborted")
    def aborted() -> None:
        abort(403)

    @app.route("/failing")
    def failing() -> None:
        raise RuntimeError("nobody handles this")

    @app.route("/seen")
    def seen() -> Response:
        assert extension.verdict is g.rate_limit
        return jsonify(remaining=g.rate_limit.remaining)

    return app, extension


def codes(app: Flask, *paths: str, **named: Any) -> list[int]:
    client = app.test_client()
    return [client.get(path, **named).status_code for path in paths]


@contextmanager
def threaded(app: Flask) -> Iterator[str]:
    """The base URL of an app in werkzeug's threaded server."""
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_common_case_takes_two_lines_and_works_in_the_test_client() -> None:
    """429 with problem+json and Retry-After."""
    app, _ = made(TWO)
    client = app.test_client()
    answers = [client.get("/") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[2].content_type == "application/problem+json"
    body = answers[2].get_json()
    assert (body["code"], body["violated-policies"]) == ("rate_limit_exceeded", ["app"])
    assert int(answers[2].headers["Retry-After"]) > 1


@pytest.mark.parametrize("path", ["/", "/stream", "/aborted", "/failing", "/nowhere"])
def test_headers_are_on_every_answer_once(path: str) -> None:
    """On streams, aborted requests, errors that nobody handled, and 404."""
    app, _ = made(FIVE)
    app.config["PROPAGATE_EXCEPTIONS"] = False
    answer = app.test_client().get(path)
    assert answer.headers.getlist("RateLimit-Policy") == ['"app";q=5;w=86400']
    assert left(answer.headers["RateLimit"], "app") == 4


def test_a_limit_holds_in_a_threaded_server() -> None:
    """Fifty at once, ten admitted."""
    app, _ = made("10/day")
    with (
        threaded(app) as url,
        httpx.Client(base_url=url) as client,
        ThreadPoolExecutor(10) as pool,
    ):
        got = list(pool.map(lambda _: client.get("/").status_code, range(50)))
    assert (got.count(200), got.count(429)) == (10, 40)


def test_limits_of_app_blueprint_and_view_are_one_decision() -> None:
    """A request that the view's limit denies is charged to none of them."""
    app, limits = made(Rule(FIVE, name="app"))
    shop = Blueprint("shop", __name__, url_prefix="/shop")

    @shop.route("/items")
    @limits.limit(TWO)
    def items() -> str:
        return "items"

    @shop.route("/prices")
    def prices() -> str:
        return "prices"

    limits.limit_blueprint(shop, "4/day")
    app.register_blueprint(shop)
    assert codes(app, *["/shop/items"] * 5) == [200, 200, 429, 429, 429]
    answer = app.test_client().get("/shop/prices")
    assert members(answer.headers["RateLimit"]) == ["shop", "app"]
    assert left(answer.headers["RateLimit"], "shop") == 1
    assert left(answer.headers["RateLimit"], "app") == 2


def test_blueprints_inside_of_others_and_under_other_names_are_limited() -> None:
    """A blueprint is limited wherever it is registered, and as a whole."""
    app, limits = made()
    outer = Blueprint("outer", __name__, url_prefix="/outer")
    inner = Blueprint("inner", __name__, url_prefix="/inner")
    free = Blueprint("free", __name__, url_prefix="/free")
    for blueprint in (outer, inner, free):
        blueprint.add_url_rule("/", "it", lambda: "it")
    limits.limit_blueprint(outer, "4/day")
    limits.limit_blueprint(inner, TWO)
    limits.exempt(free)
    outer.register_blueprint(inner)
    outer.register_blueprint(free)
    app.register_blueprint(outer)
    app.register_blueprint(inner, name="again", url_prefix="/again")
    both = ["/outer/inner/", "/again/"]
    assert codes(app, *both, *both) == [200, 200, 429, 429]
    answer = app.test_client().get("/outer/")
    assert members(answer.headers["RateLimit"]) == ["outer"]
    assert left(answer.headers["RateLimit"], "outer") == 2
    assert codes(app, *["/outer/free/"] * 5) == [200] * 5


def test_a_response_that_is_sent_again_has_headers_of_its_own() -> None:
    """A view may keep one; what it has put on it itself stays."""
    app, limits = made()
    kept = Response("kept", headers={"Retry-After": "7"})
    app.add_url_rule("/kept", "kept", limits.limit(FIVE)(lambda: kept))
    app.add_url_rule("/free", "free", lambda: kept)
    client = app.test_client()
    told = [client.get("/kept").headers for _ in range(3)]
    assert [left(headers["RateLimit"], "kept") for headers in told] == [4, 3, 2]
    assert [headers.getlist("Retry-After") for headers in told] == [["7"]] * 3
    assert "RateLimit" not in client.get("/free").headers


def test_views_count_apart_unless_they_share_a_limit() -> None:
    """By their endpoint, or by the name that they share."""
    app, limits = made()
    both = limits.shared_limit("both", TWO)
    for name in ("a", "b"):
        app.add_url_rule(f"/{name}/<n>", name, limits.limit(ONE)(lambda n: n))
    for name in ("c", "d"):
        app.add_url_rule(f"/{name}", name, both(lambda: "shared"))
    two = limits.shared_limit("two", FIVE, ONE)
    for name in ("e", "f"):
        app.add_url_rule(f"/{name}", name, two(lambda: "shared"))
    assert codes(app, "/a/1", "/b/1", "/a/2", "/b/2") == [200, 200, 429, 429]
    assert codes(app, "/c", "/d", "/c", "/d") == [200, 200, 429, 429]
    assert "RateLimit" not in app.test_client().get("/").headers
    assert codes(app, "/e", "/f") == [200, 429]
    assert members(app.test_client().get("/f").headers["RateLimit"]) == ["two-2", "two"]


def test_stacked_decorators_and_methods_are_one_decision() -> None:
    """Writes have a limit of their own."""
    app, limits = made()

    @app.route("/both", methods=["GET", "POST"])
    @limits.limit(FIVE)
    @limits.limit(ONE, methods=["POST"])
    def both() -> str:
        return request.method

    client = app.test_client()
    assert [client.post("/both").status_code for _ in range(3)] == [200, 429, 429]
    answer = client.get("/both")
    assert answer.status_code == 200
    assert left(answer.headers["RateLimit"], "both") == 3


def test_a_decorator_above_that_hides_the_view_does_not_hide_its_limit() -> None:
    """It is decided late, and holds."""
    app, limits = made(FIVE)

    def hiding(view: Any) -> Any:
        return lambda: view()

    def polite(view: Any) -> Any:
        return functools.wraps(view)(lambda: view())

    app.add_url_rule("/hidden", "hidden", hiding(limits.limit(ONE)(lambda: "x")))
    app.add_url_rule("/polite", "polite", polite(limits.limit(ONE)(lambda: "x")))
    for name in ("hidden", "polite"):
        client = app.test_client()
        first, second = client.get(f"/{name}"), client.get(f"/{name}")
        assert (first.status_code, second.status_code) == (200, 429)
        assert members(second.headers["RateLimit"]) == [name, "app"]


def test_stacked_limits_that_are_hidden_are_one_decision_all_the_same() -> None:
    """The outer one decides for both; a denied request is charged to neither."""
    app, limits = made()
    view = limits.limit(FIVE)(limits.limit(TWO)(lambda: "x"))
    app.add_url_rule("/hidden", "hidden", lambda: view())
    answers = [app.test_client().get("/hidden") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
    assert members(answers[3].headers["RateLimit"]) == ["hidden-2", "hidden"]
    assert left(answers[3].headers["RateLimit"], "hidden") == 3


def test_classes_of_views_and_async_views_are_limited() -> None:
    """By the class, for all of its methods."""
    app, limits = made()

    @limits.limit(TWO)
    class Items(MethodView):
        def get(self) -> str:
            return "got"

        def post(self) -> str:
            return "put"

    async def later() -> str:
        return "later"

    app.add_url_rule("/items", view_func=Items.as_view("items"))
    app.add_url_rule("/later", "later", limits.limit(ONE)(later))
    client = app.test_client()
    assert [client.get("/items").status_code, client.post("/items").status_code] == [200, 200]
    assert client.get("/items").status_code == 429
    assert codes(app, "/later", "/later") == [200, 429]


def test_methods_of_a_class_of_views_have_limits_of_their_own() -> None:
    """Each counts apart; what one of them denies is charged nowhere."""
    app, limits = made(FIVE)

    class Items(MethodView):
        @limits.limit(TWO)
        def get(self) -> str:
            return "got"

        @limits.limit(ONE)
        def post(self) -> str:
            return "put"

    app.add_url_rule("/items", view_func=Items.as_view("items"))
    client = app.test_client()
    assert [client.get("/items").status_code for _ in range(3)] == [200, 200, 429]
    answer = client.post("/items")
    assert answer.status_code == 200
    assert members(answer.headers["RateLimit"]) == ["items.post", "app"]
    assert left(answer.headers["RateLimit"], "app") == 2
    assert client.post("/items").status_code == 429


def test_a_view_that_is_decorated_for_each_request_is_not_kept() -> None:
    """As libraries do that wrap the methods of a class when they are called; it counts as one."""
    app, limits = made()
    limit = limits.limit(TWO)
    kept: list[weakref.ref[Any]] = []

    @app.route("/late")
    def late() -> Any:
        view = limit(lambda: "late")
        kept.append(weakref.ref(view))
        return view()

    assert codes(app, "/late", "/late", "/late") == [200, 200, 429]
    gc.collect()
    assert [each() for each in kept] == [None] * 3


def test_exempt_views_and_blueprints_and_paths_are_left_alone() -> None:
    """With the app's limit used up."""
    app, limits = made(ONE, exempt="/users/*")
    free = Blueprint("free", __name__)
    free.add_url_rule("/free", "it", lambda: "free")
    limits.exempt(free)
    app.register_blueprint(free)
    app.add_url_rule("/health", "health", limits.exempt(lambda: "fine"))
    assert codes(app, "/", "/", "/free", "/health", "/users/1") == [200, 429, 200, 200, 200]


def test_init_app_comes_later_where_apps_are_made_by_functions() -> None:
    """One extension, several apps, which count apart."""
    limits = RateLimits(ONE, key=by_header("x-user"))
    apps = []
    for _ in range(2):
        app = Flask(__name__)
        app.add_url_rule("/", "home", lambda: "home")
        limits.init_app(app)
        apps.append(app)
    for app in apps:
        assert codes(app, "/", "/", headers={"x-user": "a"}) == [200, 429]
        assert codes(app, "/", headers={"x-user": "b"}) == [200]


def test_what_is_charged_can_depend_on_the_response() -> None:
    """Failed requests count, also those that no view handled."""
    app, _ = made(Rule(TWO, charge_when=lambda response: response.status_code >= 400))
    app.config["PROPAGATE_EXCEPTIONS"] = False
    assert codes(app, "/", "/", "/", "/aborted", "/failing", "/") == [200] * 3 + [403, 500, 429]
    app, _ = made(Rule(ONE, charge_when=lambda response: response.status_code >= 400))
    app.testing = True
    with pytest.raises(RuntimeError):
        app.test_client().get("/failing")
    assert codes(app, "/") == [429]


def test_errors_give_back_what_they_hold_at_once() -> None:
    """Those that Flask makes are streams, which a test client does not read."""
    app = Flask(__name__)
    refused = Rule(TWO, name="login", charge_when=lambda response: response.status_code == 401)
    RateLimits(app, Limit(slots(1, ttl_ms=3_600_000)), refused)

    @app.route("/<int:status>")
    def view(status: int) -> Any:
        abort(status)

    client = app.test_client()
    asked = ["/nowhere", "/403", "/nowhere", "/401", "/403", "/401", "/403"]
    codes = [client.get(path).status_code for path in asked]
    assert codes == [404, 403, 404, 401, 403, 401, 429]


def test_slots_are_held_until_a_stream_is_over() -> None:
    """And come back when the client hangs up."""
    app, _ = made(Limit(slots(1, ttl_ms=3_600_000)))
    go = threading.Event()

    @app.route("/endless")
    def endless() -> Response:
        def chunks() -> Iterator[bytes]:
            yield b"one"
            go.wait(10)
            yield b"two"

        return Response(chunks())

    with threaded(app) as url, httpx.Client(base_url=url) as client:
        with client.stream("GET", "/endless") as answer:
            pieces = answer.iter_raw()
            assert next(pieces) == b"one"
            assert client.get("/").status_code == 429
            go.set()
            assert next(pieces) == b"two"
        deadline = time.monotonic() + 20
        while client.get("/").status_code != 200:
            assert time.monotonic() < deadline, "the slot was not given back"
            time.sleep(0.01)


def test_an_app_may_answer_refusals_itself_and_read_the_verdict() -> None:
    """With whatever a view may return."""
    app, _ = made(TWO, on_denied=lambda request, verdict: (f"{verdict.binding} is full", 429))
    client = app.test_client()
    assert client.get("/seen").get_json() == {"remaining": 1}
    client.get("/")
    answer = client.get("/")
    assert (answer.status_code, answer.text) == (429, "app is full")
    assert "Retry-After" in answer.headers

    async def later(request: Any, verdict: Any) -> tuple[str, int]:
        return "later", 429

    app, _ = made(ONE, on_denied=later)
    assert [app.test_client().get("/").text for _ in range(2)] == ["home", "later"]


def test_a_refusal_is_answered_by_the_apps_own_handler_of_errors() -> None:
    """By one for 429, and by one for all errors of HTTP; the headers are there all the same."""
    app, _ = made(ONE)

    @app.errorhandler(429)
    def slow_down(error: HTTPException) -> tuple[str, int]:
        return f"slow down: {g.rate_limit.binding}", 429

    assert codes(app, "/") == [200]
    answer = app.test_client().get("/")
    assert (answer.status_code, answer.text) == (429, "slow down: app")
    assert int(answer.headers["Retry-After"]) > 1

    app, _ = made(ONE, on_denied=lambda request, verdict: ("mine", 429))
    app.register_error_handler(HTTPException, lambda error: (error.description, error.code))
    codes(app, "/")
    assert app.test_client().get("/").text == "mine"

    app, _ = made(ONE)
    app.register_error_handler(HTTPException, lambda error: (error.description, error.code))
    codes(app, "/")
    assert app.test_client().get("/").text.startswith("Try again in ")


def test_a_spoofed_x_forwarded_for_changes_nothing() -> None:
    """Behind a proxy, the address that it saw counts."""
    app, _ = made(ONE, trusted_proxies=["127.0.0.1"])
    spoofed = [{"X-Forwarded-For": f"1.1.1.{n}, 198.51.100.7"} for n in range(2)]
    assert [codes(app, "/", headers=headers) for headers in spoofed] == [[200], [429]]


def test_redis_down_is_not_a_500() -> None:
    """Open by default, 503 where the app says closed."""
    require("valkey")
    with Valkey() as server:
        url = f"{server.url}?timeout_ms=200"
        server.kill()
        for fail, status in (("open", 200), ("closed", 503)):
            app, _ = made(ONE, store=url, fail=fail)
            assert codes(app, "/", "/") == [status, status]


def test_mistakes_are_told_at_construction() -> None:
    """Of limits, of options, of an app that was not initialised."""
    with pytest.raises(ConfigInvalidError, match="did you mean '5/minute'"):
        RateLimits("5 per minute")
    with pytest.raises(ConfigInvalidError, match="there is no option 'keys'; did you mean 'key'"):
        RateLimits(ONE, keys=by_header("x"))  # type: ignore[call-arg]
    with pytest.raises(ConfigInvalidError, match="a limit must be given"):
        RateLimits().limit()
    with pytest.raises(ConfigInvalidError, match="a limit must be given"):
        RateLimits().shared_limit("both")
    with pytest.raises(ConfigInvalidError, match="a shared limit is named here"):
        RateLimits().shared_limit("both", Rule(ONE))
    app, _ = made()
    with pytest.raises(ConfigInvalidError, match="has an extension of Penstock already"):
        RateLimits(app, ONE)
    bare = Flask(__name__)
    bare.testing = True
    bare.add_url_rule("/", "home", RateLimits().limit(ONE)(lambda: "home"))
    with pytest.raises(ConfigInvalidError, match=r"call limits.init_app\(app\)"):
        bare.test_client().get("/")


async def _later(_request: Any) -> str:
    return "k"


def test_an_async_key_cost_or_exemption_is_refused_where_it_is_declared() -> None:
    """And not first by a request."""
    limits = RateLimits()
    for refused in (
        lambda: RateLimits(Flask("a"), "5/minute", key=_later),
        lambda: RateLimits(Flask("a"), Rule("5/minute", key=_later)),
        lambda: RateLimits(Flask("a"), Rule("5/minute", cost=_later)),
        lambda: RateLimits(Flask("a"), "5/minute", exempt=_later),
        lambda: RateLimits(Flask("a"), "5/minute", exempt=["/health", _later]),
        lambda: RateLimits(Flask("a"), Rule("5/minute", exempt=_later)),
        lambda: limits.limit("5/minute", exempt=_later),
        lambda: limits.limit_blueprint(Blueprint("b", "b"), "5/minute", exempt=_later),
        lambda: limits.limit("5/minute", key=_later),
        lambda: limits.shared_limit("a", "5/minute", cost=_later),
    ):
        with pytest.raises(ConfigInvalidError, match=r"_later.* is async: make it a plain def"):
            refused()
