"""LeasedLimiter: a policy of a service, spent here, sync and async."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    Decision,
    ManualClock,
    MemoryStore,
    StoreUnavailableError,
    SystemClock,
    UnsupportedError,
    fixed_window,
    rate_limit,
)
from penstock.core._errors import install_line
from penstock.leasing import LeasedLimiter
from tests.leasing.crowds import until
from tests.leasing.server import START, InProcessServer, opened
from tests.service.worlds import AWAY
from tests.support.helpers import run

from .clients import MINUTE, CountingStore, client, each_mode


@each_mode
def test_a_batch_costs_one_call(
    check: Any, server: InProcessServer, node: ManualClock, store: CountingStore
) -> None:
    """And reads as the policy's own decisions, limit and window included."""

    async def story() -> None:
        limiter = client(server, node)
        decisions = [await check(limiter) for _ in range(40)]
        assert store.leases == [20, 20]
        end = server.clock.now() // MINUTE * MINUTE + MINUTE
        assert decisions[0] == Decision(True, 100, 19, end, 0)
        assert decisions[1] == Decision(True, 100, 18, end, 0)
        assert [d.allowed for d in [await check(limiter) for _ in range(70)]] == (
            [True] * 60 + [False] * 10
        )
        assert len(store.leases) == 6
        await limiter.aclose()

    run(story())


@each_mode
def test_credits_end_with_the_services_window(
    check: Any, server: InProcessServer, node: ManualClock, store: CountingStore
) -> None:
    """Reckoned from the asking, whatever the two clocks show."""

    async def story() -> None:
        limiter = client(server, node)
        await check(limiter)
        node.advance(MINUTE - 1)
        assert (await check(limiter)).remaining == 18
        node.advance(1)
        assert (await check(limiter)).remaining == 19
        assert len(store.leases) == 2
        await limiter.aclose()

    run(story())


@each_mode
def test_each_key_has_a_budget_of_its_own(
    check: Any, server: InProcessServer, node: ManualClock
) -> None:
    """The domain is the one that is meant when none is named."""

    async def story() -> None:
        limiter = client(server, node, domain="eu")
        assert (await check(limiter)).remaining == 19
        assert (await check(limiter, "eu")).remaining == 18
        assert (await check(limiter, cost=3)).remaining == 15
        assert (await check(limiter, "us", 2)).remaining == 18
        assert (await check(client(server, node))).remaining == 19
        await limiter.aclose()

    run(story())


def test_refreshes_run_ahead_of_need(
    server: InProcessServer, node: ManualClock, store: CountingStore
) -> None:
    """By default at a quarter of the batch: callers never wait after the first."""
    limiter = client(server, node, low_water=None)
    for _ in range(15):
        limiter.check()
    until(lambda: limiter.peek().remaining == 19)
    assert store.leases == [20, 20 - 1 - 5]
    limiter.close()


def test_refreshes_are_coalesced(
    server: InProcessServer, node: ManualClock, store: CountingStore
) -> None:
    """A crowd that misses at once makes one call per batch."""

    async def crowd() -> None:
        limiter = client(server, node)
        decisions = await asyncio.gather(*(limiter.acheck() for _ in range(20)))
        assert all(decisions)
        assert store.leases == [20]
        await limiter.aclose()

    run(crowd())
    limiter = client(server, node)
    with ThreadPoolExecutor(10) as pool:
        assert all(pool.map(lambda _: limiter.check("threads"), range(20)))
    assert store.leases == [20, 20]
    limiter.close()


def test_a_request_may_need_more_than_is_handed_out_at_once(
    server: InProcessServer, node: ManualClock, store: CountingStore
) -> None:
    """The service grants 50 at most: two calls; what cannot be had is denied and not lost."""
    limiter = client(server, node)
    assert limiter.check("big", 70) == Decision(True, 100, 0, limiter.peek("big").reset_at, 0)
    assert store.leases == [50, 20]
    denied = limiter.check("big", 40)
    assert (denied.allowed, denied.retry_after_ms) == (False, MINUTE)
    assert [limiter.check("big").allowed for _ in range(31)] == [True] * 30 + [False]
    limiter.close()


