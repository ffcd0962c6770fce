"""The same rules in every web framework: what `on_denied` may return, and what headers state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from fastapi import Depends, FastAPI

from tests.integrations import django_project as project

from django.test import AsyncClient, Client, override_settings  # isort: skip

from penstock.integrations import Rule
from penstock.integrations.fastapi import RateLimit, install
from tests.integrations import test_aiohttp, test_flask, test_litestar, test_quart
from tests.integrations.asgi_app import starlette
from tests.integrations.serving import FIVE, ONE, TWO, client_of, left, members


class Told(NamedTuple):
    """A response."""

    status: int
    headers: dict[str, str]
    """By their names in lower case."""


Ask = Callable[..., list[Told]]
"""The responses to so many requests for a path, by rules and options."""


def _told(status: int, headers: Any) -> Told:
    return Told(status, {name.lower(): value for name, value in headers})


def _asgi(app: Any, path: str, times: int) -> list[Told]:
    with client_of(app) as client:
        answers = [client.get(path) for _ in range(times)]
    return [_told(answer.status_code, answer.headers.items()) for answer in answers]


def in_flask(rules: list[Any], path: str, times: int, **options: Any) -> list[Told]:
    app, _ = test_flask.made(*rules, **options)
    answers = [app.test_client().get(path) for _ in range(times)]
    return [_told(answer.status_code, answer.headers.items()) for answer in answers]


def in_quart(rules: list[Any], path: str, times: int, **options: Any) -> list[Told]:
    return _asgi(test_quart.made(*rules, **options)[0], path, times)


def in_asgi(rules: list[Any], path: str, times: int, **options: Any) -> list[Told]:
    return _asgi(starlette(*rules, **options), path, times)


def in_fastapi(rules: list[Any], path: str, times: int, **options: Any) -> list[Told]:
    app = FastAPI()
    install(app, **options)

    @app.get(path, dependencies=[Depends(_as_dependency(rule)) for rule in rules])
    def home() -> str:
        return "home"

    return _asgi(app, path, times)


def _as_dependency(rule: Any) -> RateLimit:
    if isinstance(rule, str):
        return RateLimit(rule)
    options = {"name": rule.name, "charge_when": rule.charge_when, "cost": rule.cost}
    return RateLimit(rule.limit.strategy, **options)


def in_litestar(rules: list[Any], path: str, times: int, **options: Any) -> list[Told]:
    return _asgi(test_litestar.limited(*rules, **options), path, times)


def in_aiohttp(rules: list[Any], path: str, times: int, **options: Any) -> list[Told]:
    async def ask() -> list[Told]:
        async with test_aiohttp.client_of(test_aiohttp.limited(*rules, **options)) as client:
            answers = [await client.get(path) for _ in range(times)]
            return [_told(answer.status, answer.headers.items()) for answer in answers]

    return asyncio.run(ask())


def _settings(rules: list[Any], options: dict[str, Any]) -> Any:
    given = {name.upper(): value for name, value in options.items()}
    return override_settings(PENSTOCK={"LIMITS": rules, **given})


def in_django(rules: list[Any], path: str, times: int, **options: Any) -> list[Told]:
    with _settings(rules, options):
        client = Client()
        answers = [client.get(path) for _ in range(times)]
    return [_told(answer.status_code, answer.items()) for answer in answers]


def in_async_django(rules: list[Any], path: str, times: int, **options: Any) -> list[Told]:
    async def ask() -> list[Any]:
        client = AsyncClient()
        return [await client.get(path) for _ in range(times)]

    with _settings(rules, options):
        answers = asyncio.run(ask())
    return [_told(answer.status_code, answer.items()) for answer in answers]


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    """The settings of Django are those of the process."""
    assert project.settings.configured
    with override_settings(PENSTOCK={"LIMITS": []}):
        yield


FRAMEWORKS = [
    *(in_flask, in_quart, in_asgi, in_fastapi, in_litestar, in_aiohttp, in_django),
    in_async_django,
]
every_framework = pytest.mark.parametrize(
    "ask", FRAMEWORKS, ids=[each.__name__ for each in FRAMEWORKS]
)


def no_answer(request: Any, verdict: Any) -> None:
    """Records a denial, say, and leaves the response to the limits."""


async def no_answer_later(request: Any, verdict: Any) -> None:
    """The same, awaited."""


@every_framework
@pytest.mark.parametrize("on_denied", [no_answer, no_answer_later])
def test_on_denied_that_returns_none_means_the_standard_refusal(ask: Ask, on_denied: Any) -> None:
    answers = ask([ONE], "/", 3, on_denied=on_denied)
    assert [answer.status for answer in answers] == [200, 429, 429]
    refusal = answers[-1].headers
    assert int(refusal["retry-after"]) > 1
    assert refusal["ratelimit"].endswith(f";r=0;t={refusal['retry-after']}")
    assert refusal["content-type"] == "application/problem+json"


@every_framework
def test_a_refusal_states_what_limits_that_would_have_admitted_have_left(ask: Ask) -> None:
    answers = ask([Rule(FIVE, name="five"), Rule(TWO, name="two")], "/", 4)
    assert [answer.status for answer in answers] == [200, 200, 429, 429]
    fields = [answer.headers["ratelimit"] for answer in answers]
    assert members(fields[-1]) == ["two", "five"]
    assert [left(field, "five") for field in fields] == [4, 3, 3, 3]


@every_framework
def test_headers_state_what_is_left_after_charge_when_has_refunded(ask: Ask) -> None:
    """The limit beside it, without a `charge_when`, states its charge."""
    free = Rule(TWO, name="free", charge_when=lambda response: False)
    answers = ask([free, Rule(FIVE, name="paid")], "/", 3)
    assert [answer.status for answer in answers] == [200] * 3
    assert [left(answer.headers["ratelimit"], "free") for answer in answers] == [2, 2, 2]
    assert [left(answer.headers["ratelimit"], "paid") for answer in answers] == [4, 3, 2]


streaming = [each for each in FRAMEWORKS if each is not in_fastapi]


@pytest.mark.parametrize("ask", streaming, ids=[each.__name__ for each in streaming])
def test_headers_of_a_stream_state_what_is_left_after_charge_when_has_refunded(ask: Ask) -> None:
    """They are sent before the stream begins, and its status is known by then."""
    path = "/stream/" if ask in (in_django, in_async_django) else "/stream"
    answers = ask([Rule(TWO, name="free", charge_when=lambda response: False)], path, 3)
    assert [answer.status for answer in answers] == [200] * 3
    assert [left(answer.headers["ratelimit"], "free") for answer in answers] == [2, 2, 2]


@every_framework
def test_a_request_of_cost_0_is_never_denied_and_shows_what_is_left(ask: Ask) -> None:
    costs = iter((1, 0, 1, 0))
    rule = Rule(TWO, name="two", cost=lambda request: next(costs))
    answers = ask([rule], "/", 4)
    assert [answer.status for answer in answers] == [200] * 4
    assert [left(answer.headers["ratelimit"], "two") for answer in answers] == [1, 1, 0, 0]
