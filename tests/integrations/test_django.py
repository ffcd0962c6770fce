"""Limits on a Django project, by its test clients and in real servers, sync and async."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.integrations import django_project as project

from django.core.asgi import get_asgi_application  # isort: skip
from django.core.management import CommandError, call_command  # isort: skip
from django.core.wsgi import get_wsgi_application  # isort: skip
from django.test import AsyncClient, Client, override_settings  # isort: skip

from penstock import ConfigInvalidError, Limit, slots
from penstock.integrations import Rule
from penstock.integrations.django import rate_limited
from penstock.integrations.django.apps import check_settings
from tests.integrations.serving import FIVE, ONE, TWO, left, members, serving
from tests.integrations.test_flask import threaded
from tests.servers import Valkey, require

LOCAL_CACHE = "django.core.cache.backends.locmem.LocMemCache"
WITHOUT = ["tests.integrations.django_project.logged_in"]


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    """Each test has counts of its own."""
    with limits():
        yield


def limits(*given: Any, **options: Any) -> Any:
    return override_settings(PENSTOCK={"LIMITS": list(given), **options})


def codes(*paths: str, **headers: str) -> list[int]:
    client = Client(raise_request_exception=False, headers=headers)
    return [client.get(path).status_code for path in paths]


async def _later(*paths: str) -> list[int]:
    client = AsyncClient(raise_request_exception=False)
    return [(await client.get(path)).status_code for path in paths]


def test_the_common_case_is_a_line_of_middleware_and_one_of_settings() -> None:
    """429 and never 403, with problem+json and Retry-After."""
    with limits(TWO):
        client = Client()
        answers = [client.get("/") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[2]["Content-Type"] == "application/problem+json"
    assert answers[2].json()["violated-policies"] == ["app"]
    assert int(answers[2]["Retry-After"]) > 1


@pytest.mark.parametrize("path", ["/", "/later/", "/stream/", "/forbidden/", "/failing/", "/no/"])
@pytest.mark.parametrize("is_async", [False, True])
def test_headers_are_on_every_answer(path: str, is_async: bool) -> None:
    """On streams, refused requests, errors that nobody handled, and 404; of WSGI and of ASGI."""

    async def ask() -> Any:
        return await AsyncClient(raise_request_exception=False).get(path)

    def ask_now() -> Any:
        return Client(raise_request_exception=False).get(path)

    with limits(FIVE):
        answer = asyncio.run(ask()) if is_async else ask_now()
    assert answer["RateLimit-Policy"] == '"app";q=5;w=86400'
    assert left(answer["RateLimit"], "app") == 4


CACHE = "django.middleware.cache"


@pytest.mark.parametrize("is_async", [False, True])
def test_answers_from_a_cache_count_and_have_headers_of_their_own(is_async: bool) -> None:
    """With the limits between the parts of Django's cache, where what is kept has headers."""
    middleware = [
        f"{CACHE}.UpdateCacheMiddleware",
        *project.settings.MIDDLEWARE,
        f"{CACHE}.FetchFromCacheMiddleware",
    ]

    async def ask() -> list[Any]:
        client = AsyncClient()
        return [await client.get("/cached/") for _ in range(3)]

    caches = {"default": {"BACKEND": f"{LOCAL_CACHE}", "LOCATION": f"is async: {is_async}"}}
    with limits(TWO), override_settings(MIDDLEWARE=middleware, CACHES=caches):
        answers = asyncio.run(ask()) if is_async else [Client().get("/cached/") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].content == answers[1].content != project.cached(None).content
    assert [left(answer["RateLimit"], "app") for answer in answers] == [1, 0, 0]


def test_a_response_that_is_sent_again_has_headers_of_its_own() -> None:
    """A view may keep one."""
    with limits(FIVE):
        told = [Client().get("/kept/")["RateLimit"] for _ in range(3)]
    assert [left(field, "app") for field in told] == [4, 3, 2]


@pytest.mark.parametrize("path", ["/search/word/", "/async-search/"])
def test_sync_and_async_views_are_limited_by_sync_and_async_servers(path: str) -> None:
    """All four ways."""
    assert codes(path, path, path) == [200, 200, 429]
    with limits():
        assert asyncio.run(_later(path, path, path)) == [200, 200, 429]


