"""What a policy of several limits answers on every path: one header member per limit, shadows that
change no answer, looks that never deny, and metrics of shadows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock import ManualClock, unlimited
from penstock.client import ServiceLimiter
from penstock.config import parse_policies
from tests.support.helpers import NOW

from .serving import Client, InProcessServer, Reply
from .test_http2 import over_http2

FILE = """\
version: 1
limiters:
  default:
    limits:
      pace: {by: key, strategy: gcra, limit: 3, period: 1m}
      day: {by: key, strategy: fixedWindow, limit: 5, window: 1d}
      trial: {by: key, strategy: fixedWindow, limit: 1, window: 1m, shadow: true}
  lifted:
    limits:
      each: {by: key, strategy: fixedWindow, limit: 2, window: 1m}
      trial: {by: key, strategy: fixedWindow, limit: 1, window: 1m, shadow: true}
    overrides: {each: {root: unlimited}}
  booked:
    limits:
      pace: {by: key, strategy: gcra, limit: 1, period: 1s}
      trial: {by: key, strategy: gcra, limit: 1, period: 1h, shadow: true}
"""
UNLIMITED = unlimited().check(None, NOW, 1).result
WIRE = {
    "allowed": True,
    "limit": UNLIMITED.limit,
    "remaining": UNLIMITED.remaining,
    "reset_at": NOW,
    "retry_after_ms": 0,
}


@pytest.fixture
def server() -> Iterator[InProcessServer]:
    policies = [*parse_policies(FILE, "test").policies.values()]
    with InProcessServer(policies=policies, clock=ManualClock(NOW)) as started:
        yield started


@pytest.fixture
def client(server: InProcessServer) -> Iterator[Client]:
    made = Client(server.port)
    yield made
    made.close()


def ask(client: Client, path: str, policy: str, key: str) -> Reply:
    """By a bare key."""
    if path == "/check/":
        return client.get(f"/check/{key}")
    return client.post(path, {"policy": policy, "key": key})


PATHS = pytest.mark.parametrize("path", ["/check/", "/check", "/v1/check"])


@PATHS
def test_a_bare_key_gets_one_member_per_limit_with_the_time_until_the_next_unit(
    client: Client, path: str
) -> None:
    """20 s until one of three a minute is back, whatever has been spent; on a denial `t` of the
    binding limit equals Retry-After, and the other limit shows what it has left."""
    replies = [ask(client, path, "default", "k") for _ in range(4)]
    status = 200 if path == "/v1/check" else 429
    assert [reply.status for reply in replies] == [200, 200, 200, status]
    day_s = (86_400_000 - NOW % 86_400_000) // 1000
    assert [reply.headers["ratelimit"] for reply in replies] == [
        f'"pace";r=2;t=20, "day";r=4;t={day_s}',
        f'"pace";r=1;t=20, "day";r=3;t={day_s}',
        f'"pace";r=0;t=20, "day";r=2;t={day_s}',
        f'"pace";r=0;t=20, "day";r=2;t={day_s}',
    ]
    policy = '"pace";q=3;w=60, "day";q=5;w=86400'
    assert all(reply.headers["ratelimit-policy"] == policy for reply in replies)
    assert replies[3].headers["retry-after"] == "20"


def test_a_bare_key_gets_one_member_per_limit_over_http2(server: InProcessServer) -> None:
    with over_http2(server.port) as client:
        replies = [
            client.get("/check/k"),
            client.post("/check", json={"policy": "default", "key": "k"}),
            client.post("/v1/check", json={"policy": "default", "key": "k"}),
            client.get("/check/k"),
        ]
    assert [reply.status_code for reply in replies] == [200, 200, 200, 429]
    paces = [reply.headers["ratelimit"].split(", ")[0] for reply in replies]
    assert paces == [f'"pace";r={left};t=20' for left in (2, 1, 0, 0)]
    assert replies[3].headers["retry-after"] == "20"


def test_peek_and_check_many_by_a_bare_key_name_every_limit(client: Client) -> None:
    peeked = client.post("/v1/peek", {"policy": "default", "key": "k"})
    assert peeked.headers["ratelimit"] == '"pace";r=3;t=0, "day";r=5;t=0'
    many = client.post("/v1/check-many", {"policy": "default", "keys": ["k", "l"]})
    assert many.headers["ratelimit-policy"] == '"pace";q=3;w=60, "day";q=5;w=86400'


@pytest.mark.parametrize("path", ["/check", "/v1/check"])
def test_a_request_of_shadows_alone_is_answered_as_by_unlimited(client: Client, path: str) -> None:
    """An override lifts the only limit that is enforced, and the shadow denies from the second
    request on."""
    for _ in range(3):
        reply = ask(client, path, "lifted", "root")
        assert reply.status == 200
        assert (reply.json if path == "/check" else reply.json["decision"]) == WIRE
        assert "ratelimit" not in reply.headers
        assert "retry-after" not in reply.headers
    told = client.post("/v1/check", {"policy": "lifted", "attributes": {"key": "root"}})
    assert told.json["decision"] == WIRE
    assert (told.json["binding"], told.json["violated"]) == ("", [])
    assert told.json["shadowed"] == ["trial"]
    many = client.post("/v1/check-many", {"policy": "lifted", "keys": ["root"]})
    assert many.json["decisions"] == [WIRE]
    reserved = client.post("/v1/reserve", {"policy": "lifted", "key": "root"})
    assert reserved.json["decision"] == WIRE
    assert reserved.json["charge_id"]


def test_a_client_of_shadows_alone_gets_the_decision_of_unlimited(server: InProcessServer) -> None:
    with ServiceLimiter(f"http://127.0.0.1:{server.port}", "lifted", timeout_ms=20_000) as limiter:
        for _ in range(2):
            verdict: Any = limiter.check({"key": "root"})
        assert verdict.allowed
        assert verdict.decision == UNLIMITED
        assert (verdict.binding, verdict.shadowed) == ("", ("trial",))
        assert limiter.check("root") == UNLIMITED
        assert limiter.reserve({"key": "root"}).decision == UNLIMITED


@pytest.mark.parametrize("by", ["key", "attributes"])
def test_the_metric_of_a_shadow_counts_requests_that_were_admitted(
    server: InProcessServer, client: Client, by: str
) -> None:
    """Two of four are admitted, of which the shadow would have denied one."""
    for _ in range(4):
        asked: Any = "k" if by == "key" else {"key": "k"}
        client.post("/v1/check", {"policy": "lifted", by: asked})
    lines = client.get("/metrics").body.decode().splitlines()
    told = [line for line in lines if 'policy="lifted"' in line and "limit=" in line]
    counted = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in told}
    shadows = {name: value for name, value in counted.items() if 'shadow="true"' in name}
    assert sorted(shadows.values()) == ["1", "1"]
    enforced = {name: value for name, value in counted.items() if 'shadow="false"' in name}
    assert sorted(enforced.values()) == ["2", "2"]


def test_a_look_at_an_exhausted_limit_is_not_denied(client: Client) -> None:
    for _ in range(3):
        client.post("/v1/check", {"policy": "lifted", "key": "k"})
    looks = {"policy": "lifted", "attributes": {"key": "k"}, "costs": {"each": 0, "trial": 0}}
    look = client.post("/v1/check", looks)
    assert look.json["decision"]["allowed"]
    assert look.json["decision"]["remaining"] == 0
    assert (look.json["violated"], look.json["shadowed"]) == ([], [])
    assert look.headers["ratelimit"].startswith('"each";r=0;t=')
    peek = client.post("/v1/peek", {"policy": "lifted", "attributes": {"key": "k"}})
    assert not peek.json["decision"]["allowed"]


def test_a_shadow_does_not_delay_a_booking(client: Client) -> None:
    body = {"policy": "booked", "key": "k", "max_wait_ms": 10_000}
    starts = [client.post("/v1/reserve", body).json["starts_at"] for _ in range(3)]
    assert starts == [NOW, NOW + 1_000, NOW + 2_000]
