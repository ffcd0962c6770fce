"""What the paths that decide answer: status, body and headers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock import ManualClock
from penstock.config import parse_policies
from tests.service.worlds import FILE

from .serving import Client, InProcessServer

NOW = 1_700_000_040_000
INLINE = {"key": "alice", "limit": 2, "window_ms": 60_000}
POLICIES = [*parse_policies(FILE, "test").policies.values()]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def client(clock: ManualClock) -> Iterator[Client]:
    with InProcessServer(clock=clock) as server:
        client = Client(server.port)
        yield client
        client.close()


@pytest.fixture
def named(clock: ManualClock) -> Iterator[Client]:
    """A client of a service with many policies."""
    with InProcessServer(clock=clock, policies=POLICIES) as server:
        client = Client(server.port)
        yield client
        client.close()


def test_an_inline_limit_allows_then_denies_and_does_not_count_the_denied(
    client: Client, clock: ManualClock
) -> None:
    """200, 200, 429, 429; in the next window all is as at first."""
    first = client.post("/check", INLINE)
    assert first.status == 200
    assert first.json == {
        "allowed": True,
        "remaining": 1,
        "limit": 2,
        "reset_at": NOW + 60_000,
        "retry_after_ms": 0,
    }
    assert client.post("/check", INLINE).json["remaining"] == 0
    clock.advance(59_999)
    for _ in range(3):
        denied = client.post("/check", INLINE)
        assert denied.status == 429
        assert denied.json == {
            "allowed": False,
            "remaining": 0,
            "limit": 2,
            "reset_at": NOW + 60_000,
            "retry_after_ms": 1,
        }
        assert denied.headers["retry-after"] == "1"
    clock.advance(1)
    assert client.post("/check", INLINE).json["remaining"] == 1


def test_every_answer_to_a_check_carries_the_limit(client: Client) -> None:
    """As structured fields; the older headers only on request."""
    plain = client.post("/check", INLINE).headers
    assert plain["ratelimit-policy"] == '"inline";q=2;w=60'
    assert plain["ratelimit"] == '"inline";r=1;t=60'
    assert plain["cache-control"] == "no-store"
    assert "x-ratelimit-limit" not in plain
    asked = client.ask("POST", "/check", INLINE, {"X-RateLimit-Format": "legacy"}).headers
    assert asked["x-ratelimit-limit"] == "2"
    assert asked["x-ratelimit-remaining"] == "0"
    assert asked["x-ratelimit-reset"] == str(NOW // 1000 + 60)
    denied = client.post("/check?headers=x", INLINE).headers
    assert denied["x-ratelimit-remaining"] == "0"
    assert denied["ratelimit"] == '"inline";r=0;t=60'
    assert denied["retry-after"] == "60"


def test_a_client_is_checked_by_its_path_under_the_default_policy(client: Client) -> None:
    """Ten, then a message that says when the window resets."""
    for left in reversed(range(10)):
        reply = client.get("/check/bob%2Fhome%20%C3%A9")
        assert reply.status == 200
        assert reply.json == {"allowed": True, "remaining": left, "resetAt": NOW + 60_000}
    denied = client.get("/check/bob%2Fhome%20%C3%A9")
    assert denied.status == 429
    assert denied.json == {
        "allowed": False,
        "remaining": 0,
        "resetAt": NOW + 60_000,
        "message": f"rate limit exceeded; window resets at {NOW + 60_000}",
    }
    assert denied.headers["retry-after"] == "60"
    assert denied.headers["ratelimit-policy"] == '"default";q=10;w=60'
    by_name = client.post("/check", {"policy": "default", "key": "bob/home é"})
    assert by_name.status == 429


def test_a_cost_is_spent_whole_or_not_at_all(client: Client) -> None:
    """What does not fit leaves what is there to others."""
    assert client.post("/check", {**INLINE, "cost": 3}).status == 429
    assert client.post("/check", {**INLINE, "cost": 2}).status == 200


def test_inline_strategies_are_kept_apart(client: Client) -> None:
    """The same key and limit under another strategy is another count."""
    for strategy in ("fixed_window", "sliding_window", "sliding_window_log", "gcra"):
        reply = client.post("/check", {**INLINE, "strategy": strategy})
        assert (reply.status, reply.json["remaining"]) == (200, 1), strategy


def test_the_v1_calls_mirror_grpc(named: Client) -> None:
    """Denials are answers: the status tells about the call, the body about the decision."""
    asked = {"policy": "api", "key": "k"}
    decision = {"allowed": True, "remaining": 2, "limit": 3, "reset_at": NOW + 60_000}
    first = named.post("/v1/check", asked)
    assert first.json == {"decision": {**decision, "retry_after_ms": 0}}
    assert first.headers["ratelimit"] == '"api";r=2;t=60'
    assert named.post("/v1/peek", asked).json["decision"]["remaining"] == 2
    many = named.post("/v1/check-many", {"policy": "api", "keys": ["k", "k", "k", "l"]}).json
    assert [each["allowed"] for each in many["decisions"]] == [True, True, False, True]
    denied = named.post("/v1/check", asked)
    assert (denied.status, denied.json["decision"]["allowed"]) == (200, False)
    assert denied.headers["retry-after"] == "60"
    assert named.post("/v1/forecast", asked).json == {
        "forecast": {
            "spendable_now": 0,
            "next_replenish_at": NOW + 60_000,
            "full_at": NOW + 60_000,
        }
    }


def test_answers_about_a_policy_name_it_though_they_are_not_one_decision(named: Client) -> None:
    """What several decisions have in common, and a forecast is about."""
    asked = {"policy": "api", "key": "k"}
    replies = [
        named.post("/v1/check-many", {"policy": "api", "keys": ["k", "l"]}),
        named.post("/v1/forecast", asked),
    ]
    for reply in replies:
        assert reply.headers["ratelimit-policy"] == '"api";q=3;w=60'
        assert "ratelimit" not in reply.headers


def test_a_pace_is_told_as_its_quota_per_period(clock: ManualClock) -> None:
    """As the same limit inline is; what is left is of the burst."""
    specs = parse_policies(
        """