@each_mode
@pytest.mark.parametrize("refusal", ["used up", "closed", "honest"])
def test_a_part_that_was_granted_keeps_its_own_window_when_the_rest_is_refused(
    check: Any, refusal: str, server: InProcessServer, node: ManualClock, store: CountingStore
) -> None:
    """The window rolls between the two calls, or the service's store is gone for the second: in
    the next window, what was granted before it is void."""
    policy = "api" if refusal == "used up" else refusal
    node.set(START + MINUTE - 10)

    def interfere(key: str) -> None:
        store.then = None
        if refusal == "used up":
            node.advance(10)
            whole = rate_limit(fixed_window(100, MINUTE), store=store.inner, clock=server.clock)
            assert whole.check(key, 100).allowed
        else:
            store.error = AWAY

    async def story() -> None:
        limiter = client(server, node, policy=policy)
        store.then = interfere
        if refusal == "honest":
            with pytest.raises(StoreUnavailableError):
                await check(limiter, "big", 70)
        else:
            assert not (await check(limiter, "big", 70)).allowed
        assert store.leases == [50, 20]
        if refusal != "used up":
            # They are good for what is left of their own window, and not lost.
            assert (await check(limiter, "big")).remaining == 49
            node.advance(10)
            store.error = None
            assert (await check(limiter, "big")).remaining == 19
        else:
            assert not (await check(limiter, "big")).allowed
        await limiter.aclose()

    run(story())


@pytest.mark.parametrize("low_water", [0, None], ids=["on demand", "ahead"])
@pytest.mark.parametrize("cost", [1, 3])
@pytest.mark.parametrize("policy", ["api", "sliding"])
def test_refreshes_keep_what_is_held(
    policy: str, cost: int, low_water: int | None, server: InProcessServer, node: ManualClock
) -> None:
    """Of a window that slides, each grant ends later than the one before, and adds to it; all of
    the limit is spent, and no more."""
    limiter = client(server, node, policy=policy, low_water=low_water)
    units = 0
    for price in [cost] * 150 + [1] * 150:
        units += price * limiter.check(cost=price).allowed
        limiter._finish()
        node.advance(1)
    assert units == 100
    limiter.close()


def test_a_sliding_policy_never_admits_more_than_was_granted(
    server: InProcessServer, node: ManualClock, store: CountingStore
) -> None:
    """Over many windows, with pauses in which credits end; nearly all of it is spent."""
    limiter, rng = client(server, node, policy="sliding", low_water=None), random.Random(1)
    admitted: list[int] = []
    for _ in range(6_000):
        admitted += [node.now()] * limiter.check().allowed
        limiter._finish()
        node.advance(rng.choice((0, 1, 100, 300)))
    most = max(sum(at - MINUTE < other <= at for other in admitted) for at in admitted)
    assert most <= 100 + 19
    windows = (node.now() - START) / MINUTE
    assert 0.75 * 100 * windows < len(admitted) <= 100 * (windows + 1)
    limiter.close()


def test_a_request_may_need_several_grants_of_a_sliding_window(
    server: InProcessServer, node: ManualClock, store: CountingStore
) -> None:
    """They add up, though each names another end."""
    store.then = lambda _: node.advance(5)
    limiter = client(server, node, policy="sliding")
    assert limiter.check("big", 70).allowed
    assert store.leases == [50, 20]
    limiter.close()


def test_a_token_budget_is_spent_the_same_way(server: InProcessServer, node: ManualClock) -> None:
    """On the axis of budgets."""
    limiter = client(server, node, policy="tokens", axis="token_budget", batch=150)
    assert limiter.check(cost=120) == Decision(True, 1_000, 30, server.clock.now() + MINUTE, 0)
    limiter.close()


