"""Throttle classes in views of Django REST framework."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

from tests.integrations import django_project as project

from django.core.management import CommandError, call_command  # isort: skip
from django.test import Client, override_settings  # isort: skip
from django.urls import path  # isort: skip
from rest_framework.decorators import api_view  # isort: skip
from rest_framework.exceptions import NotFound, Throttled  # isort: skip
from rest_framework.response import Response  # isort: skip
from rest_framework.test import APIRequestFactory  # isort: skip
from rest_framework.views import APIView  # isort: skip
from rest_framework.viewsets import ViewSet  # isort: skip

from penstock import ConfigInvalidError, rate_limit, slots
from penstock.integrations import Rule
from penstock.integrations.django import rate_limited
from penstock.integrations.drf import AnonThrottle, LimitThrottle, ScopedThrottle, UserThrottle
from tests.integrations.serving import left, members
from tests.servers import Valkey, require

ALONE = ["tests.integrations.django_project.logged_in"]


class Base(APIView):
    def perform_authentication(self, request: Any) -> None:
        """As the header says, which `logged_in` has read."""
        request.user = getattr(request._request, "user", None)

    def get(self, request: Any) -> Response:
        if "missing" in request.GET:
            raise NotFound
        return Response({"left": request._request.rate_limit.remaining})


class Both(Base):
    throttle_classes = (AnonThrottle, UserThrottle)


class Uploads(Base):
    throttle_classes = (ScopedThrottle, UserThrottle)
    throttle_scope = "uploads"


class Fast(LimitThrottle):
    scope = "fast"
    rate = "1/day"


class Own(Base):
    throttle_classes = (Fast,)


class Wordless(Base):
    throttle_classes = (Fast,)

    def throttled(self, request: Any, wait: Any) -> NoReturn:
        raise Throttled

    def get(self, request: Any) -> Response:
        return Response({})


class Unscoped(Base):
    throttle_classes = (ScopedThrottle,)

    def get(self, request: Any) -> Response:
        return Response({})


@api_view(["GET"])
@rate_limited("1/day")
def below(request: Any) -> Response:
    return Response({"left": request.rate_limit.remaining})


@rate_limited("1/day")
@api_view(["GET"])
def above(request: Any) -> Response:
    return Response({"left": request.rate_limit.remaining})


@rate_limited("1/day")
@api_view(["GET"])
def another(request: Any) -> Response:
    return Response({})


class Shelf(ViewSet):
    @rate_limited("1/day")
    def list(self, request: Any) -> Response:
        return Response([])


urlpatterns = [
    path("both/", Both.as_view()),
    path("uploads/", Uploads.as_view()),
    path("own/", Own.as_view()),
    path("wordless/", Wordless.as_view()),
    path("unscoped/", Unscoped.as_view()),
    path("below/", below),
    path("above/", above),
    path("another/", another),
    path("shelf/", Shelf.as_view({"get": "list"})),
]


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    with override_settings(ROOT_URLCONF=__name__, PENSTOCK={}, MIDDLEWARE=ALONE):
        yield


def ask(where: str, user: str = "", **query: str) -> Any:
    headers = {"x-user": user} if user else {}
    return Client(headers=headers).get(where, query)


def test_rates_come_from_the_settings_and_a_refusal_is_429() -> None:
    """Two a day for a user, five for an address."""
    answers = [ask("/both/", "alice") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert int(answers[2]["Retry-After"]) > 1
    assert "Expected available in" in answers[2].json()["detail"]
    assert [ask("/both/").status_code for _ in range(3)] == [200, 200, 429]


def test_a_long_wait_is_in_words_and_its_header_in_seconds() -> None:
    """A view with its own `throttled` keeps it."""
    denied = [ask("/own/") for _ in range(2)][1]
    assert denied.json() == {"detail": "Request was throttled. Expected available in 24 hours."}
    assert 86_000 < int(denied["Retry-After"]) <= 86_400
    answer = [ask("/wordless/") for _ in range(2)][1]
    assert answer.json() == {"detail": "Request was throttled."}


def test_all_throttles_of_a_view_are_one_decision() -> None:
    """What the scope denies is not charged to the user."""
    assert [ask("/uploads/", "alice").status_code for _ in range(4)] == [200, 429, 429, 429]
    answer = ask("/both/", "alice")
    assert answer.status_code == 200
    assert left(answer["RateLimit"], "user") == 0


@pytest.mark.parametrize("path", ["below", "above", "shelf"])
@pytest.mark.parametrize("place", ["middleware", "alone"])
def test_decorated_views_of_the_framework_are_limited(path: str, place: str) -> None:
    """Above `api_view` or below, and in a set of views; with the limits of the settings, which are
    told, too, and which get back what the view denies."""
    more = ["penstock.integrations.django.LimitMiddleware"] if place == "middleware" else []
    name = {"shelf": "Shelf.list"}.get(path, path)
    with override_settings(PENSTOCK={"LIMITS": ["9/day"]}, MIDDLEWARE=[*ALONE, *more]):
        answers = [ask(f"/{path}/") for _ in range(3)]
        other = ask("/another/")
    assert [answer.status_code for answer in answers] == [200, 429, 429]
    assert int(answers[2]["Retry-After"]) > 1
    assert left(answers[0]["RateLimit"], f"{__name__}.{name}") == 0
    assert other.status_code == 200
    if more:
        assert left(other["RateLimit"], "app") == 7


def test_the_command_knows_the_throttles_by_their_scopes() -> None:
    """And what is decorated beside them."""

    def run(*words: str) -> str:
        out = io.StringIO()
        call_command("penstock", *words, stdout=out)
        return out.getvalue()

    ask("/both/", "alice")
    listed = run("list")
    for line in ("user: 2 a day", "fast: 1 a day", f"{__name__}.above: 1 a day"):
        assert line in listed
    assert "has 1 of 2 left" in run("show", "user", "user alice")
    run("reset", "user", "user alice")
    assert "there is no state for user alice" in run("show", "user", "user alice")
    with (
        override_settings(PENSTOCK={"LIMITS": [Rule(rate_limit("1/day"), name="made")]}),
        pytest.raises(CommandError, match="'made' is a limiter that the project has made"),
    ):
        run("show", "made", "alice")


def test_headers_are_on_every_answer_of_the_view() -> None:
    """On errors and refusals, the limit that binds first; without a middleware and with one."""
    middleware = [*ALONE, "penstock.integrations.django.LimitMiddleware"]
    for user, settings, names in (
        ("alice", {"MIDDLEWARE": ALONE}, ["uploads", "user"]),
        ("bob", {"MIDDLEWARE": middleware}, ["uploads", "user", "app"]),
    ):
        with override_settings(PENSTOCK={"LIMITS": ["9/day"]}, **settings):
            missing = ask("/uploads/", user, missing="yes")
            denied = ask("/uploads/", user)
        assert (missing.status_code, denied.status_code) == (404, 429)
        for answer in (missing, denied):
            assert members(answer["RateLimit"]) == names
        assert f"t={denied['Retry-After']}" in denied["RateLimit"].split(",")[0]


def test_throttles_of_ones_own_have_a_rate_and_the_view_reads_the_verdict() -> None:
    """By address, unless they say otherwise."""
    first = ask("/own/")
    assert first.json() == {"left": 0}
    assert ask("/own/", "alice").status_code == 429
    assert [ask("/unscoped/").status_code for _ in range(3)] == [200] * 3


def test_redis_down_is_not_a_500() -> None:
    """Open by default; where the settings say closed, try again in a second."""
    require("valkey")
    with Valkey() as server:
        url = f"{server.url}?timeout_ms=200"
        server.kill()
        with override_settings(PENSTOCK={"STORE": url}):
            assert ask("/unscoped/").status_code == 200
            assert ask("/uploads/?missing").status_code == 404
        with override_settings(PENSTOCK={"STORE": url, "FAIL": "closed"}):
            answer = ask("/own/")
    assert (answer.status_code, answer["Retry-After"]) == (429, "1")


def test_mistakes_are_told() -> None:
    """A scope without a rate, two of one name, slots."""

    class Lost(LimitThrottle):
        scope = "lost"

    class Held(LimitThrottle):
        scope = "held"
        rate = slots(1)

    for throttles, message in (
        ([Lost], "there is no rate for the scope 'lost'"),
        ([Fast, Fast], "two throttles of .* have the scope 'fast'"),
        ([Held], "a throttle cannot hold slots"),
    ):
        view = Base.as_view(throttle_classes=throttles)
        request = APIRequestFactory().get("/")
        with pytest.raises(ConfigInvalidError, match=message):
            view(request)


def test_the_project_is_the_one_of_the_tests() -> None:
    """A process has one set of settings; the rates above are its."""
    rates = project.settings.REST_FRAMEWORK["DEFAULT_THROTTLE_RATES"]
    assert rates == {"anon": "5/day", "user": "2/day", "uploads": "1/day"}