version: 1
limiters:
  even: {strategy: gcra, limit: 100, period: 1m}
  burst: {strategy: gcra, limit: 100, period: 1m, burst: 20}
"""
    ).policies
    with InProcessServer(policies=[*specs.values()], clock=clock) as server:
        client = Client(server.port)
        even = client.post("/check", {"policy": "even", "key": "k"})
        assert even.headers["ratelimit-policy"] == '"even";q=100;w=60'
        burst = client.post("/check", {"policy": "burst", "key": "k"})
        assert burst.headers["ratelimit-policy"] == '"burst";q=100;w=60'
        assert burst.json["limit"] == 20
        assert burst.json["remaining"] == int(burst.headers["ratelimit"].split(";")[1][2:]) < 20
        client.close()


def test_a_client_without_a_default_policy_is_told_how_to_get_one(named: Client) -> None:
    """The path names no policy, so the error has to."""
    reply = named.get("/check/alice")
    assert (reply.status, reply.json["code"]) == (404, "unknown_policy")
    assert "'default'" in reply.json["detail"]
    assert "POST /check" in reply.json["detail"]


def test_bad_tokens_are_called_tokens(named: Client) -> None:
    """And not by the name that they have further down."""
    reply = named.post("/v1/debit", {"policy": "llm", "key": "k", "tokens": 0})
    assert reply.status == 400
    assert reply.json["detail"].startswith("tokens must be an integer from 1")


def test_a_budget_counts_what_was_used(named: Client) -> None:
    """The crossing debit counts in full, the next one is refused."""
    asked = {"policy": "llm", "key": "k"}
    assert named.post("/v1/debit", {**asked, "tokens": 99}).json["decision"]["remaining"] == 1
    assert named.post("/v1/debit", {**asked, "tokens": 50}).json["decision"]["allowed"]
    assert not named.post("/v1/debit", asked).json["decision"]["allowed"]


def test_slots_are_taken_kept_and_given_back(named: Client, clock: ManualClock) -> None:
    """Admit, heartbeat, release; a holder that is silent for too long is reclaimed."""
    asked = {"policy": "slots", "key": "k"}
    reply = named.post("/v1/admit", {**asked, "hold": 1_000, "value": -1})
    assert reply.headers["ratelimit-policy"] == '"slots";q=2'
    assert reply.headers["ratelimit"] == '"slots";r=1;t=2'
    first, second = reply.json, named.post("/v1/admit", asked).json
    assert first["decision"]["allowed"]
    assert first["policy_denied"] is False
    assert first["lease_id"] != second["lease_id"]
    busy = named.post("/v1/admit", asked).json
    assert (busy["lease_id"], busy["binding_axis"]) == ("", "concurrency")
    assert named.post("/v1/release", {"lease_id": first["lease_id"]}).json == {}
    assert named.post("/v1/release", {"lease_id": first["lease_id"], "dropped": True}).json == {}
    clock.advance(1_500)
    beat = named.post("/v1/heartbeat", {"lease_ids": [second["lease_id"], "gone"]}).json
    assert beat["live_ids"] == [second["lease_id"]]
    assert beat["reclaimed_ids"] == ["gone"]
    assert beat["next_deadline"] > NOW
    clock.advance(60_000)
    late = named.post("/v1/heartbeat", {"lease_ids": [second["lease_id"]]}).json
    assert late["reclaimed_ids"] == [second["lease_id"]]


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/check", {"policy": "nope", "key": "k"}, 404, "unknown_policy"),
        ("/v1/check", {"policy": "nope", "key": "k"}, 404, "unknown_policy"),
        ("/v1/debit", {"policy": "api", "key": "k"}, 501, "not_implemented"),
        ("/v1/check", {"policy": "llm", "key": "k"}, 501, "not_implemented"),
        ("/check", {"policy": "slots", "key": "k"}, 501, "not_implemented"),
        ("/v1/admit", {"policy": "api", "key": "k"}, 501, "not_implemented"),
        ("/v1/nope", {}, 404, "not_found"),
        ("/check/a/b", {}, 404, "not_found"),
        ("/check/", {}, 404, "not_found"),
        ("/health", {}, 405, "method_not_allowed"),
        ("/check/a", {}, 405, "method_not_allowed"),
        ("/check?cost=5", INLINE, 400, "config_invalid"),
    ],
)
def test_a_mistake_is_a_problem_with_a_code(
    named: Client, path: str, body: object, status: int, code: str
) -> None:
    """As application/problem+json, with the status that fits."""
    reply = named.post(path, body)
    assert reply.status == status
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json["code"] == code
    assert reply.json["status"] == status


def test_inline_limits_can_be_turned_off() -> None:
    """Policies by name still work."""
    with InProcessServer(inline=False) as server:
        client = Client(server.port)
        assert client.post("/check", INLINE).status == 501
        assert client.get("/check/a").status == 200
        client.close()
