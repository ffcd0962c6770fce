"""Estimates before a crowd: what does not fit is refused, over either server, and on either store.

Two ways to ask. `admit` looks whether an estimate fits into what is left of a budget and counts
nothing, since what was used is told by `debit`, which knows nothing of estimates. `reserve` sets
the estimate aside, and `settle` replaces it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock import RateLimitExceededError
from penstock.client import ServiceLimiter
from tests.client.serving import TOKEN, TRANSPORTS, RunningService
from tests.stores.redis.live import open_empty

POLICIES = """\
version: 1
limiters:
  chat:
    limits:
      flight: {by: team, strategy: slots, limit: 30, ttl: 1m}
      requests: {by: team, strategy: fixedWindow, limit: 1000, window: 100d}
      tokens: {by: team, cost: tokens, strategy: fixedWindow, limit: 1000, window: 100d}
  admit:
    concurrency: {minLimit: 30, maxLimit: 30, leaseTtl: 1m, perKey: true}
    strategy: fixedWindow
    limit: 100
    window: 100d
    tokenBudget: {budget: 1000, window: 100d}
"""
CROWD = 24


@pytest.fixture(scope="module", params=["memory", "redis"])
def service(request: pytest.FixtureRequest) -> Iterator[RunningService]:
    store = open_empty("valkey") if request.param == "redis" else None
    with RunningService(store=store, policies=POLICIES) as running:
        yield running


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def asked(service: RunningService, transport: str, policy: str) -> ServiceLimiter:
    return ServiceLimiter(service.url(transport), policy, token=TOKEN, timeout_ms=20_000)


def test_of_a_crowd_as_many_are_let_in_as_estimates_fit(
    service: RunningService, transport: str
) -> None:
    """All of them at once, in slots that would hold more; and again what was not used."""
    team = {"team": transport}
    with asked(service, transport, "chat") as chat, ThreadPoolExecutor(CROWD) as crowd:

        def reserve(_: int) -> Any:
            return chat.reserve(team, {"tokens": 100})

        charges = list(crowd.map(reserve, range(CROWD)))
        held = [charge for charge in charges if charge.allowed]
        assert len(held) == 10
        denied = {charge.verdict.violated for charge in charges if not charge.allowed}
        assert denied == {("tokens",)}
        left = chat.peek({**team, "tokens": 0}).limits
        assert {name: told.remaining for name, told in left.items()} == {
            "flight": 20,
            "requests": 990,
            "tokens": 0,
        }
        assert all(crowd.map(lambda charge: charge.settle({"tokens": 40}), held))
        again = [charge for charge in crowd.map(reserve, range(CROWD)) if charge.allowed]
        assert len(again) == 6
        assert all(crowd.map(lambda charge: charge.cancel(), again))


def test_an_estimate_that_does_not_fit_is_not_admitted_because_some_is_left(
    service: RunningService, transport: str
) -> None:
    """Nor has it taken a slot, or cost anything of the rate. What an older client debits is counted
    in full, whatever was estimated."""
    with asked(service, transport, "admit") as limiter, ThreadPoolExecutor(CROWD) as crowd:
        key = transport

        def admit(cost: int) -> str:
            try:
                with limiter.admit(key, cost) as slot:
                    return slot.binding_axis
            except RateLimitExceededError as error:
                return "cost" if "by its cost" in str(error) else str(error)

        assert limiter.debit(key, 950).remaining == 50
        assert set(crowd.map(admit, [51] * CROWD)) == {"cost"}
        with limiter.admit(key, 50) as slot:
            assert slot.decision is not None
            assert slot.decision.remaining == 29, "no slot was lost, and the rate has 50 left"
            assert limiter.debit(key, 80).allowed, "although the estimate was all that was left"
        assert admit(1) == "cost"
