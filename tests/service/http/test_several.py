"""Several limits, charges, pauses and resets over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import Decision, Limit, Limits, ManualClock, Verdict
from penstock.adapters import verdict_headers
from penstock.config import parse_policies
from penstock.service.http._charge_calls import VerdictForm
from tests.service.several import FILE
from tests.support.helpers import NOW

from .serving import Client, InProcessServer, Reply

TOKEN = "a-token-of-operators"


class Operator(Client):
    """Who has the token."""

    def post(self, path: str, body: Any, **headers: str) -> Reply:
        return super().post(path, body, Authorization=f"Bearer {TOKEN}", **headers)


@pytest.fixture
def client() -> Iterator[Client]:
    policies = [*parse_policies(FILE, "test").policies.values()]
    with InProcessServer(policies=policies, clock=ManualClock(NOW), token=TOKEN) as server:
        made = Operator(server.port)
        yield made
        made.close()


def check(client: Client, cost: int | None = None, **attributes: Any) -> Reply:
    body = {"policy": "api", "attributes": attributes}
    return client.post("/v1/check", body if cost is None else {**body, "cost": cost})


def test_the_answer_carries_the_verdict(client: Client) -> None:
    """The decision that binds, what each limit said, and who denied."""
    for _ in range(3):
        reply = check(client, user="bob", tenant="acme")
    assert reply.json == {
        "decision": decision(True, 0, 3),
        "limits": {
            "user": decision(True, 0, 3),
            "tenant": decision(True, 2, 5),
            "all": decision(True, 97, 100),
        },
        "binding": "user",
        "violated": [],
        "shadowed": [],
        "shadows": ["all"],
    }
    denied = check(client, user="bob", tenant="acme")
    assert denied.status == 200
    assert (denied.json["violated"], denied.json["binding"]) == (["user"], "user")


def test_many_requests_are_one_call(client: Client) -> None:
    """One verdict each, in order; a request that is wrong charges none of them."""
    each = [{"user": "bob"}, {"user": "bob", "tokens": 7}, {"user": "bob"}, {"user": "bob"}]
    body = {"policy": "api", "attributes": each}
    verdicts = client.post("/v1/check-many", body).json["verdicts"]
    assert [verdict["decision"]["allowed"] for verdict in verdicts] == [True, True, True, False]
    assert verdicts[1]["limits"]["tokens"] == decision(True, 993, 1_000)
    assert verdicts[3]["violated"] == ["user"]
    for wrong in ([{"user": "ann"}, {}], [{"user": "ann"}, 3], [{"user": ["ann"]}], {"user": "a"}):
        refused = client.post("/v1/check-many", {"policy": "api", "attributes": wrong})
        assert (refused.status, refused.json["code"]) == (400, "config_invalid")
    twice = client.post("/v1/check-many", {"policy": "api", "attributes": [{}], "keys": ["a"]})
    assert "unknown field 'keys'" in twice.json["detail"]
    assert check(client, user="ann").json["limits"]["user"] == decision(True, 2, 3)


def test_costs_are_told_by_limit(client: Client) -> None:
    """Beside the cost of the others; what is wrong with them charges nothing."""
    body = {"policy": "api", "attributes": {"user": "u"}}
    for path in ("/v1/check", "/v1/reserve", "/v1/forecast"):
        for costs, told in (
            ({"colour": 1}, "there is no limit 'colour' in policy 'api'; there are user, tenant"),
            ({"tenant": 1}, "but its key, the attribute 'tenant', is missing"),
            ({"user": -1}, "the cost of 'user' must be"),
            ({"user": "1"}, "the cost of 'user' must be"),
            ([1], "costs must be an object"),
        ):
            refused = client.post(path, {**body, "costs": costs})
            assert (refused.status, refused.json["code"]) == (400, "config_invalid")
            assert told in refused.json["detail"]
    one = client.post("/v1/check", {"policy": "one", "key": "k", "costs": {"one": 1}})
    assert "neither attributes nor costs" in one.json["detail"]
    reply = client.post("/v1/check", {**body, "cost": 2, "costs": {"tokens": 300}})
    left = {name: told["remaining"] for name, told in reply.json["limits"].items()}
    assert left == {"user": 1, "tokens": 700, "all": 98}
    staff = {"policy": "api", "attributes": {"user": "u", "plan": "staff"}, "costs": {"user": 9}}
    assert list(client.post("/v1/check", staff).json["limits"]) == ["all"]


def test_a_cost_that_no_store_could_answer_is_the_callers_mistake(client: Client) -> None:
    """And no outage, in which a policy would let it in: a request holds one slot, and a forecast
    is of a cost."""
    for body in ({"cost": 2}, {"costs": {"flight": 2}}):
        refused = client.post("/v1/reserve", {"policy": "key", "key": "k", **body})
        assert (refused.status, refused.json["code"]) == (400, "config_invalid")
        assert "holds one slot of the limit 'flight'" in refused.json["detail"]
    free = {"policy": "api", "attributes": {"user": "u", "tokens": 0}}
    refused = client.post("/v1/forecast", free)
    assert (refused.status, refused.json["code"]) == (400, "config_invalid")
    assert "must be at least 1, and is 0 for tokens" in refused.json["detail"]
    reserved = client.post("/v1/reserve", {"policy": "key", "key": "k", "costs": {"each": 2}})
    assert {name: told["remaining"] for name, told in reserved.json["limits"].items()} == {
        "each": 0,
        "flight": 0,
    }
    again = client.post("/v1/reserve", {"policy": "key", "key": "j", "costs": {"flight": 0}})
    assert again.json["limits"]["flight"]["remaining"] == 1, "nothing of it is held"


def decision(allowed: bool, remaining: int, limit: int) -> dict[str, Any]:
    end = NOW - NOW % 60_000 + 60_000
    retry = 0 if allowed else end - NOW
    told = {"allowed": allowed, "remaining": remaining, "limit": limit}
    return {**told, "reset_at": end, "retry_after_ms": retry}


def test_headers_list_every_limit_the_binding_one_first(client: Client) -> None:
    """A plan's figures are told as they are; a shadow, which restricts nobody, is not."""
    reply = check(client, user="bob", tenant="acme", plan="pro")
    assert reply.headers["ratelimit-policy"] == '"tenant";q=5;w=60, "user";q=10;w=60'
    left = -(-(60_000 - NOW % 60_000) // 1000)
    assert reply.headers["ratelimit"] == f'"tenant";r=4;t={left}, "user";r=9;t={left}'
    assert "retry-after" not in reply.headers
    denied = check(client, user="bob", cost=6)
    assert denied.headers["retry-after"] == str(left)


def test_peek_and_forecast_take_attributes(client: Client) -> None:
    check(client, user="u")
    asked = {"policy": "api", "attributes": {"user": "u"}}
    assert client.post("/v1/peek", asked).json["limits"]["user"]["remaining"] == 2
    assert client.post("/v1/forecast", asked).json["forecast"]["spendable_now"] == 2


def test_a_key_alone_asks_the_limits_that_are_by_key(client: Client) -> None:
    """On every path that takes a policy and a key."""
    reply = client.post("/v1/reserve", {"policy": "key", "key": "k"})
    assert reply.json["limits"]["each"]["remaining"] == 1
    refused = client.post("/v1/check", {"policy": "api", "key": "k"})
    assert refused.status == 400
    assert "has no attribute 'key'" in refused.json["detail"]


@pytest.mark.parametrize("path", ["/v1/check", "/v1/peek", "/v1/forecast"])
def test_a_policy_is_asked_by_its_limits_where_nothing_is_said(client: Client, path: str) -> None:
    """What is missing is an attribute, if the policy has some, and not a key."""
    missing = client.post(path, {"policy": "api"})
    assert (missing.status, missing.json["code"]) == (400, "config_invalid")
    assert "the attribute 'user' is missing" in missing.json["detail"]
    assert client.post(path, {"policy": "everybody"}).status == 200
    assert "key is missing" in client.post(path, {"policy": "one"}).json["detail"]
    assert "policy must be" in client.post(path, {"policy": ["api"]}).json["detail"]


def test_what_was_reserved_is_settled_once(client: Client) -> None:
    attributes = {"user": "u", "tokens": 900}
    reserved = client.post("/v1/reserve", {"policy": "api", "attributes": attributes}).json
    assert reserved["decision"]["allowed"]
    assert reserved["starts_at"] == NOW
    told = {"charge_id": reserved["charge_id"], "actual": {"tokens": 100}}
    assert client.post("/v1/settle", told).json == {"settled": True}
    assert client.post("/v1/settle", told).json == {"settled": False}
    assert client.post("/v1/cancel", {"charge_id": told["charge_id"]}).json == {"cancelled": False}
    left = client.post("/v1/peek", {"policy": "api", "attributes": {"user": "u", "tokens": 0}})
    assert left.json["limits"]["tokens"]["remaining"] == 900


def test_a_slot_is_renewed_and_given_back(client: Client) -> None:
    charge = client.post("/v1/reserve", {"policy": "key", "key": "k"}).json["charge_id"]
    assert client.post("/v1/renew", {"charge_id": charge}).json == {"held": True}
    denied = client.post("/v1/reserve", {"policy": "key", "key": "k"}).json
    assert (denied["violated"], denied["charge_id"]) == (["flight"], "")
    assert client.post("/v1/cancel", {"charge_id": charge}).json == {"cancelled": True}
    assert client.post("/v1/renew", {"charge_id": charge}).json == {"held": False}


def test_pause_and_reset_are_obeyed(client: Client) -> None:
    body = {"policy": "api", "attributes": {"user": "u"}}
    assert client.post("/v1/pause", {**body, "until_ms": NOW + 30_000}).json == {}
    assert check(client, user="u").json["violated"] == ["user"]
    assert client.post("/v1/reset", body).json == {}
    assert check(client, user="u").json["decision"]["allowed"]


def test_pause_and_reset_need_a_token() -> None:
    """Also where everything else may be asked without one."""
    policies = [*parse_policies(FILE, "test").policies.values()]
    with InProcessServer(policies=policies) as server:
        client = Client(server.port)
        assert client.post("/v1/check", {"policy": "one", "key": "k"}).status == 200
        for path in ("/v1/pause", "/v1/reset"):
            refused = client.post(path, {"policy": "one", "key": "k", "until_ms": 1})
            assert (refused.status, refused.json["code"]) == (401, "unauthorized")
            assert "--token-file" in refused.json["detail"]
        client.close()


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/v1/check", {"policy": "api", "attributes": []}, "attributes must be an object"),
        ("/v1/check", {"policy": "api", "attributes": {"user": None}}, "must be a string or an"),
        ("/v1/check", {"policy": "api", "attributes": {"user": 1.5}}, "must be a string or an"),
        ("/v1/check", {"policy": "api", "attributes": {}}, "'user' is missing"),
        (
            "/v1/check",
            {"policy": "api", "attributes": {"user": ""}},
            "'user': key must not be empty",
        ),
        ("/v1/check", {"policy": "api", "attributes": {"user": 5}}, "'user': key must be a string"),
        ("/v1/check", {"policy": "api", "attributes": {"user": "u" * 4097}}, "at most 4096 bytes"),
        ("/v1/check", {"policy": "api", "attributes": {"user": "u", "x": "y"}}, "no attribute 'x'"),
        ("/v1/check", {"policy": "api", "attributes": {"user": "u", "plan": "g"}}, "no plan 'g'"),
        ("/v1/check", {"policy": "api", "attributes": {"user": "u", "plan": ""}}, "empty name"),
        ("/v1/check", {"policy": "everybody", "key": "k"}, "has none, and is asked without a key"),
        (
            "/v1/check",
            {"policy": "one", "attributes": {"user": "u"}},
            "has a single limit: pass a key",
        ),
        ("/v1/reserve", {"policy": "one"}, "key must be a string"),
        ("/v1/settle", {"charge_id": "x"}, "actual must be an integer"),
        ("/v1/settle", {"charge_id": "x", "actual": -1}, "actual must be"),
        ("/v1/settle", {"charge_id": "x", "actual": 1}, "not a charge id"),
        ("/v1/pause", {"policy": "one", "key": "k"}, "until_ms is missing"),
        ("/v1/reset", {"policy": "api", "limits": [1]}, "limits must be a list of strings"),
    ],
)
def test_what_is_wrong_is_told(client: Client, path: str, body: Any, told: str) -> None:
    reply = client.post(path, body)
    assert (reply.status, reply.json["code"]) == (400, "config_invalid")
    assert told in reply.json["detail"]
    left = check(client, user="u").json["limits"]
    assert (left["user"]["remaining"], left["all"]["remaining"]) == (2, 99), "nothing was charged"


