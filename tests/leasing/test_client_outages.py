"""LeasedLimiter while its service is gone: credits are spent, then the fail mode answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import (
    ConfigInvalidError,
    Decision,
    ManualClock,
    StoreUnavailableError,
    UnsupportedError,
)
from penstock.core._decision import DegradedDecision
from penstock.leasing import LeasedLimiter
from tests.leasing.server import START, InProcessServer
from tests.servers import NotReady, eventually
from tests.support.helpers import run

from .clients import MINUTE, client, each_mode


@each_mode
@pytest.mark.parametrize(("fail", "allowed"), [("open", True), ("closed", False), ("error", None)])
def test_when_the_server_is_gone_credits_are_spent_and_then_the_fail_mode_answers(
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
            decision = Decision(allowed, 100, 0, node.now() + 1_000, retry)
            assert await check(limiter) == DegradedDecision.of(fail, decision)
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


def test_a_window_is_never_extended_while_the_server_is_gone(
    server: InProcessServer, node: ManualClock
) -> None:
    """Credits are void at its end, with nobody there to say so."""
    limiter = client(server, node, fail="closed")
    limiter.check()
    server.close()
    node.advance(MINUTE)
    assert not limiter.check().allowed
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
            assert (await call("peek", "cold")).degraded == fail
            assert (await call("forecast", "cold")).degraded == fail
            assert (await call("forecast", "cold")).spendable_now == spendable
            assert (await call("forecast", "held", 2)).spendable_now == max(spendable, 19) // 2
        await asyncio.to_thread(server.open)
        await limiter.aclose()

    run(story())


def test_an_open_client_that_never_reached_its_server_forecasts_what_it_would_allow() -> None:
    """The limit is not known yet; a request is allowed all the same."""
    with LeasedLimiter("127.0.0.1:1", "api", timeout_ms=2_000, clock=ManualClock(START)) as limiter:
        assert limiter.peek().allowed
        assert limiter.forecast(cost=5).spendable_now == 1


def test_a_stopped_server_is_found_again_by_a_limiter_that_was_idle(
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

    eventually(probe, within=20, what="a lease")
    limiter.close()
