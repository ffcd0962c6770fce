"""A Django project for the tests: settings, views and URLs. A process has only one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

import django
from django.conf import settings

if not settings.configured:
    settings.configure(
        SECRET_KEY="for tests",
        DEBUG=False,
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF="tests.integrations.django_project",
        INSTALLED_APPS=[
            "django.contrib.contenttypes",
            "django.contrib.auth",
            "penstock.integrations.django",
        ],
        MIDDLEWARE=[
            "tests.integrations.django_project.logged_in",
            "penstock.integrations.django.LimitMiddleware",
        ],
        LOGGING_CONFIG=None,
        PENSTOCK={"LIMITS": ["5/day"]},
        REST_FRAMEWORK={
            "DEFAULT_THROTTLE_RATES": {"anon": "5/day", "user": "2/day", "uploads": "1/day"},
            "DEFAULT_AUTHENTICATION_CLASSES": [],
            "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
        },
    )
    django.setup()

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpResponse, JsonResponse, StreamingHttpResponse  # noqa: F401
from django.test import RequestFactory  # noqa: F401
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from penstock.integrations.django import by_user, rate_limited


class Somebody:
    """A user who is logged in."""

    is_authenticated = True

    def __init__(self, name: str) -> None:
        self.pk = name


class Logged:
    """Stands for authentication: the header `X-User` is believed."""

    sync_capable = async_capable = True

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: Any) -> Any:
        if name := request.headers.get("x-user"):
            request.user = Somebody(name)
        return self.get_response(request)


logged_in = Logged


def home(request: Any) -> HttpResponse:
    return HttpResponse("home")


_served = count()


def cached(request: Any) -> HttpResponse:
    return HttpResponse(str(next(_served)))


KEPT = HttpResponse("kept")


def kept(request: Any) -> HttpResponse:
    return KEPT


async def later(request: Any) -> HttpResponse:
    return HttpResponse("later")


async def waiting(request: Any) -> HttpResponse:
    await asyncio.sleep(60)
    return HttpResponse("nobody waits for this")


def seen(request: Any) -> JsonResponse:
    return JsonResponse({"remaining": request.rate_limit.remaining})


def stream(request: Any) -> StreamingHttpResponse:
    def chunks() -> Iterator[bytes]:
        yield b"one "
        yield b"two"

    return StreamingHttpResponse(chunks())


def forbidden(request: Any) -> None:
    raise PermissionDenied


def failing(request: Any) -> None:
    raise RuntimeError("nobody handles this")


@rate_limited("2/day", name="search")
def search(request: Any, word: str) -> HttpResponse:
    return HttpResponse(word)


@rate_limited("2/day", name="async-search")
async def async_search(request: Any) -> HttpResponse:
    return HttpResponse("found")


@rate_limited("4/day", name="all")
@rate_limited("1/day", name="writes", methods=["POST"])
def stacked(request: Any) -> HttpResponse:
    return HttpResponse(request.method)


@rate_limited("1/day", key=by_user)
class Profile(View):
    def get(self, request: Any) -> HttpResponse:
        return HttpResponse("profile")


@rate_limited("1/day", name="async-class")
class AsyncProfile(View):
    async def get(self, request: Any) -> HttpResponse:
        return HttpResponse("later")


class Orders(View):
    @method_decorator(rate_limited("2/day"))
    def get(self, request: Any) -> HttpResponse:
        return HttpResponse("orders")

    @rate_limited("1/day")
    def post(self, request: Any) -> HttpResponse:
        return HttpResponse("thanks")


class AsyncOrders(View):
    @rate_limited("1/day")
    async def get(self, request: Any) -> HttpResponse:
        return HttpResponse("orders")

    @rate_limited("1/day")
    async def post(self, request: Any) -> HttpResponse:
        return HttpResponse("thanks")


def as_json(view: Any) -> Any:
    """As libraries do that make responses of what their views return."""

    def shown(request: Any) -> HttpResponse:
        found = view(request)
        return found if isinstance(found, HttpResponse) else JsonResponse(found)

    return shown


@as_json
@rate_limited("1/day", name="data")
def data(request: Any) -> dict[str, int]:
    return {"number": 1}


def greeting(word: str, request: Any) -> HttpResponse:
    return HttpResponse(word)


class Account(View):
    @staticmethod
    def get(request: Any) -> HttpResponse:
        return HttpResponse("account")


async def account_of(request: Any) -> str:
    return str(request.headers["x-user"])


@rate_limited("2/day", name="login", key=account_of, charge_when=lambda r: r.status_code == 401)
def login(request: Any) -> HttpResponse:
    return HttpResponse(status=401 if "bad" in request.GET else 200)


urlpatterns = [
    path("", home),
    path("cached/", cached),
    path("kept/", kept),
    path("later/", later),
    path("waiting/", waiting),
    path("seen/", seen),
    path("stream/", stream),
    path("forbidden/", forbidden),
    path("failing/", failing),
    path("search/<word>/", search),
    path("async-search/", async_search),
    path("stacked/", stacked),
    path("profile/", Profile.as_view()),
    path("async-class/", AsyncProfile.as_view()),
    path("account/", rate_limited("1/day")(Account.as_view())),
    path("login/", login),
    path("data/", data),
    path("orders/", Orders.as_view()),
    path("async-orders/", AsyncOrders.as_view()),
    path("hello/", rate_limited("1/day")(partial(greeting, "hello"))),
]