def test_metrics_tell_each_limit_and_shadows_apart(client: Client) -> None:
    check(client, user="u")
    text = client.get("/metrics", Authorization=f"Bearer {TOKEN}").body.decode()
    assert 'penstock_decisions_total{policy="api",outcome="allowed"} 1' in text
    name = "penstock_limit_decisions_total"
    assert f'{name}{{policy="api",limit="user",shadow="false",outcome="allowed"}} 1' in text
    assert f'{name}{{policy="api",limit="all",shadow="true",outcome="allowed"}} 1' in text
    assert "api/user" not in text


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("peeked", [False, True])
def test_headers_are_those_that_a_program_would_make(legacy: bool, peeked: bool) -> None:
    """The form in which verdicts are put into words, and `verdict_headers`."""
    limits = Limits(
        {
            "user": "3/minute",
            "all": Limit("100/hour", keyless=True),
            "dark": Limit("2/minute", shadow=True),
        },
        clock=ManualClock(NOW),
    )
    form = VerdictForm(limits.limits)
    for _ in range(5):
        verdict = limits.check({"user": "u", "dark": "u"})
        made = verdict_headers(limits, verdict, NOW, peeked=peeked, legacy=legacy)
        lines = "".join(f"{name}: {value}\r\n" for name, value in made.items())
        assert form.headers(verdict, NOW, peeked, legacy) == lines
        told = json.loads(form.body(verdict))
        assert told["binding"] == verdict.binding
        assert (told["violated"], told["shadowed"]) == (
            list(verdict.violated),
            list(verdict.shadowed),
        )
        assert {name: each["remaining"] for name, each in told["limits"].items()} == {
            name: each.remaining for name, each in verdict.limits.items()
        }


def test_limits_of_which_all_answered_the_same_are_listed_in_their_order() -> None:
    """As where a fail mode answers in the place of a store that is away."""
    limits = Limits({"user": "3/minute", "tenant": "9/minute", "all": "100/hour"})
    decision = Decision(False, 3, 0, NOW + 5_000, 5_000)
    verdict = Verdict(tuple(limits.limits), (decision,) * 3, (False,) * 3)
    made = verdict_headers(limits, verdict, NOW)
    lines = "".join(f"{name}: {value}\r\n" for name, value in made.items())
    assert VerdictForm(limits.limits).headers(verdict, NOW, False, False) == lines