def test_without_the_middleware_a_decorator_decides_by_itself() -> None:
    """Headers are on what the view returns."""
    with override_settings(MIDDLEWARE=WITHOUT):
        assert codes("/search/a/", "/search/b/", "/search/c/") == [200, 200, 429]
        assert asyncio.run(_later("/async-search/", "/async-search/", "/async-search/")) == [
            200,
            200,
            429,
        ]
        answer = Client().get("/stacked/")
        assert left(answer["RateLimit"], "all") == 3


def test_without_the_middleware_stacked_decorators_are_one_decision() -> None:
    """Also where neither has a name."""
    view = rate_limited(FIVE)(rate_limited(TWO)(project.home))
    request = project.RequestFactory()
    answers = [view(request.get("/")) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
    names = members(answers[3]["RateLimit"])
    assert names == ["tests.integrations.django_project.home-2", names[0].removesuffix("-2")]
    assert left(answers[3]["RateLimit"], names[1]) == 3


def test_limits_of_settings_and_view_are_one_decision() -> None:
    """A request that the view's limit denies is charged to none of them."""
    with limits(FIVE):
        assert codes(*["/search/word/"] * 5) == [200, 200, 429, 429, 429]
        denied = Client().get("/search/word/")
        assert members(denied["RateLimit"]) == ["search", "app"]
        assert left(Client().get("/")["RateLimit"], "app") == 2


def test_stacked_decorators_and_methods_are_one_decision() -> None:
    """Writes have a limit of their own."""
    client = Client()
    assert [client.post("/stacked/").status_code for _ in range(3)] == [200, 429, 429]
    answer = client.get("/stacked/")
    assert answer.status_code == 200
    assert left(answer["RateLimit"], "all") == 2


def test_classes_of_views_are_limited_by_user() -> None:
    """Decorated as a class, or as the view that is made of it."""
    assert codes("/profile/", "/profile/", **{"x-user": "a"}) == [200, 429]
    assert codes("/profile/", "/profile/", **{"x-user": "b"}) == [200, 429]
    assert codes("/profile/", "/profile/") == [200, 429]
    assert codes("/account/", "/account/") == [200, 429]


@pytest.mark.parametrize("middleware", [None, WITHOUT], ids=["middleware", "alone"])
def test_classes_of_async_views_are_limited(middleware: Any) -> None:
    """In both worlds, with the middleware and without."""
    with override_settings(MIDDLEWARE=middleware or project.settings.MIDDLEWARE):
        assert codes("/async-class/", "/async-class/") == [200, 429]
        with limits():
            assert asyncio.run(_later("/async-class/", "/async-class/")) == [200, 429]
            assert left(Client().get("/async-class/")["RateLimit"], "async-class") == 0


@pytest.mark.parametrize("middleware", [None, WITHOUT], ids=["middleware", "alone"])
@pytest.mark.parametrize("path", ["/orders/", "/async-orders/"])
def test_methods_of_a_class_of_views_have_limits_of_their_own(middleware: Any, path: str) -> None:
    """With `method_decorator` or without; each counts apart, and what it denies is charged
    nowhere."""
    allowed = 2 if path == "/orders/" else 1
    with (
        override_settings(MIDDLEWARE=middleware or project.settings.MIDDLEWARE),
        limits(FIVE),
    ):
        client = Client()
        asked = [client.get(path).status_code for _ in range(allowed + 1)]
        posted = [client.post(path) for _ in range(2)]
    assert asked == [200] * allowed + [429]
    assert [answer.status_code for answer in posted] == [200, 429]
    name = f"{project.__name__}.{'Orders' if allowed == 2 else 'AsyncOrders'}.post"
    assert left(posted[0]["RateLimit"], name) == 0
    if middleware is None:
        assert left(posted[0]["RateLimit"], "app") == 4 - allowed


@pytest.mark.parametrize("middleware", [None, WITHOUT], ids=["middleware", "alone"])
def test_a_view_whose_response_is_made_later_is_limited(middleware: Any) -> None:
    """The middleware tells of its limit; without one, only the refusal does."""
    with override_settings(MIDDLEWARE=middleware or project.settings.MIDDLEWARE):
        answers = [Client().get("/data/") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert answers[0].json() == {"number": 1}
    told = answers if middleware is None else answers[1:]
    assert [left(answer["RateLimit"], "data") for answer in told] == [0] * len(told)


def test_a_view_with_arguments_of_its_own_counts_under_its_name() -> None:
    """One that was partly given its arguments."""
    answers = [Client().get("/hello/") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert members(answers[0]["RateLimit"]) == [f"{project.__name__}.greeting"]


def test_async_keys_and_outcomes_work_in_both_worlds() -> None:
    """Failed logins count, by a key that is awaited."""
    bad, good = "/login/?bad", "/login/"
    assert codes(good, good, good, bad, bad, bad, **{"x-user": "a"}) == [200] * 3 + [401, 401, 429]

    async def ask() -> list[int]:
        client, who = AsyncClient(), {"x-user": "b"}
        asked = (good, good, good, bad, bad, bad)
        return [(await client.get(path, headers=who)).status_code for path in asked]

    assert asyncio.run(ask()) == [200] * 3 + [401, 401, 429]


def test_the_view_can_read_the_verdict() -> None:
    """It is on the request."""
    with limits(FIVE):
        assert Client().get("/seen/").json() == {"remaining": 4}


def test_slots_are_given_back_when_a_stream_is_closed() -> None:
    """And not before."""
    with limits(Limit(slots(1, ttl_ms=3_600_000))):
        client = Client()
        answer = client.get("/stream/")
        assert client.get("/").status_code == 429
        assert b"".join(answer) == b"one two"
        answer.close()
        assert [client.get("/").status_code for _ in range(2)] == [200, 200]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_view_that_raises_gives_its_slot_back(is_async: bool) -> None:
    """Without the middleware, where the decorator sees the error and no response. What is charged
    goes by the status that Django makes of it."""

    def view(request: Any) -> Any:
        raise {"/lost": project.Http404, "/no": project.PermissionDenied}.get(
            request.path, KeyError
        )

    async def later(request: Any) -> Any:
        view(request)

    with limits():
        limited: Any = rate_limited(
            Rule(Limit(slots(1, ttl_ms=3_600_000)), name="held"),
            Rule(TWO, name="lost", charge_when=lambda response: response.status_code == 404),
        )(later if is_async else view)

        def ask(path: str) -> Any:
            asked = project.RequestFactory().get(path)
            try:
                return (asyncio.run(limited(asked)) if is_async else limited(asked)).status_code
            except Exception as error:
                return type(error)

        told = [ask(path) for path in ("/", "/no", "/lost", "/", "/lost", "/")]
    assert told == [
        *(KeyError, project.PermissionDenied, project.Http404, KeyError),
        *(project.Http404, 429),
    ]


def test_errors_that_are_let_through_give_back_what_they_hold() -> None:
    """As some set it for tests and for tools that report errors."""
    with (
        limits(Limit(slots(1, ttl_ms=3_600_000))),
        override_settings(DEBUG_PROPAGATE_EXCEPTIONS=True),
    ):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="nobody handles this"):
                Client().get("/failing/")


def test_a_client_that_leaves_an_async_view_gives_its_slot_back() -> None:
    """Django cancels the view, and no response is made."""
    with (
        limits(Limit(slots(1, ttl_ms=3_600_000))),
        serving(get_asgi_application(), lifespan="off") as url,
    ):
        with pytest.raises(httpx.ReadTimeout):
            httpx.get(f"{url}/waiting/", timeout=httpx.Timeout(30, read=0.3))
        deadline = time.monotonic() + 30
        while httpx.get(f"{url}/later/").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_options_are_settings_and_functions_may_be_named() -> None:
    """By their path, as Django does it."""
    options = {"EXEMPT": ["/later/"], "KEY": "penstock.integrations.django.by_user"}
    with limits(ONE, ON_DENIED="tests.integrations.test_django.slow_down", **options):
        assert codes("/", "/", "/later/", **{"x-user": "a"}) == [200, 429, 200]
        assert Client(headers={"x-user": "a"}).get("/").content == b"slow down"


def slow_down(request: Any, verdict: Any) -> Any:
    return project.HttpResponse("slow down", status=429)


def test_refusals_of_ones_own_may_be_awaited_in_both_worlds() -> None:
    async def later(request: Any, verdict: Any) -> Any:
        return project.HttpResponse(f"{verdict.binding} is full", status=429)

    with limits(ONE, ON_DENIED=later):
        assert [Client().get("/").content for _ in range(2)] == [b"home", b"app is full"]
    with limits(ONE, ON_DENIED=later):
        assert asyncio.run(_later("/", "/")) == [200, 429]


def test_a_spoofed_x_forwarded_for_changes_nothing() -> None:
    """Behind a proxy, the address that it saw counts."""
    with limits(ONE, TRUSTED_PROXIES=["127.0.0.1"]):
        for spoofed, status in (("1.1.1.1", 200), ("1.1.1.2", 429)):
            assert codes("/", **{"x-forwarded-for": f"{spoofed}, 198.51.100.7"}) == [status]


def test_redis_down_is_not_a_500() -> None:
    """Open by default, 503 where the settings say closed."""
    require("valkey")
    with Valkey() as server:
        url = f"{server.url}?timeout_ms=200"
        server.kill()
        for fail, status in (("open", 200), ("closed", 503)):
            with limits(ONE, STORE=url, FAIL=fail):
                assert codes("/", "/no/") == [status, 404 if fail == "open" else 503]


def test_a_limit_holds_in_real_servers() -> None:
    """Threads of a WSGI server, and uvicorn."""
    with (
        limits(TWO),
        threaded(get_wsgi_application()) as url,
        httpx.Client(base_url=url) as client,
    ):
        assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]
    with (
        limits(TWO),
        serving(get_asgi_application(), lifespan="off") as url,
        httpx.Client(base_url=url) as client,
    ):
        assert [client.get("/later/").status_code for _ in range(3)] == [200, 200, 429]
        assert client.get("/stream/").headers["content-type"] == "application/problem+json"


def test_the_command_lists_shows_and_resets() -> None:
    """A key as the headers name it; hashed where keys are."""

    def run(*words: str) -> str:
        out = io.StringIO()
        call_command("penstock", *words, stdout=out)
        return out.getvalue()

    for options in ({}, {"HASH_KEYS": "a secret that nobody knows"}):
        with limits(TWO, **options):
            assert codes("/", "/", "/") == [200, 200, 429]
            listed = run("list")
            assert "app: 2 a day" in listed
            assert "search: 2 a day" in listed
            assert f"{project.__name__}.Orders.post: 1 a day" in listed
            assert "has 0 of 2 left" in run("show", "app", "127.0.0.1")
            assert "127.0.0.1 starts afresh" in run("reset", "app", "127.0.0.1")
            for action in ("show", "reset"):
                for key in ("127.0.0.1", "127.0.0.9"):
                    assert f"there is no state for {key}" in run(action, "app", key)
            assert codes("/") == [200]
            with pytest.raises(CommandError, match="there is no limit 'none'; there are app"):
                run("show", "none", "127.0.0.1")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"LIMITS": ["5 per minute"]}, "did you mean '5/minute'"),
        ({"LIMIT": "5/minute"}, "there is no option 'limit'"),
        ({"store": None}, "are in capitals"),
        ({"KEY": "no.such.function"}, "cannot be imported"),
        ({"FAIL": "shut"}, "fail must be"),
        ([], "must be a dict"),
    ],
)
def test_mistakes_in_settings_are_found_by_the_check_and_by_the_middleware(
    given: Any, message: str
) -> None:
    """The check does not open the store."""
    with override_settings(PENSTOCK=given):
        (found,) = check_settings(None)
        assert found.id == "penstock.E001"
        with pytest.raises(ConfigInvalidError, match=message):
            Client().get("/")


def test_the_check_warns_of_memory_in_production() -> None:
    """Each process would have a limit of its own."""
    with limits(ONE):
        assert [found.id for found in check_settings(None)] == ["penstock.W001"]
    with limits(ONE, STORE="redis://localhost:1"):
        assert check_settings(None) == []


def test_mistakes_in_decorators_are_told_at_once() -> None:
    """When the module is imported."""
    with pytest.raises(ConfigInvalidError, match="a limit must be given"):
        rate_limited()
    with pytest.raises(ConfigInvalidError, match="decorates a view, not 'view'"):
        rate_limited(Rule(ONE))("view")