def test_the_secret_is_presented() -> None:
    """And its absence is the caller's mistake."""
    with opened(MemoryStore(), SystemClock(), fleet_secret="the-secret-of-the-fleet") as server:
        stranger = LeasedLimiter(server.target, "api", batch=5, timeout_ms=5_000)
        with pytest.raises(ConfigInvalidError, match="UNAUTHENTICATED"):
            stranger.check()
        friend = LeasedLimiter(server.target, "api", batch=5, secret="the-secret-of-the-fleet")
        assert friend.check().allowed
        stranger.close()
        friend.close()


@pytest.mark.parametrize("mode", ["", "a"])
def test_every_call_means_the_domain_by_default(
    mode: str, server: InProcessServer, node: ManualClock
) -> None:
    """As `check` does."""

    async def story() -> None:
        limiter = client(server, node, domain="eu")

        async def call(verb: str, **options: Any) -> Any:
            answer = getattr(limiter, mode + verb)(**options)
            return await answer if mode else answer

        assert (await call("acquire", cost=2)).remaining == 18
        assert (await call("peek")).remaining == 18
        assert (await call("forecast", cost=2)).spendable_now == 49
        assert limiter.peek("eu").remaining == 18
        await limiter.aclose()

    run(story())


def test_peek_and_forecast_ask_the_policy_and_reset_is_refused(
    server: InProcessServer, node: ManualClock
) -> None:
    """Credits first; the rest is the service's to say."""
    limiter = client(server, node)
    assert limiter.peek("k").remaining == 100
    limiter.check("k")
    assert limiter.peek("k").remaining == 19
    assert limiter.forecast("k").spendable_now == 99
    assert run(limiter.apeek("k")).remaining == 19
    with pytest.raises(UnsupportedError):
        limiter.reset("k")
    limiter.close()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"target": ""}, "target"),
        ({"policy": ""}, "key"),
        ({"batch": 0}, "batch"),
        ({"low_water": 20}, "low_water"),
        ({"fail": "maybe"}, "fail"),
        ({"axis": "slots"}, "axis"),
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"secret": 12_345}, "secret"),
        ({"secret": b"bytes"}, "secret"),
        ({"secret": "caf\u00e9"}, "secret"),
        ({"token": ["a"]}, "token"),
        ({"token": ""}, "token"),
    ],
)
def test_options_that_could_not_work_are_refused(options: dict[str, Any], named: str) -> None:
    """At construction, without a connection."""
    given = {"target": "localhost:1", "policy": "api", "batch": 20, **options}
    with pytest.raises(ConfigInvalidError, match=named):
        LeasedLimiter(**given)


def test_processes_that_ask_one_server_share_a_limit_in_real_time() -> None:
    """Three clients, windows of 250 ms: none exceeds 40, and all of it is used."""
    with opened(MemoryStore(), SystemClock()) as server:
        clients = [
            LeasedLimiter(server.target, "short", batch=10, low_water=2, timeout_ms=5_000)
            for _ in range(3)
        ]
        counts: dict[int, int] = {}
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            for limiter in clients:
                decision = limiter.check()
                if decision.allowed:
                    counts[decision.reset_at] = counts.get(decision.reset_at, 0) + 1
        for limiter in clients:
            limiter.close()
        assert max(counts.values()) <= 40
        assert sum(count >= 30 for count in counts.values()) >= 3


@pytest.mark.parametrize(
    ("module", "package"), [("grpc", "grpcio"), ("google.protobuf", "protobuf")]
)
def test_without_the_extra_the_error_names_it(module: str, package: str) -> None:
    """And the package, by the name under which it is installed."""
    story = f"""
import sys
sys.modules[{module!r}] = None
from penstock import ConfigInvalidError
try:
    from penstock.leasing import LeasedLimiter
except ConfigInvalidError as error:
    print(error)
"""
    command = [sys.executable, "-c", story]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    wanted = f"LeasedLimiter needs {package}, which the extra 'client' brings: "
    assert shown.strip() == wanted + install_line("client")
