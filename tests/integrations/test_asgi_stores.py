"""Where an ASGI app keeps its counts: stores that are shared, away, or its own to close."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from penstock import Limit, Limits, MemoryStore, rate_limit, slots
from penstock.integrations import Rule, by_header
from tests.integrations.asgi_app import starlette
from tests.integrations.serving import FIVE, ONE, TWO, client_of, left, members, serving
from tests.servers import Valkey, require


@contextmanager
def dead_store() -> Iterator[str]:
    """The URL of a Redis that is gone."""
    require("valkey")
    with Valkey() as server:
        url = server.url
        server.kill()
        yield f"{url}?timeout_ms=200"


@pytest.mark.parametrize(("fail", "status"), [("open", 200), ("closed", 503), ("error", 500)])
def test_redis_down_is_what_the_fail_mode_says(
    fail: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """By default the site goes on; it is logged, and not with each request."""
    with (
        dead_store() as url,
        caplog.at_level(logging.WARNING, "penstock.integrations"),
        client_of(starlette(ONE, store=url, fail=fail)) as client,
    ):
        answers = [client.get("/") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [status] * 3
    told = [record for record in caplog.records if record.name == "penstock.integrations"]
    assert len(told) == (0 if fail == "error" else 1)
    if fail == "closed":
        assert answers[0].headers["retry-after"] == "1"
        assert answers[0].json()["type"].endswith("#temporary-reduced-capacity")
        assert answers[0].json()["code"] == "store_unavailable"


def test_two_servers_share_a_limit_on_redis() -> None:
    """And what is stored does not tell who asked."""
    require("valkey")
    with Valkey() as server:
        options: dict[str, Any] = {
            "store": f"{server.url}?timeout_ms=20000",
            "hash_keys": "a secret that nobody knows",
        }
        one, two = starlette(TWO, **options), starlette(TWO, **options)
        with (
            serving(one) as url,
            serving(two) as other,
            httpx.Client(base_url=url) as here,
            httpx.Client(base_url=other) as there,
        ):
            codes = [each.get("/").status_code for each in (here, there, here, there)]
        assert codes == [200, 200, 429, 429]
        keys: Any = server.call("KEYS", "*")
        assert len(keys) == 1
        assert "127.0.0.1" not in str(keys)
        assert str(keys[0]).startswith("web:app:")


def test_a_limiter_that_is_there_already_is_asked() -> None:
    """One, or several limits with a key for each, alone or beside others."""
    limiter = rate_limit(TWO)
    with client_of(starlette(limiter)) as client:
        assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]
    limits = Limits({"tenant": TWO, "all": Limit("3/day", keyless=True)})
    rule = Rule(limits, key={"tenant": by_header("x-tenant")})
    app = starlette(rule, Rule(FIVE, name="own"))
    with client_of(app) as client:
        codes = [client.get("/", headers={"x-tenant": name}).status_code for name in "aaabb"]
        answer = client.get("/", headers={"x-tenant": "c"})
    assert codes == [200, 200, 429, 200, 429]
    # Three were admitted; those that the given limits denied were given back to the app's own.
    assert members(answer.headers["ratelimit"])[0] == "all"
    assert left(answer.headers["ratelimit"], "own") == 2


def test_closed_gives_back_what_was_taken_when_a_limiter_beside_it_is_away() -> None:
    """The request is refused and charged nowhere."""
    store = MemoryStore()
    away = rate_limit("5/day", store="redis://127.0.0.1:1?timeout_ms=1000")
    rules = [
        Rule(Limit(slots(1, ttl_ms=3_600_000)), name="flight"),
        Rule(ONE, name="rate", charge_when=lambda response: True),
        Rule(away, name="away"),
    ]
    with away, client_of(starlette(*rules, store=store, fail="closed")) as client:
        assert [client.get("/").status_code for _ in range(2)] == [503, 503]
    with client_of(starlette(*rules[:2], store=store)) as client:
        assert client.get("/").status_code == 200


def test_a_store_that_was_opened_is_closed_when_the_app_shuts_down() -> None:
    """With the lifespan of the app; one that was given is left to its owner."""
    closed = []

    class Watched(MemoryStore):
        async def aclose(self) -> None:
            closed.append(self)
            await super().aclose()

    given = Watched()
    app = starlette(ONE, store=given)
    with serving(app):
        pass
    assert closed == []
    app.limits._owns_store = True
    with serving(app):
        pass
    assert closed == [given]
