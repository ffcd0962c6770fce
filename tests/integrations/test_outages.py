"""Rules on several stores, of which one is away or overloaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from flask import Flask

from penstock import (
    Decision,
    Limit,
    MemoryStore,
    OverloadedError,
    Store,
    Verdict,
    rate_limit,
    slots,
)
from penstock.adapters._headers import VerdictHeaders
from penstock.core._decision import DegradedDecision
from penstock.core._transform import Transform
from penstock.integrations import Rule
from penstock.integrations._ruling import Ruling, Telling
from penstock.integrations.flask import RateLimits
from tests.integrations.asgi_app import starlette
from tests.integrations.serving import FIVE, ONE, TWO, client_of, left
from tests.servers import RedisServer, Valkey, require

Get = Callable[[], Any]


@contextmanager
def flask_app(*limits: Any, **options: Any) -> Iterator[Get]:
    app = Flask(__name__)
    RateLimits(app, *limits, **options)
    app.add_url_rule("/", "home", lambda: "home")
    yield lambda: app.test_client().get("/")


@contextmanager
def asgi_app(*limits: Any, **options: Any) -> Iterator[Get]:
    with client_of(starlette(*limits, **options)) as client:
        yield lambda: client.get("/")


both = pytest.mark.parametrize("serve", [flask_app, asgi_app])


@pytest.fixture
def server() -> Iterator[RedisServer]:
    require("valkey")
    with Valkey() as started:
        yield started


def on_redis(server: RedisServer, rate: str) -> Any:
    return rate_limit(rate, store=f"{server.url}?timeout_ms=500")


@both
def test_a_rule_in_memory_decides_while_the_store_of_another_rule_is_away(
    serve: Any, server: RedisServer
) -> None:
    shared = on_redis(server, FIVE)
    rules = [Rule(TWO, name="own"), Rule(shared, name="shared")]
    with serve(*rules, store=MemoryStore()) as get:
        first = get()
        assert left(first.headers["ratelimit"], "shared") == 4
        server.kill()
        second = get()
        assert second.status_code == 200
        assert left(second.headers["ratelimit"], "own") == 0
        assert "shared" not in second.headers["ratelimit"]
        assert [get().status_code for _ in range(2)] == [429, 429]
    shared.close()


@both
def test_a_ready_made_limiter_decides_while_the_store_of_the_app_is_away(
    serve: Any, server: RedisServer
) -> None:
    rules = [Rule(FIVE, name="own"), Rule(rate_limit(TWO), name="ready")]
    with serve(*rules, store=f"{server.url}?timeout_ms=500") as get:
        assert get().status_code == 200
        server.kill()
        assert [get().status_code for _ in range(3)] == [200, 429, 429]


@both
def test_a_denial_stands_if_earlier_charges_cannot_be_given_back(
    serve: Any, server: RedisServer
) -> None:
    """The store of the first rule is killed between its charge and the denial of the second."""

    class Killing(Store):
        def apply(self, key: str, transform: Transform[Any], now: int, cost: int) -> Any:
            server.kill()
            return Decision(False, 1, 0, now + 1_000, 1_000)

        async def aapply(self, key: str, transform: Transform[Any], now: int, cost: int) -> Any:
            return self.apply(key, transform, now, cost)

    rules = [Rule(FIVE, name="own"), Rule(rate_limit(ONE, store=Killing()), name="ready")]
    with serve(*rules, store=f"{server.url}?timeout_ms=500") as get:
        assert get().status_code == 429


@both
def test_requests_pass_unlimited_only_if_every_store_is_away(
    serve: Any, server: RedisServer
) -> None:
    rules = [Rule(Limit(slots(1)), name="own"), Rule(on_redis(server, ONE), name="shared")]
    server.kill()
    with serve(*rules, store=f"{server.url}?timeout_ms=500") as get:
        assert [get().status_code for _ in range(3)] == [200, 200, 200]


class Overloaded(Store):
    def apply(self, key: str, transform: Transform[Any], now: int, cost: int) -> Any:
        raise OverloadedError("no reply in time, because more is asked than it can answer")

    async def aapply(self, key: str, transform: Transform[Any], now: int, cost: int) -> Any:
        return self.apply(key, transform, now, cost)


@both
@pytest.mark.parametrize("fail", ["open", "closed", "error"])
@pytest.mark.parametrize("beside", [[], [Rule(rate_limit(FIVE), name="ready")]])
def test_overload_refuses_a_request_in_every_fail_mode(serve: Any, fail: str, beside: Any) -> None:
    with serve(Rule(FIVE, name="own"), *beside, store=Overloaded(), fail=fail) as get:
        answer = get()
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    told = answer.json() if callable(answer.json) else answer.json
    if told is not None:
        assert told["code"] == "overloaded"


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_ruling_names_the_fail_mode_that_decided_for_some_limit(is_closed: bool) -> None:
    telling = Telling(
        VerdictHeaders({}), lambda: 0, headers=True, legacy=False, is_closed=is_closed
    )
    decision = Decision(True, 1, 0, 1_000, 0)
    asked = Verdict(("own",), (decision,), (False,))
    degraded = Verdict(("own",), (DegradedDecision.of("open", decision),), (False,))
    assert Ruling(telling, asked).degraded is None
    assert Ruling(telling, degraded).degraded == "open"
    mode = "closed" if is_closed else "open"
    by_mode = Verdict(("shared",), (DegradedDecision.by(mode, 1, 0),), (False,))
    assert Ruling(telling, asked, left_out=by_mode).degraded == mode
    assert Ruling(telling, None, left_out=by_mode).degraded == mode
    assert Ruling(telling, None, is_overloaded=True).degraded is None
