"""A decision that a fail mode made while the store was away says so on every interface."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from penstock import Decision, Forecast, Verdict
from penstock.client import ServiceLimiter
from penstock.core._decision import DegradedDecision, DegradedForecast
from penstock.core._verdict import combine
from penstock.stores.redis import RedisStore
from penstock.wire.proto import fleet_pb2, fleet_pb2_grpc
from penstock.wire.proto import rate_limiter_pb2 as pb
from penstock.wire.proto.rate_limiter_pb2_grpc import ChargesStub, RateLimiterStub
from tests.client.asking import WAYS, asking
from tests.client.serving import RunningService
from tests.servers import Valkey, require
from tests.service.http.serving import Client

PLAIN = Decision(True, 3, 0, 1_000, 0)
POLICIES = """
version: 1
limiters:
  default: {strategy: fixedWindow, limit: 3, window: 1m, fail: %(fail)s}
  several:
    fail: %(fail)s
    limits:
      user: {by: key, strategy: fixedWindow, limit: 3, window: 1m}
      all: {strategy: gcra, limit: 9, period: 1m, shadow: true}
  slots: {concurrency: {minLimit: 2, maxLimit: 2}, fail: %(fail)s}
  words: {tokenBudget: {budget: 100, window: 1m}, fail: %(fail)s}
  handed: {strategy: fixedWindow, limit: 9, window: 1d, federated: {batch: 5}, fail: %(fail)s}
