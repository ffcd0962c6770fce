"""LeasedLimiter: a policy of a service, spent here, sync and async."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
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
from tests.leasing.far import ServerClock
from tests.leasing.server import START, InProcessServer, opened
from tests.servers import NotReady, eventually
from tests.service.worlds import AWAY, FragileStore
from tests.support.helpers import run

MINUTE = 60_000


class CountingStore(FragileStore):
    """Counts what reaches the service's store."""

    def __init__(self) -> None:
        super().__init__()
        self.leases: list[int] = []

        # Called after a lease was decided, with the key.
        self.then: Callable[[str], None] | None = None

    async def aapply(self, key: str, transform: Any, now: int, cost: int) -> Any:
        if transform.role == "lease":
            self.leases.append(cost)
        result = await super().aapply(key, transform, now, cost)
        if transform.role == "lease" and self.then is not None:
            self.then(key)
        return result


@pytest.fixture
def node() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


@pytest.fixture
def server(store: CountingStore, node: ManualClock) -> Iterator[InProcessServer]:
    # The service's clock shows another time of day, and runs with the node's.
    with opened(store, ServerClock(node, 7_777 * MINUTE)) as running:
        yield running


async def _sync(limiter: LeasedLimiter, *args: Any, **kwargs: Any) -> Decision:
    return limiter.check(*args, **kwargs)


async def _async(limiter: LeasedLimiter, *args: Any, **kwargs: Any) -> Decision:
    return await limiter.acheck(*args, **kwargs)


each_mode = pytest.mark.parametrize("check", [_sync, _async], ids=["sync", "async"])


def client(server: InProcessServer, node: Any, **options: Any) -> LeasedLimiter:
    options = {"policy": "api", "batch": 20, "low_water": 0, "fail": "error", **options}
    return LeasedLimiter(server.target, clock=node, timeout_ms=5_000, **options)


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
    limiter._finish()
    assert store.leases == [20, 20 - 1 - 5]
    assert limiter._near.held("api") == 19
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


@each_mode
@pytest.mark.parametrize(("fail", "allowed"), [("open", True), ("closed", False), ("error", None)])
def test_when_the_door_is_gone_credits_are_spent_and_then_the_fail_mode_answers(
    check: Any, fail: str, allowed: bool | None, server: InProcessServer, node: ManualClock
) -> None:
    """And when it is back, so are leases."""

    async def story() -> None:
        limiter = client(server, node, fail=fail)
        await check(limiter)
        await asyncio.to_thread(server.close)
        for _ in range(19):
            assert (await check(limiter)).allowed
        if allowed is None:
            with pytest.raises(StoreUnavailableError, match="UNAVAILABLE"):
                await check(limiter)
        else:
            retry = 0 if allowed else 1_000
            assert await check(limiter) == Decision(allowed, 100, 0, node.now() + 1_000, retry)
        await asyncio.to_thread(server.open)
        await recovers(check, limiter)
        await limiter.aclose()

    run(story())


async def recovers(check: Any, limiter: LeasedLimiter) -> None:
    for _ in range(300):
        try:
            decision = await check(limiter)
        except StoreUnavailableError:
            decision = None
        if decision is not None and decision.remaining:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("no lease within 6 s")


def test_a_window_is_never_extended_while_the_door_is_gone(
    server: InProcessServer, node: ManualClock
) -> None:
    """Credits are void at its end, with nobody there to say so."""
    limiter = client(server, node, fail="closed")
    limiter.check()
    server.close()
    node.advance(MINUTE)
    assert not limiter.check().allowed
    assert limiter._near.held("api") == 0
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
            assert limiter._near.held("big") == 0
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


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"policy": "nowhere"}, ConfigInvalidError),
        ({"policy": "plain"}, UnsupportedError),
        ({"axis": "token_budget"}, UnsupportedError),
    ],
)
def test_a_mistake_is_raised_whatever_the_fail_mode(
    options: dict[str, Any], kind: type[Exception], server: InProcessServer, node: ManualClock
) -> None:
    """It would not pass by itself."""
    limiter = client(server, node, fail="open", **options)
    with pytest.raises(kind):
        limiter.check()
    with pytest.raises(kind):
        run(limiter.acheck())
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


@pytest.mark.parametrize("mode", ["", "a"])
@pytest.mark.parametrize(("fail", "spendable"), [("open", 100), ("closed", 0), ("error", None)])
def test_a_look_is_answered_by_the_fail_mode_too(
    fail: str, spendable: int | None, mode: str, server: InProcessServer, node: ManualClock
) -> None:
    """While the server is gone: how a check would be answered, and how many of them."""

    async def story() -> None:
        limiter = client(server, node, fail=fail)

        async def call(verb: str, *args: Any) -> Any:
            answer = getattr(limiter, mode + verb)(*args)
            return await answer if mode else answer

        await call("check", "held")
        await asyncio.to_thread(server.close)
        assert (await call("peek", "held")).remaining == 19
        if spendable is None:
            for verb in ("peek", "forecast"):
                with pytest.raises(StoreUnavailableError):
                    await call(verb, "cold")
        else:
            assert (await call("peek", "cold")).allowed is (spendable > 0)
            assert (await call("forecast", "cold")).spendable_now == spendable
            assert (await call("forecast", "held", 2)).spendable_now == max(spendable, 19) // 2
        await asyncio.to_thread(server.open)
        await limiter.aclose()

    run(story())


def test_an_open_client_that_never_reached_its_door_forecasts_what_it_would_allow() -> None:
    """The limit is not known yet; a request is allowed all the same."""
    with LeasedLimiter("127.0.0.1:1", "api", timeout_ms=2_000, clock=ManualClock(START)) as limiter:
        assert limiter.peek().allowed
        assert limiter.forecast(cost=5).spendable_now == 1


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


def test_processes_behind_one_door_share_a_limit_in_real_time() -> None:
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


def test_a_stopped_door_is_found_again_by_a_limiter_that_was_idle(
    server: InProcessServer, node: ManualClock
) -> None:
    """Its channel reconnects by itself."""
    limiter = client(server, node)
    limiter.check()
    server.close()
    server.open()

    def probe() -> None:
        try:
            limiter.check("another")
        except StoreUnavailableError as error:
            raise NotReady from error

    eventually(probe, within=10, what="a lease")
    limiter.close()


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
    wanted = f"LeasedLimiter needs {package}, which the extra 'server' brings: "
    assert shown.strip() == wanted + install_line("server")