"""


@pytest.fixture(scope="module", params=["open", "closed"])
def outage(request: pytest.FixtureRequest) -> Iterator[tuple[RunningService, str]]:
    """A service whose Valkey was there, and died."""
    require("valkey")
    with Valkey() as server:
        store = RedisStore.from_url(server.url, timeout_ms=500)
        text = POLICIES % {"fail": request.param}
        running = RunningService(store=store, fail=request.param, policies=text, token=None)
        with running:
            client = Client(_port(running, "http"))
            body = {"policy": "default", "key": "before"}
            assert "degraded" not in client.post("/v1/check", body).json["decision"]
            client.close()
            server.kill()
            yield running, request.param


def _port(running: RunningService, transport: str) -> int:
    return int(running.url(transport).rpartition(":")[2])


KEYED = {"policy": "default", "key": "k"}
ATTRIBUTES = {"policy": "several", "attributes": {"key": "k"}}
HTTP: list[tuple[str, Any, list[list[Any]]]] = [
    ("/check", KEYED, [[]]),
    ("/check", {"key": "k", "limit": 3, "window_ms": 60_000}, [[]]),
    ("/check", {"policy": "several", "key": "k"}, [[]]),
    ("/check/k", None, [[]]),
    ("/v1/check", KEYED, [["decision"]]),
    ("/v1/check", {"policy": "several", "key": "k"}, [["decision"]]),
    ("/v1/check", ATTRIBUTES, [["decision"], ["limits", "user"], ["limits", "all"]]),
    ("/v1/check-many", {"policy": "default", "keys": ["k", "l"]}, [["decisions", 0]]),
    (
        "/v1/check-many",
        {"policy": "several", "attributes": [{"key": "k"}]},
        [["verdicts", 0, "decision"], ["verdicts", 0, "limits", "user"]],
    ),
    ("/v1/peek", KEYED, [["decision"]]),
    ("/v1/peek", ATTRIBUTES, [["decision"]]),
    ("/v1/forecast", KEYED, [["forecast"]]),
    ("/v1/forecast", ATTRIBUTES, [["forecast"]]),
    ("/v1/reserve", KEYED, [["decision"]]),
    ("/v1/reserve", ATTRIBUTES, [["decision"], ["limits", "user"]]),
    ("/v1/debit", {"policy": "words", "key": "k"}, [["decision"]]),
    ("/v1/admit", {"policy": "slots", "key": "k"}, [["decision"]]),
]


@pytest.mark.parametrize(("path", "body", "places"), HTTP, ids=str)
def test_every_path_of_http_names_the_mode(
    outage: tuple[RunningService, str], path: str, body: Any, places: list[list[Any]]
) -> None:
    """The first request on a connection is read in Python, and later ones in compiled code."""
    running, mode = outage
    client = Client(_port(running, "http"))
    for _ in range(3):
        reply = client.get(path) if body is None else client.post(path, body)
        assert reply.status in ((200, 429) if mode == "closed" else (200,))
        for place in places:
            told = reply.json
            for step in place:
                told = told[step]
            assert told["degraded"] == mode
            assert list(told)[-1] == "degraded"
    client.close()


def test_a_heartbeat_names_the_mode(outage: tuple[RunningService, str]) -> None:
    running, mode = outage
    client = Client(_port(running, "http"))
    admitted = client.post("/v1/admit", {"policy": "slots", "key": "k"}).json
    lease_id = admitted["lease_id"]
    beat = client.post("/v1/heartbeat", {"lease_ids": [lease_id]}).json
    # A lease that was denied is of no policy.
    assert beat.get("degraded") == (mode if lease_id else None)
    client.close()


def test_every_call_of_grpc_names_the_mode(outage: tuple[RunningService, str]) -> None:
    running, mode = outage
    with grpc.insecure_channel(f"127.0.0.1:{_port(running, 'grpc')}") as channel:
        limiter, charges = RateLimiterStub(channel), ChargesStub(channel)
        fleet = fleet_pb2_grpc.FleetStub(channel)
        attributes = [pb.Attribute(name="key", text="k")]
        keyed: dict[str, Any] = {"policy": "default", "key": "k"}
        several: dict[str, Any] = {"policy": "several", "attributes": attributes}
        for _ in range(2):
            told = [
                limiter.Check(pb.CheckRequest(**keyed)).decision,
                limiter.Peek(pb.PeekRequest(**keyed)).decision,
                limiter.Forecast(pb.ForecastRequest(**keyed)).forecast,
                limiter.Debit(pb.DebitRequest(policy="words", key="k")).decision,
                limiter.Admit(pb.AdmitRequest(policy="slots", key="k")).decision,
                charges.Reserve(pb.ChargeRequest(**keyed)).decision,
                fleet.Reserve(fleet_pb2.ReserveRequest(policy="handed")).lease,
                *limiter.CheckMany(
                    pb.CheckManyRequest(policy="default", keys=["k", "l"])
                ).decisions,
            ]
            judged = limiter.Check(pb.CheckRequest(**several))
            told += [judged.decision, *[each.decision for each in judged.limits]]
            reserved = charges.Reserve(pb.ChargeRequest(**several))
            told += [reserved.decision, *[each.decision for each in reserved.limits]]
            assert [each.degraded for each in told] == [mode] * len(told)


@pytest.mark.parametrize("way", WAYS, ids=lambda pair: "-".join(pair))
def test_a_client_sees_the_mode(outage: tuple[RunningService, str], way: tuple[str, str]) -> None:
    running, mode = outage
    options = {"token": None, "fail": "error", "timeout_ms": 10_000}
    with asking(running.url(way[0]), "default", way[1], **options) as one:
        assert one.check("k").degraded == mode
        assert one.peek("k").degraded == mode
        assert one.forecast("k").degraded == mode
        assert [each.degraded for each in one.check_many(["k", "l"])] == [mode, mode]
        charge = one.reserve("k")
        assert charge.allowed is (mode == "open")
        assert charge.degraded == mode
        assert not charge.holds
        assert not charge.is_open
        assert one.on(charge, "cancel") is False
    with asking(running.url(way[0]), "several", way[1], **options) as several:
        verdict = several.check({"key": "k"})
        assert isinstance(verdict, Verdict)
        assert verdict.degraded == mode
        assert verdict.limits["user"].degraded == mode
        assert several.reserve({"key": "k"}).degraded == mode


def test_degraded_decisions_are_counted_per_policy(outage: tuple[RunningService, str]) -> None:
    running, mode = outage
    client = Client(_port(running, "http"))

    def count() -> int:
        lines = client.get("/metrics").body.decode().splitlines()
        name = "penstock_failed_total"
        label = f'{{policy="several",mode="{mode}"}}'
        found = [line for line in lines if line.startswith(f"{name}{label}")]
        return int(found[0].rpartition(" ")[2]) if found else 0

    before = count()
    client.post("/v1/check", ATTRIBUTES)
    assert count() == before + 1
    client.close()


@pytest.mark.parametrize("mode", ["open", "closed"])
@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "grpc://127.0.0.1:1"])
def test_a_client_without_an_answer_names_its_own_mode(url: str, mode: Any) -> None:
    with ServiceLimiter(url, "api", fail=mode, timeout_ms=300) as limiter:
        decision = limiter.check("k")
        assert decision.degraded == mode
        assert limiter.check({"user": "k"}).degraded == mode
        assert limiter.forecast("k").degraded == mode
        charge = limiter.reserve("k")
        assert charge.degraded == mode
        assert not charge.holds

    async def main() -> None:
        async with ServiceLimiter(url, "api", fail=mode, timeout_ms=300) as limiter:
            assert (await limiter.acheck("k")).degraded == mode
            assert (await limiter.areserve({"user": "k"})).degraded == mode

    asyncio.run(main())


def test_a_degraded_decision_differs_from_one_of_a_limit_and_is_kept_by_copies() -> None:
    degraded = DegradedDecision.of("open", PLAIN)
    assert PLAIN.degraded is None
    assert degraded.degraded == "open"
    assert degraded != PLAIN
    assert (degraded == PLAIN) is (PLAIN == degraded) is False  # noqa: SIM300
    assert degraded != DegradedDecision.of("closed", PLAIN)
    assert degraded
    assert repr(degraded).endswith("retry_after_ms=0, degraded='open')")
    for other in (
        copy.copy(degraded),
        copy.deepcopy(degraded),
        pickle.loads(pickle.dumps(degraded)),
        DegradedDecision.of("open", PLAIN),
    ):
        assert other == degraded
        assert hash(other) == hash(degraded)
        assert other.degraded == "open"
        assert (other.limit, other.remaining, other.reset_at) == (3, 0, 1_000)


def test_a_degraded_forecast_is_kept_by_copies() -> None:
    forecast = Forecast(1, 2, 3)
    degraded = DegradedForecast("closed", forecast)
    assert forecast.degraded is None
    assert degraded != forecast
    assert forecast != degraded
    other = pickle.loads(pickle.dumps(degraded))
    assert other == degraded
    assert hash(other) == hash(degraded)
    assert repr(other) == repr(degraded)
    assert other.degraded == "closed"


def test_a_verdict_names_the_mode_that_denies_before_others() -> None:
    opened, closed = DegradedDecision.of("open", PLAIN), DegradedDecision.of("closed", PLAIN)
    assert Verdict(("a", "b"), (PLAIN, PLAIN), (False, False)).degraded is None
    assert Verdict(("a", "b"), (PLAIN, opened), (False, False)).degraded == "open"
    assert Verdict(("a", "b"), (opened, closed), (False, False)).degraded == "closed"
    assert combine(PLAIN, opened).degraded == "open"
    assert combine(PLAIN, PLAIN).degraded is None


def test_the_field_is_absent_from_the_decisions_of_limits() -> None:
    with RunningService(token=None) as running:
        client = Client(_port(running, "http"))
        for path, body, _ in HTTP:
            if path in ("/v1/debit", "/v1/admit", "/check/k") or body == KEYED:
                continue
            told = {**body, "policy": "paired"} if "policy" in body else body
            reply = client.post(path, told)
            assert "degraded" not in json.dumps(reply.json)
        client.close()
